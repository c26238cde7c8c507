//! One key: its entry in a table, idle (only the state of its limits) or active (a manager); its lookup, its state while idle, and
//! its numbers.

use std::any::TypeId;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::SeedableRandomState;

use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::core::request::Costs;
use crate::core::suspension::AllKeysHold;
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::event::Attempt;
use crate::manager::{ClockOrigin, Manager, RequestOptions};
use crate::permit::Permit;
use crate::policy::Limit;
use crate::snapshot::LimitStatus;
use crate::strategy::{Moment, Rule, StateWords, Strategy};

/// The entry of a key in a table of its shard.
#[derive(Debug)]
pub(super) struct KeyEntry<K, V, H> {
    pub(super) key: K,
    /// The words of an idle key, or the manager of an active one.
    pub(super) value: V,
    hash: H,
}

/// A key with only the state of its limits. Where keys have tiers, the last word is the number of the tier.
pub(super) type Idle<K, const W: usize, H> = KeyEntry<K, [KeyWord; W], H>;

/// A key with a manager.
pub(super) type Active<K, H> = KeyEntry<K, Arc<Manager>, H>;

impl<K: Hash + Eq, V, H: KeptHash> KeyEntry<K, V, H> {
    pub(super) fn new(hash: u64, key: K, value: V) -> Self {
        Self {
            key,
            value,
            hash: H::keep(hash),
        }
    }

    #[inline(always)]
    pub(super) fn is(&self, hash: u64, key: &(impl KeyRef<K> + ?Sized)) -> bool {
        self.hash.may_be(hash) && key.is(&self.key)
    }

    pub(super) fn hash(&self, hasher: &SeedableRandomState) -> u64 {
        self.hash.of(&self.key, hasher)
    }
}

/// The hash that a table keeps beside a key, if any.
///
/// A table that moves keys needs their hashes under its lock. No foreign code may run there: it could panic halfway through, or
/// use the limiter. A lookup compares a key with several others, and each comparison of strings can be a cache miss. So the hash
/// is kept, and `Eq` is called only for keys with equal hashes. The hash takes 8 bytes a key, which makes the smallest entries
/// half as large again. [Numbers and addresses](is_plain) run no foreign code and lie in the table as a whole, so their hashes
/// are not kept.
pub(super) trait KeptHash: Copy + fmt::Debug + Send + 'static {
    /// Whether a method of the key may run foreign code, or copying the key may take long.
    const FOREIGN: bool;

    fn keep(hash: u64) -> Self;
    /// Whether a key with the hash `hash` may equal this key.
    fn may_be(self, hash: u64) -> bool;
    fn of<K: Hash>(self, key: &K, hasher: &SeedableRandomState) -> u64;
}

impl KeptHash for () {
    const FOREIGN: bool = false;

    fn keep(_: u64) -> Self {}

    #[inline(always)]
    fn may_be(self, _: u64) -> bool {
        true
    }

    fn of<K: Hash>(self, key: &K, hasher: &SeedableRandomState) -> u64 {
        hasher.hash_one(key)
    }
}

impl KeptHash for u64 {
    const FOREIGN: bool = true;

    fn keep(hash: u64) -> Self {
        hash
    }

    #[inline(always)]
    fn may_be(self, hash: u64) -> bool {
        self == hash
    }

    fn of<K: Hash>(self, _: &K, _: &SeedableRandomState) -> u64 {
        self
    }
}

/// Whether a key is a number or an address of the standard library.
pub(super) fn is_plain<K: 'static>() -> bool {
    macro_rules! any_of {
        ($($key:ty),*) => { [$(TypeId::of::<$key>()),*].contains(&TypeId::of::<K>()) };
    }
    any_of!(
        u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, bool, char, IpAddr,
        Ipv4Addr, Ipv6Addr, SocketAddr
    )
}

/// A borrowed form of a key: the key itself, or a type that it borrows as, such as `str` for a `String`.
pub(super) trait KeyRef<K>: Hash {
    /// Compares by the `Eq` of the borrowed form.
    fn is(&self, key: &K) -> bool;

