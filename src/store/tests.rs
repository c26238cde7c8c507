//! What is asked of every store, and the tests of each store. The limiters of a test have names that no other test has, so that a
//! server can be shared.

mod conformance;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod contended;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

/// Tests a store for all that every store does. `$store` is a new one: a future of an `Arc<dyn Store>` and of what has to live as
/// long.
macro_rules! conforms {
    ($store:expr) => {
        crate::store::tests::conforms!($store,
            asks_are_granted_in_order_up_to_the_limit
            all_limits_admit_or_none_is_charged
            a_peek_charges_nothing
            leases_come_back_once
            leases_of_another_holder_are_not_touched
            a_lease_that_was_not_renewed_is_reclaimed
            renewals_extend_leases
            fences_rise_over_holders_and_resets
            a_settlement_charges_more_or_refunds
            denied_attempts_count_if_they_do_not_wait
            a_call_that_comes_too_late_is_not_carried_out
            another_policy_is_an_error_or_replaces_the_stored_one
            keys_are_listed_page_by_page
            a_reset_key_is_as_new
            any_name_and_key_is_kept_apart
            expired_keys_are_purged
            contending_callers_get_exactly_the_limit
            no_place_is_held_twice
            listeners_are_told
            a_concurrency_that_adapts_is_refused
        );
    };
    ($store:expr, $($claim:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let (store, _alive) = $store.await;
                crate::store::tests::conformance::$claim(store).await;
            }
        )*
    };
}
use conforms;

/// The URL of a server.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn url(variable: &str) -> String {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    url.unwrap_or_else(|| panic!("set {variable} to the URL of a server, or run the tests by scripts/servers"))
}
