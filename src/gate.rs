//! A policy with its state: admit, release, refund, reclaim; all limits or none. Pure: it is told the time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::arena::Key;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::lease::{Admission, Caller, Lease, Leases};
use crate::policy::{Limit, Policy};
use crate::strategy::{
    Align, ConcurrencyRule, ConcurrencyState, MAX_SPAN_NANOS, Moment, PaceRule, PaceState, Strategy, Trail, Verdict, WindowRule,
    WindowState,
};

/// Until when a denied cost must wait: an instant, or [`Moment::NEVER`] where it takes a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) until: Moment,
    /// Which limit of the policy denied: the one that takes longest.
    pub(crate) by: usize,
}

/// One limit with its state.
#[derive(Debug)]
enum Slot {
    Pace(PaceRule, PaceState, Trail),
    MaxConcurrency(ConcurrencyRule, ConcurrencyState),
    FixedWindow(WindowRule, WindowState),
}

/// Asks the rule of a slot a question about its state.
macro_rules! ask {
    ($slot:expr, |$rule:ident, $state:ident| $answer:expr) => {
        match $slot {
            Slot::Pace($rule, $state, _) => $answer,
            Slot::MaxConcurrency($rule, $state) => $answer,
            Slot::FixedWindow($rule, $state) => $answer,
        }
    };
}

impl Slot {
    /// `since_epoch`: the wall clock at [`Moment::START`].
    fn new(limit: &Limit, since_epoch: Duration) -> Self {
        match limit {
            Limit::Throttle(throttle) => {
                Self::Pace(throttle.rule().expect("checked"), PaceState::default(), Trail::new(Moment::START))
            }
            Limit::TokenBucket(bucket) if bucket.interval => {
                Self::FixedWindow(bucket.window(), bucket.window().initial(Moment::START))
            }
            Limit::TokenBucket(bucket) => {
                let rule = bucket.pace().expect("checked");
                Self::Pace(rule, rule.initial(Moment::START), Trail::new(Moment::START))
            }
            Limit::MaxConcurrency(concurrency) => {
                Self::MaxConcurrency(ConcurrencyRule { limit: concurrency.limit }, ConcurrencyState::default())
            }
            Limit::FixedWindow(window) => {
                let phase = match window.align {
                    Align::Creation => Some(0),
                    Align::FirstGrant => None,
                    Align::WallClock => Some((since_epoch.as_nanos() % window.period.as_nanos()) as u64),
                };
                Self::FixedWindow(
                    WindowRule { limit: window.limit, period: nanos(window.period), phase, taken: 0 },
                    WindowState::default(),
                )
            }
        }
    }

    /// Would the cost be admitted? If not, until when must it wait?
    fn peek(&self, now: Moment, cost: u64) -> Result<(), Moment> {
        ask!(self, |rule, state| wait(rule.decide(*state, now, cost)).map(drop))
    }

    /// Charges the cost if it is admitted.
    #[inline(always)]
    fn charge(&mut self, now: Moment, cost: u64) -> Result<(), Moment> {
        match self {
            Self::Pace(rule, state, trail) => {
                let next = wait(rule.decide(*state, now, cost))?;
                trail.note(rule, *state, now);
                *state = next;
            }
            Self::MaxConcurrency(rule, state) => *state = wait(rule.decide(*state, now, cost))?,
            Self::FixedWindow(rule, state) => *state = wait(rule.decide(*state, now, cost))?,
        }
        Ok(())
    }

    #[inline(always)]
    fn release(&mut self, cost: u64) {
        if let Self::MaxConcurrency(_, state) = self {
            *state = state.release(cost);
        }
    }

    /// Takes back what was charged at `at` and never used.
    fn refund(&mut self, at: Moment, cost: u64) {
        match self {
            Self::Pace(rule, state, trail) => *state = rule.refund(*state, trail, at, cost),
            Self::MaxConcurrency(_, state) => *state = state.release(cost),
            Self::FixedWindow(rule, state) => *state = rule.refund(*state, at, cost),
        }
    }
}

fn wait<S>(verdict: Verdict<S>) -> Result<S, Moment> {
    match verdict {
        Verdict::Granted(state) => Ok(state),
        Verdict::WaitUntil(at) => Err(at),
        Verdict::WaitForRelease => Err(Moment::NEVER),
    }
}

