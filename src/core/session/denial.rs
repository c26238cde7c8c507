//! Denials by the store. A denial is remembered until the instant that the store named, or until a release.

use super::call::Random;
use crate::core::request::{Refused, RefusedRequest};
use crate::decision::Decision;
use crate::error::AcquireError;
use crate::exchange::{DeniedUntil, LimitReading, Reply};
use crate::policy::{Limit, Policy};
use crate::snapshot::LimitStatus;
use crate::strategy::{LimitReport, Moment};

/// The latest denial, and how often replies have denied.
#[derive(Debug, Default)]
pub(super) struct Denials {
    pub(super) latest: Option<Denial>,
    /// How many of the latest replies granted nothing, because other processes take what there is.
    in_a_row: u32,
}

/// A denial by the store.
#[derive(Debug)]
pub(super) struct Denial {
    /// The costs of the first ask that was not granted, for each limit.
    costs: Box<[u64]>,
    /// When the costs are admitted, by the store's reply.
    pub(super) ready_at: Moment,
    /// When to ask again: at `ready_at`, or a while later.
    pub(super) until: Moment,
    /// Whether a release may end it sooner.
    ends_by_release: bool,
    reply: Reply,
    replied_at: Moment,
}

/// The denial of a request: the decision, and the status of each limit if the request asked for it and the store has denied it.
pub(crate) type Denied = (Decision, Vec<LimitStatus>);

/// A request that does not wait for its turn times out at once.
pub(super) fn denied((decision, limits): Denied) -> Refused {
    let retry_after = decision.retry_after();
    let decision = Some(Box::new(decision));
    let error = AcquireError::TimedOut {
        retry_after,
        decision,
    };
    Box::new(RefusedRequest { error, limits })
}

/// The longest random addition to a wait, in nanoseconds.
const LONGEST_JITTER: u64 = 100_000_000;

impl Denial {
    /// When a waiter with this deadline asks again. One that may have given up by then asks as soon as the store may grant it.
    pub(super) fn asks_at(&self, deadline: Moment) -> Moment {
        if deadline <= self.until.plus(LONGEST_JITTER) {
            self.ready_at.min(self.until)
        } else {
            self.until
        }
    }

    /// When it ends by the passing of time, by the store's reply. `None` if a release may end it sooner.
    pub(super) fn known_end(&self) -> Option<Moment> {
        (!self.ends_by_release).then_some(self.ready_at)
    }

    /// The decision as of now, with the status of each limit if it `explains`.
    pub(super) fn report(&self, now: Moment, policy: &Policy, explains: bool) -> Denied {
        let explained = explains.then(|| statuses(now, policy, &self.reply, self.replied_at));
        let decision = decision(now, policy, &self.reply, self.replied_at);
        (decision, explained.unwrap_or_default())
    }

    /// Whether exactly these costs were denied. Then they are admitted at `ready_at`.
    pub(super) fn is_of(&self, costs: &[u64]) -> bool {
        *self.costs == *costs
    }
}

impl Denials {
    /// The latest denial, if it is of these costs or less, and holds.
    pub(super) fn known(&self, now: Moment, costs: impl FnOnce() -> Box<[u64]>) -> Option<&Denial> {
        let denial = self.latest.as_ref().filter(|denial| now < denial.until)?;
        let mut both = denial.costs.iter().zip(costs());
        both.all(|(denied, cost)| cost >= *denied).then_some(denial)
    }

    /// The latest denial, as long as it may hold. If the store has not answered within the `deadline` of a call after that,
    /// its answer is unknown.
    pub(super) fn recent(&self, now: Moment, deadline: u64) -> Option<&Denial> {
        self.latest
            .as_ref()
            .filter(|denial| now <= denial.replied_at || now < denial.until.plus(deadline))
    }

