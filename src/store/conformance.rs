//! What every store must do, as tests for a store of your own. With the feature `conformance`.
//!
//! Each claim is a function that calls the store for keys of a limiter with a new name, so that tests and claims can share a
//! server. [`tests!`](crate::store::conformance::tests) makes a test of each claim. The stores of this crate are tested by the
//! same functions.
//!
//! Claims wait for the store's clock, at most some seconds, and need a runtime whose clock is not paused. No other caller may use
//! their limiters meanwhile.
//!
//! ```
//! use tollgate::store::MemoryStore;
//! use tollgate::store::conformance;
//!
//! mod memory_store {
//!     # use super::MemoryStore;
//!     // A test of each claim, each with a store of its own. The expression may use `.await`.
//!     tollgate::store::conformance::tests!(MemoryStore::new());
//! }
//!
//! // Or all claims in one test:
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 2)]
//! # async fn main() {
//! if let Err(broken) = conformance::check(MemoryStore::new()).await {
//!     panic!("{broken}");
//! }
//! # }
//! ```

mod asks;
mod beginnings;
mod contention;
mod fault;
mod holder;
mod keys;
mod leases;
mod oracle;

use std::sync::Arc;

use crate::store::Store;

pub use fault::Broken;
#[cfg(test)]
pub(crate) use oracle::POLICIES;