    fn to_key(&self) -> K;
}

impl<Q: Hash + Eq + ToOwned + ?Sized> KeyRef<Q::Owned> for Q {
    #[inline(always)]
    fn is(&self, key: &Q::Owned) -> bool {
        let key: &Self = key.borrow();
        key == self
    }

    fn to_key(&self) -> Q::Owned {
        self.to_owned()
    }
}

/// The most words that the state of an idle key has.
const MAX_WORDS: usize = 4;

/// A word of the state of an idle key. A word is never zero, so that a free slot of a table takes no more memory than a key.
///
/// So one number cannot be stored, and the next number is stored in its place. The number is an instant some centuries away, or
/// nearly 2⁶⁴ units or parts. The state is then stricter by a nanosecond, a unit or a part.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyWord(NonZeroU64);

impl KeyWord {
    /// The number that cannot be stored. It is even, so the next number differs from it in one bit.
    const MISSING: u64 = u64::MAX - 3;
    pub(super) const ZERO: Self = Self::new(0);

    #[inline(always)]
    pub(super) const fn new(number: u64) -> Self {
        match NonZeroU64::new(number ^ Self::MISSING) {
            Some(word) => Self(word),
            None => Self(NonZeroU64::MIN),
        }
    }

    #[inline(always)]
    pub(super) const fn get(self) -> u64 {
        self.0.get() ^ Self::MISSING
    }
}

/// The state of one key: a word or two for each limit, next to each other.
///
/// It is a [`Gate`] without the parts that few keys need: leases, counts and refund bounds.
pub(super) struct IdleState<'a> {
    pub(super) plan: &'a Arc<Plan>,
    pub(super) words: &'a mut [KeyWord],
}