    /// Remembers the denial in a reply. `costs`: those of the first ask that it denied. `released`: places were released
    /// elsewhere during the call. `polls_every`: how often to ask while a place is awaited.
    pub(super) fn note_reply(
        &mut self,
        now: Moment,
        costs: Option<Box<[u64]>>,
        reply: &Reply,
        released: bool,
        polls_every: u64,
        random: Random,
    ) {
        // A grant halves the count and does not reset it. Otherwise the process that was granted last would ask first, again and
        // again.
        let is_denied = reply.granted == 0 && reply.stop.is_some();
        self.in_a_row = if is_denied {
            self.in_a_row.saturating_add(1).min(32)
        } else {
            self.in_a_row / 2
        };
        self.latest = None;
        let (Some(stop), Some(costs)) = (reply.stop, costs) else {
            return;
        };
        let (ready_at, until) = match stop.until {
            DeniedUntil::Instant(at) => {
                let at = local(now, reply, at);
                let jitter = self.retry_jitter(at.since(now), random);
                (at, at.plus(jitter))
            }
            DeniedUntil::Never => (Moment::NEVER, Moment::NEVER),
            DeniedUntil::Release { first_expiry } => {
                let polls_at = now.plus(random.around(polls_every));
                let until = local(now, reply, first_expiry).min(polls_at);
                (until, until)
            }
        };
        self.latest = Some(Denial {
            costs,
            ready_at,
            until,
            ends_by_release: matches!(stop.until, DeniedUntil::Release { .. }),
            reply: reply.clone(),
            replied_at: now,
        });
        if released {
            self.note_release(now, random);
        }
    }

    /// The delay after the instant at which to ask again, because other processes took all units at the last one. So few of many
    /// processes ask in vain. The delay is random: none after one denial, up to the `wait` for the instant after two, up to about
    /// twice as much after each further one, and 100 ms at most.
    fn retry_jitter(&self, wait: u64, random: Random) -> u64 {
        let doublings = self.in_a_row.saturating_sub(1).min(30);
        let longest = wait.saturating_mul((1 << doublings) - 1);
        random.below(longest.min(LONGEST_JITTER))
    }

    /// Records that places of the store were released somewhere: a denial that waits for one ends soon.
    pub(super) fn note_release(&mut self, now: Moment, random: Random) {
        /// A call takes about as long. Others may want the places, too.
        const CALL: u64 = 500_000;
        let asks_at = now.plus(self.retry_jitter(CALL, random));
        if let Some(denial) = &mut self.latest
            && denial.ends_by_release
        {
            denial.until = denial.until.min(asks_at);
        }
    }
}

/// An instant of the store on the local clock: never before it, if the clocks run equally fast.
fn local(now: Moment, reply: &Reply, at: u64) -> Moment {
    now.plus(at.saturating_sub(reply.now))
}

/// The decision, as of now, of a reply of `replied_at` on the first ask that it did not grant, or on a peek.
pub(super) fn decision(
    now: Moment,
    policy: &Policy,
    reply: &Reply,
    replied_at: Moment,
) -> Decision {
    let report = |(index, reading): (usize, &LimitReading)| {
        let stop = reply.stop.filter(|stop| stop.limit == index);
        let denied_until = stop.map(|stop| match stop.until {
            DeniedUntil::Instant(at) => local(replied_at, reply, at),
            DeniedUntil::Release { .. } | DeniedUntil::Never => Moment::NEVER,
        });
        LimitReport {
            denied_until,
            remaining: reading.remaining,
            ready_at: denied_until.unwrap_or(now),
            reset_at: local(replied_at, reply, reading.reset_at),
        }
    };
    let capacity = |by: usize| policy.limits()[by].capacity();
    let reports = reply.limits.iter().enumerate().map(report);
    Decision::summarize(policy, None, reports, now, 0, capacity)
}

/// The status of each limit in a reply of `replied_at`, as of now.
pub(super) fn statuses(
    now: Moment,
    policy: &Policy,
    reply: &Reply,
    replied_at: Moment,
) -> Vec<LimitStatus> {
    let status = |(limit, reading): (&Limit, &LimitReading)| {
        let report = LimitReport {
            denied_until: None,
            remaining: reading.remaining,
            ready_at: local(replied_at, reply, reading.available_at),
            reset_at: local(replied_at, reply, reading.reset_at),
        };
        LimitStatus::new(*limit, limit.capacity(), report, now)
    };
    let limits = policy.limits().iter().zip(&reply.limits);
    limits.map(status).collect()
}