macro_rules! claims {
    ($($(#[doc = $doc:literal])* $module:ident::$claim:ident;)*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Errors
            ///
            /// [`Broken`] if the claim does not hold.
            pub async fn $claim(store: impl Store) -> Result<(), Broken> {
                let store: Arc<dyn Store> = Arc::new(store);
                $module::$claim(&store).await.map_err(|fault| fault.of(stringify!($claim)))
            }
        )*

        /// Checks all claims, one after another, up to the first one that does not hold.
        ///
        /// See the [module's example](self).
        ///
        /// # Errors
        ///
        /// The first claim that is [`Broken`].
        pub async fn check(store: impl Store) -> Result<(), Broken> {
            let store: Arc<dyn Store> = Arc::new(store);
            $($module::$claim(&store).await.map_err(|fault| fault.of(stringify!($claim)))?;)*
            Ok(())
        }

        /// The names of all claims.
        pub const CLAIMS: &[&str] = &[$(stringify!($claim)),*];
    };
}

claims! {
    /// The longest prefix of several asks that the limits admit is granted; the reply states when the next ask would be granted.
    asks::asks_are_granted_in_order_up_to_the_limit;
    /// Each limit of the policy is charged for a grant, or none is; the first limit that denies is named.
    asks::all_limits_admit_or_none_is_charged;
    /// A peek reports what would be granted, and changes nothing.
    asks::a_peek_charges_nothing;
    /// The actual cost of work replaces the charge: a higher cost becomes a debt, a lower one is refunded where the refund is
    /// provably safe.
    asks::a_settlement_charges_more_or_refunds;
    /// A penalty counts the denied asks that do not wait, and not those that wait.
    asks::denied_attempts_count_if_they_do_not_wait;
    /// A call at or after its `valid_until` is an error, and changes nothing.
    asks::a_call_that_comes_too_late_is_not_carried_out;
    /// A bucket that starts below its capacity fills from the first call for its key on, also if that call was denied. The same
    /// holds for a bucket that refills each period.
    beginnings::a_bucket_that_starts_low_refills_for_a_key_that_was_only_denied;
    /// The same for a key whose first call was a peek.
    beginnings::a_bucket_that_starts_low_refills_for_a_key_that_was_only_peeked_at;
    /// The same for a key whose first call only read the state of its limits.
    beginnings::a_bucket_that_starts_low_refills_for_a_key_that_was_only_listed;
    /// The same for a bucket that replaces another policy: it fills from the call that replaces the policy on, also if that call
    /// was denied.
    beginnings::a_bucket_that_starts_low_refills_under_another_policy;
    /// A key whose bucket is filling is kept at least until the bucket is full, and not for ever, also if all its calls were
    /// denied.
    beginnings::a_key_that_starts_low_is_kept_until_it_is_full;
    /// A key whose calls were only denied, peeks or reads is not kept if all its limits are as before the first call. So no
    /// caller can fill the store with invented keys.
    beginnings::a_key_that_is_as_new_is_not_kept;
    /// A window from the first grant opens with a grant, and not with an earlier denial.
    beginnings::a_window_from_the_first_grant_opens_with_a_grant;
    /// Other windows end at multiples of their period since 1970, whenever the first call for the key came.
    beginnings::a_window_that_no_grant_opens_ends_at_a_multiple_of_its_period;
    /// A penalty counts the attempts of a key whose calls were only denied, and bans the key.
    beginnings::a_penalty_rises_for_a_key_that_was_only_denied;
    /// Random calls, with policies of every kind of limit, have the replies that the rules of this crate give at the instant of
    /// the reply. An instant may be up to a microsecond later, because a clock need not count nanoseconds.
    oracle::random_calls_have_the_replies_of_the_rules;
    /// A returned lease gives its places back exactly once, before the asks of the same call.
    leases::leases_come_back_once;
    /// A holder neither returns nor renews the leases of another one.
    leases::leases_of_another_holder_are_not_touched;
    /// A lease ends one TTL after its grant, or at most 100 ms later, and is then lost to its holder.
    leases::a_lease_that_was_not_renewed_is_reclaimed;
    /// A renewed lease ends one TTL after its renewal, or at most 100 ms later.
    leases::renewals_extend_leases;
    /// The fences of a key rise with every grant, for all holders, and also after a reset; they are at least the microseconds
    /// since 1970.
    leases::fences_rise_over_holders_and_resets;
    /// A call with another policy than that of the key replaces it if its revision is higher. Otherwise it is an error, unless the state
    /// has expired.
    keys::a_later_revision_replaces_the_policy_and_others_are_an_error;
    /// A limit that replaces another one starts with what is used of it.
    keys::usage_is_carried_over_to_a_later_revision;
    /// Leases outlive a change of the policy, also one to a policy without places.
    keys::leases_are_carried_over_to_a_later_revision;
    /// A policy that a call keeps is there later, although nothing was granted.
    keys::a_policy_that_is_to_be_kept_is_kept;
    /// All keys of a limiter are listed, page by page, and no keys of another limiter.
    keys::keys_are_listed_page_by_page;
    /// After a reset a key has all its units, its leases are lost, and other keys are as before.
    keys::a_reset_key_is_as_new;
    /// A settlement of a grant from before a reset, or under an earlier policy, refunds nothing: the limits no longer hold the
    /// charge.
    keys::nothing_is_refunded_of_grants_from_before_a_reset;
    /// Names and keys of any bytes and of any length up to 80,000 bytes are distinct.
    keys::any_name_and_key_is_kept_apart;
    /// A purge deletes the keys whose state no longer matters, and they are not listed; other keys are kept and listed.
    keys::expired_keys_are_purged;
    /// Tasks that call at the same time are granted exactly the limit.
    contention::contending_callers_get_exactly_the_limit;
    /// Tasks that take and return places never hold more places than there are, and no place is lost.
    contention::no_place_is_held_twice;
    /// Callers that drop their calls at any time leave nothing locked.
    contention::a_caller_that_gives_up_leaves_nothing_locked;
    /// If the store [listens](Store::listen), listeners are notified of the holder whose turn it is.
    contention::listeners_are_told;
    /// A concurrency that adapts, which learns from the work of one process, is not supported.
    asks::a_concurrency_that_adapts_is_refused;
}

/// Makes a test of each claim. Each test evaluates the expression for its store. Use the macro in a module for tests.
///
/// The expression is evaluated in an async function of a runtime with two threads. The crate that uses it needs `tokio` with the
/// features `macros` and `rt-multi-thread`. See the [module's example](crate::store::conformance).
#[macro_export]
#[doc(hidden)]
macro_rules! __conformance_tests {
    ($store:expr) => {
        $crate::__conformance_tests!(@keeping async { ($store, ()) });
    };
    // The expression also returns a value that must live as long as the store.
    (@keeping $store_and_more:expr) => {
        $crate::__conformance_tests!(@each $store_and_more,
            asks_are_granted_in_order_up_to_the_limit
            all_limits_admit_or_none_is_charged
            a_peek_charges_nothing
            a_settlement_charges_more_or_refunds
            denied_attempts_count_if_they_do_not_wait
            a_call_that_comes_too_late_is_not_carried_out
            a_bucket_that_starts_low_refills_for_a_key_that_was_only_denied
            a_bucket_that_starts_low_refills_for_a_key_that_was_only_peeked_at
            a_bucket_that_starts_low_refills_for_a_key_that_was_only_listed
            a_bucket_that_starts_low_refills_under_another_policy
            a_key_that_starts_low_is_kept_until_it_is_full
            a_key_that_is_as_new_is_not_kept
            a_window_from_the_first_grant_opens_with_a_grant
            a_window_that_no_grant_opens_ends_at_a_multiple_of_its_period
            a_penalty_rises_for_a_key_that_was_only_denied
            random_calls_have_the_replies_of_the_rules
            leases_come_back_once
            leases_of_another_holder_are_not_touched
            a_lease_that_was_not_renewed_is_reclaimed
            renewals_extend_leases
            fences_rise_over_holders_and_resets
            a_later_revision_replaces_the_policy_and_others_are_an_error
            usage_is_carried_over_to_a_later_revision
            leases_are_carried_over_to_a_later_revision
            a_policy_that_is_to_be_kept_is_kept
            keys_are_listed_page_by_page
            a_reset_key_is_as_new
            nothing_is_refunded_of_grants_from_before_a_reset
            any_name_and_key_is_kept_apart
            expired_keys_are_purged
            contending_callers_get_exactly_the_limit
            no_place_is_held_twice
            a_caller_that_gives_up_leaves_nothing_locked
            listeners_are_told
            a_concurrency_that_adapts_is_refused
        );
    };
    (@each $store_and_more:expr, $($claim:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let (store, _lives_as_long) = $store_and_more.await;
                if let Err(broken) = $crate::store::conformance::$claim(store).await {
                    panic!("{broken}");
                }
            }
        )*

        #[test]
        fn each_claim_is_tested() {
            assert_eq!($crate::store::conformance::CLAIMS, [$(stringify!($claim)),*]);
        }
    };
}

#[doc(inline)]
pub use __conformance_tests as tests;