/// Finds the nonsense in a limit once, so that the strategies need not.
fn check(limit: &Limit) -> Result<(), ConfigError> {
    let limit = *limit;
    if limit.capacity() == 0 {
        return Err(ConfigError::ZeroLimit { limit });
    }
    let (duration, times) = match limit {
        Limit::Throttle(throttle) => (Some(throttle.interval), throttle.burst),
        Limit::TokenBucket(bucket) => (Some(bucket.rate.period()), 1),
        Limit::MaxConcurrency(concurrency) => (concurrency.ttl, 1),
        Limit::FixedWindow(window) => (Some(window.period), 1),
    };
    let Some(duration) = duration else { return Ok(()) };
    if duration.is_zero() {
        return Err(ConfigError::ZeroDuration { limit });
    }
    match duration.as_nanos().checked_mul(u128::from(times)) {
        Some(nanos) if nanos <= u128::from(MAX_SPAN_NANOS) => Ok(()),
        _ => Err(ConfigError::TooLong { limit, max: Duration::from_nanos(MAX_SPAN_NANOS) }),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A policy with its state.
#[derive(Debug)]
pub(crate) struct Gate {
    policy: Policy,
    /// The first limit of the policy, in line: most policies have but this one.
    first: Slot,
    rest: Vec<Slot>,
    leases: Option<Leases>,
    max_cost: u64,
    holds_places: bool,
    follows_time: bool,
    /// The fence of the latest grant: as many as were ever given.
    fence: u64,
}

impl Gate {
    /// `since_epoch` is the wall clock at [`Moment::START`]; `stamps` asks for the time of grants where the policy needs none.
    pub(crate) fn new(policy: Policy, since_epoch: Duration, stamps: bool) -> Result<Self, ConfigError> {
        let limits = policy.limits();
        limits.iter().try_for_each(check)?;
        let ttl = limits.iter().filter_map(|limit| match limit {
            Limit::MaxConcurrency(concurrency) => concurrency.ttl,
            _ => None,
        });
        let ttl = ttl.min().map(nanos);
        let counts_places = |limit: &Limit| matches!(limit, Limit::MaxConcurrency(_));
        Ok(Self {
            first: Slot::new(&limits[0], since_epoch),
            rest: limits[1..].iter().map(|limit| Slot::new(limit, since_epoch)).collect(),
            leases: ttl.map(Leases::new),
            max_cost: limits.iter().map(Limit::capacity).min().unwrap_or(0),
            holds_places: limits.iter().any(counts_places),
            follows_time: stamps || ttl.is_some() || !limits.iter().all(counts_places),
            fence: 0,
            policy,
        })
    }

    /// The largest cost that can ever be admitted.
    pub(crate) fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// Whether permits hold a place that must come back.
    pub(crate) fn holds_places(&self) -> bool {
        self.holds_places
    }

    /// Whether permits have a TTL.
    pub(crate) fn leases_permits(&self) -> bool {
        self.leases.is_some()
    }

    /// Whether `now` matters; where it does not, any will do.
    pub(crate) fn follows_time(&self) -> bool {
        self.follows_time
    }

    /// Units out that must come back.
    pub(crate) fn in_flight(&self) -> u64 {
        let in_use = |slot: &Slot| match slot {
            Slot::MaxConcurrency(_, state) => Some(state.in_use),
            _ => None,
        };
        self.slots().find_map(in_use).unwrap_or(0)
    }

    /// How many grants were ever given.
    pub(crate) fn granted(&self) -> u64 {
        self.fence
    }

    /// Charges all limits, or none.
    #[inline(always)]
    pub(crate) fn admit(&mut self, now: Moment, cost: u64, caller: Caller) -> Result<Admission, Denied> {
        if self.rest.is_empty() {
            self.first.charge(now, cost).map_err(|until| Denied { until, by: 0 })?;
        } else {
            self.peek(now, cost)?;
            for slot in self.slots_mut() {
                slot.charge(now, cost).expect("a limit charges what it has just said it admits");
            }
        }
        self.fence += 1;
        let fence = self.fence;
        let lease = self.leases.as_mut().map(|leases| leases.open(fence, cost, now, caller));
        Ok(Admission { fence, at: now, lease })
    }

    /// A permit comes back. `None` when it was reclaimed before: nothing changes.
    pub(crate) fn release(&mut self, fence: u64, cost: u64, lease: Option<Key>) -> Option<()> {
        self.end_lease(fence, lease)?;
        self.return_places(cost);
        Some(())
    }

    /// A grant comes back that nobody took. `None` when it was reclaimed before: nothing changes.
    pub(crate) fn refund(&mut self, admission: Admission, cost: u64) -> Option<()> {
        self.end_lease(admission.fence, admission.lease)?;
        self.slots_mut().for_each(|slot| slot.refund(admission.at, cost));
        Some(())
    }

    /// Takes back the permit whose TTL passed first, if one has.
    pub(crate) fn reclaim_one(&mut self, now: Moment) -> Option<Lease> {
        let lease = self.leases.as_mut()?.expire_one(now)?;
        self.return_places(lease.cost);
        Some(lease)
    }

    pub(crate) fn renew(&mut self, key: Key, fence: u64, now: Moment) -> bool {
        self.leases.as_mut().is_some_and(|leases| leases.renew(key, fence, now))
    }

    /// The lease of a permit, while it is live.
    pub(crate) fn live_lease(&mut self, key: Key, fence: u64, now: Moment) -> Option<&mut Lease> {
        self.leases.as_mut()?.get_mut(key, fence).filter(|lease| now < lease.expires_at)
    }

    /// The bells of holders who await a reclaim.
    pub(crate) fn bells(&self) -> impl Iterator<Item = &Arc<Notify>> {
        self.leases.iter().flat_map(Leases::bells)
    }

    #[inline(always)]
    pub(crate) fn next_expiry(&self) -> Moment {
        self.leases.as_ref().map_or(Moment::NEVER, Leases::next_expiry)
    }

    /// The earliest that `cost` can be admitted when `ahead` units go first; a lower bound, see [`Strategy::ready_at`].
    pub(crate) fn ready_at(&self, now: Moment, ahead: u64, cost: u64) -> Moment {
        self.slots().map(|slot| ask!(slot, |rule, state| rule.ready_at(*state, now, ahead, cost))).max().unwrap_or(now)
    }

    /// What a caller who does not wait is told, when `ahead` units wait before him.
    pub(crate) fn decide(&self, now: Moment, ahead: u64, cost: u64) -> Decision {
        let remaining = |slot: &Slot| ask!(slot, |rule, state| rule.remaining(*state, now));
        let scarcest = || self.slots().enumerate().min_by_key(|(_, slot)| remaining(slot)).map_or(0, |(index, _)| index);
        let slowest = || {
            let ready = |slot: &Slot| ask!(slot, |rule, state| rule.ready_at(*state, now, ahead, cost));
            self.slots().enumerate().max_by_key(|(_, slot)| ready(slot)).map_or(0, |(index, _)| index)
        };
        let too_large = self.policy.limits().iter().position(|limit| limit.capacity() < cost);
        let denied = match too_large {
            Some(by) => Err(Denied { until: Moment::NEVER, by }),
            None => self.peek(now, cost),
        };
        let (allowed, until, by) = match denied {
            Ok(()) if ahead == 0 => (true, now, scarcest()),
            Ok(()) => (false, self.ready_at(now, ahead, cost), slowest()),
            Err(Denied { until: Moment::NEVER, by }) => (false, Moment::NEVER, by),
            Err(Denied { by, .. }) => (false, self.ready_at(now, ahead, cost), if ahead == 0 { by } else { slowest() }),
        };
        let reset_at = self.slots().map(|slot| ask!(slot, |rule, state| rule.reset_at(*state, now))).max().unwrap_or(now);
        Decision {
            allowed,
            binding: self.policy.limits()[by],
            remaining: self.slots().map(remaining).min().unwrap_or(0),
            // Known to be later than now, or not known at all.
            retry_after: until.known().filter(|until| *until > now).map(|until| until.duration_since(now)),
            reset_after: reset_at.duration_since(now),
        }
    }

    fn peek(&self, now: Moment, cost: u64) -> Result<(), Denied> {
        let denials =
            self.slots().enumerate().filter_map(|(by, slot)| slot.peek(now, cost).err().map(|until| Denied { until, by }));
        // The first of the latest, so that the name does not depend on what else denies at the same instant.
        match denials.reduce(|first, other| if other.until > first.until { other } else { first }) {
            Some(denied) => Err(denied),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn end_lease(&mut self, fence: u64, lease: Option<Key>) -> Option<()> {
        match (&mut self.leases, lease) {
            (Some(leases), Some(key)) => leases.close(key, fence),
            _ => Some(()),
        }
    }

    #[inline(always)]
    fn return_places(&mut self, cost: u64) {
        self.first.release(cost);
        self.rest.iter_mut().for_each(|slot| slot.release(cost));
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn slots_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        std::iter::once(&mut self.first).chain(&mut self.rest)
    }
}