impl IdleState<'_> {
    /// Replaces the states, one for each limit.
    pub(super) fn restore(&mut self, states: impl Iterator<Item = StateWords>) {
        for ((rule, at), state) in self.plan.words().zip(states) {
            store(self.words, rule, at, state);
        }
    }

    /// Checks whether the cost can ever be admitted. No limit here counts by unit, because a key with such a limit has a gate.
    pub(super) fn fits(&self, cost: u64) -> Result<(), AcquireError> {
        self.plan.fits(Costs::plain(cost))
    }

    /// Charges all limits or none. Returns whether it charged them.
    #[inline(always)]
    pub(super) fn admit(&mut self, now: Moment, cost: u64) -> bool {
        if let Some(rule) = self.plan.only_rule() {
            if let Some(decided) = rule.decide_in_a_word(self.words[0].get(), now, cost) {
                return decided
                    .map(|next| self.words[0] = KeyWord::new(next))
                    .is_ok();
            }
            let Ok(next) = rule.decide(load(self.words, rule, 0), now, cost) else {
                return false;
            };
            store(self.words, rule, 0, next);
            return true;
        }
        self.admit_all(now, cost)
    }

    /// Charges one limit after the other. If one denies, restores all of them.
    fn admit_all(&mut self, now: Moment, cost: u64) -> bool {
        let mut before = [KeyWord::ZERO; MAX_WORDS];
        before[..self.words.len()].copy_from_slice(self.words);
        for (rule, at) in self.plan.words() {
            let Ok(next) = rule.decide(load(self.words, rule, at), now, cost) else {
                self.words.copy_from_slice(&before[..self.words.len()]);
                return false;
            };
            store(self.words, rule, at, next);
        }
        true
    }

    /// Records the denial of a request that does not wait, and returns it.
    #[inline(always)]
    pub(super) fn deny(
        &mut self,
        hold: Option<AllKeysHold>,
        now: Moment,
        cost: u64,
    ) -> TryAcquireError {
        if self.plan.counts_denials() {
            self.change(|rule, state| rule.note_denial(state, now, cost));
        }
        TryAcquireError::Denied(self.decide(hold, now, cost))
    }

    /// For each limit, the end of its ban, if the limit bans.
    pub(super) fn bans(&self, now: Moment) -> impl Iterator<Item = Option<Moment>> {
        self.states()
            .map(move |(rule, state)| rule.banned_until(state, now))
    }

    /// The decision. It takes `hold` into account.
    #[inline(always)]
    pub(super) fn decide(&self, hold: Option<AllKeysHold>, now: Moment, cost: u64) -> Decision {
        let decision = self.decide_alone(now, cost);
        match hold {
            None => decision,
            Some(hold) => hold.decide(decision, now),
        }
    }

    #[inline(always)]
    fn decide_alone(&self, now: Moment, cost: u64) -> Decision {
        let (policy, misfit) = (self.plan.policy(), self.plan.misfit(cost));
        let capacity = |by: usize| policy.limits()[by].capacity();
        if let Some(rule) = self.plan.only_rule() {
            let report = rule.report(load(self.words, rule, 0), now, 0, cost);
            return Decision::of_one(policy, misfit.is_some(), report, now, 0, capacity(0));
        }
        let reports = self
            .states()
            .map(|(rule, state)| rule.report(state, now, 0, cost));
        Decision::summarize(policy, misfit, reports, now, 0, capacity)
    }

    /// The status of each limit.
    pub(super) fn limits(&self, now: Moment) -> Vec<LimitStatus> {
        let status = |((rule, state), limit): ((&Rule, StateWords), &Limit)| {
            LimitStatus::new(*limit, limit.capacity(), rule.report(state, now, 0, 1), now)
        };
        self.states().zip(self.plan.limits()).map(status).collect()
    }

    /// The highest usage of any limit, in units.
    fn used(&self, now: Moment) -> u64 {
        self.states()
            .map(|(rule, state)| rule.usage(state, now).round_up())
            .max()
            .unwrap_or(0)
    }

    /// When the key equals a new one and can be forgotten.
    pub(super) fn reset_at(&self, now: Moment) -> Moment {
        self.states()
            .map(|(rule, state)| rule.forgettable_at(state, now))
            .max()
            .unwrap_or(now)
    }

    /// A gate with the state of the key, after `fence` grants.
    pub(super) fn gate(&self, fence: u64, now: Moment) -> Gate {
        Gate::resume(
            Arc::clone(self.plan),
            self.states().map(|(_, state)| state),
            fence,
            now,
        )
    }

    fn states(&self) -> impl Iterator<Item = (&Rule, StateWords)> {
        self.plan
            .words()
            .map(|(rule, at)| (rule, load(self.words, rule, at)))
    }

    /// Changes the state of each limit.
    pub(super) fn change(&mut self, change: impl Fn(&Rule, StateWords) -> StateWords) {
        for (rule, at) in self.plan.words() {
            let state = change(rule, load(self.words, rule, at));
            store(self.words, rule, at, state);
        }
    }
}

/// An idle key, under the lock of its shard.
pub(super) struct IdleKey<'a> {
    pub(super) state: IdleState<'a>,
    /// The pause or the closing of all keys, if there is one.
    pub(super) hold: Option<AllKeysHold>,
    /// The random part of the ids of permits of idle keys.
    pub(super) id_prefix: u64,
    /// The fence of the latest grant to an idle key of its shard.
    pub(super) fence: &'a mut u64,
    /// The number of denied requests of the idle keys of its shard.
    pub(super) denied: &'a mut u64,
    pub(super) now: Moment,
    pub(super) origin: ClockOrigin,
}

impl IdleKey<'_> {
    /// The data for the events of the request, read before the decision.
    #[cold]
    pub(super) fn attempt(&self, options: &RequestOptions) -> Attempt {
        Attempt {
            now: self.now,
            cost: options.cost,
            flow: options.flow_id(),
            requested_in: options.caller,
            bans: self.state.bans(self.now).collect(),
        }
    }

    #[inline(never)]
    pub(super) fn try_acquire(&mut self, cost: u64) -> Result<Permit, TryAcquireError> {
        self.state
            .fits(cost)
            .map_err(TryAcquireError::without_decision)?;
        self.admit(cost).ok_or_else(|| {
            *self.denied += 1;
            self.state.deny(self.hold, self.now, cost)
        })
    }

    /// Grants the request or changes nothing.
    #[inline(always)]
    pub(super) fn admit(&mut self, cost: u64) -> Option<Permit> {
        if self.hold.is_some() || !self.state.admit(self.now, cost) {
            return None;
        }
        *self.fence += 1;
        Some(Permit::idle(
            self.id_prefix,
            *self.fence,
            cost,
            self.now,
            self.origin,
        ))
    }
}

/// The numbers of one key at one instant. See [`KeyedLimiter::snapshot`](crate::KeyedLimiter::snapshot) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySnapshot {
    /// The usage in units, debts included: the highest usage of any limit. For a [`Penalty`](crate::Penalty), its counter, or at
    /// least its threshold while the key is banned.
    pub used: u64,
    /// The capacity of its tightest limit.
    pub limit: u64,
    /// The units that would be granted now.
    pub remaining: u64,
    /// How long until a unit would be granted, if no other request comes. `None` when one would be granted now, or when only a
    /// release helps.
    pub retry_after: Option<Duration>,
    /// How long until the key is reset, apart from permits in flight.
    pub reset_after: Duration,
    /// Units in flight.
    pub in_flight: u64,
    /// Requests that wait.
    pub queued: u64,
}

/// `42 of 100 used, 3 in flight, 1 queued; retry after 300ms`.
impl fmt::Display for KeySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            used,
            limit,
            in_flight,
            queued,
            ..
        } = self;
        write!(
            f,
            "{used} of {limit} used, {in_flight} in flight, {queued} queued"
        )?;
        match self.retry_after {
            Some(after) => write!(f, "; retry after {after:?}"),
            None => Ok(()),
        }
    }
}

impl KeySnapshot {
    fn new(used: u64, decision: &Decision, in_flight: u64, queued: u64) -> Self {
        Self {
            used,
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            in_flight,
            queued,
        }
    }

    pub(super) fn of_idle(
        key_state: &IdleState<'_>,
        hold: Option<AllKeysHold>,
        now: Moment,
    ) -> Self {
        Self::new(key_state.used(now), &key_state.decide(hold, now, 1), 0, 0)
    }

    pub(super) fn of_active(manager: &Arc<Manager>) -> Self {
        manager.ask(|outlook, now| {
            let totals = outlook.totals();
            let used = outlook.limits().used(now);
            Self::new(
                used,
                &outlook.check_one(now),
                totals.in_flight,
                totals.queued,
            )
        })
    }
}

#[inline(always)]
fn load(words: &[KeyWord], rule: &Rule, at: usize) -> StateWords {
    [
        words[at].get(),
        if rule.width() == 2 {
            words[at + 1].get()
        } else {
            0
        },
    ]
}

/// In one word only a debt of more than a century overflows. It is then stored as the highest number.
#[inline(always)]
fn store(words: &mut [KeyWord], rule: &Rule, at: usize, [low, high]: StateWords) {
    if rule.width() == 2 {
        words[at..at + 2].copy_from_slice(&[KeyWord::new(low), KeyWord::new(high)]);
    } else {
        words[at] = KeyWord::new(if high == 0 { low } else { u64::MAX });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_every_number_but_one_for_which_it_keeps_the_next() {
        for number in [
            0,
            1,
            2,
            u64::MAX / 2,
            u64::MAX - 5,
            u64::MAX - 4,
            u64::MAX - 2,
            u64::MAX - 1,
            u64::MAX,
        ] {
            assert_eq!(KeyWord::new(number).get(), number);
        }
        assert_eq!(KeyWord::new(u64::MAX - 3).get(), u64::MAX - 2);
        assert_eq!(size_of::<Option<(u64, [KeyWord; 1])>>(), 16);
    }
}
