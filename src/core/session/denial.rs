//! Denials by the store. A denial is remembered until the instant that the store named, or until a release.

use super::call::Random;
use crate::core::request::{Refused, RefusedRequest};
use crate::decision::Decision;
use crate::error::AcquireError;
use crate::exchange::{DeniedUntil, LimitReading, Reply};
use crate::policy::{Limit, Policy};
use crate::snapshot::LimitStatus;
use crate::strategy::{LimitReport, Moment};

/// The latest denial.
#[derive(Debug, Default)]
pub(super) struct Denials {
    pub(super) latest: Option<Denial>,
}

/// A denial by the store.
#[derive(Debug)]
pub(super) struct Denial {
    /// The costs of the first ask that was not granted, for each limit.
    costs: Box<[u64]>,
    /// When the costs are admitted, by the store's reply.
    pub(super) ready_at: Moment,
    /// When to ask again: at `ready_at`, unless a message has changed that.
    pub(super) until: Moment,
    /// Whether the store sets units aside for the requests that it denied.
    pub(super) is_in_line: bool,
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

impl Denial {
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

    /// Remembers the denial in a reply. `denied`: the costs of the first ask that it denied, and whether a request waits for any denied
    /// ask. `turn_came`: the store has reported a turn of this process during the call. `polls_every`: how often to ask while a place
    /// is awaited.
    pub(super) fn note_reply(
        &mut self,
        now: Moment,
        denied: Option<(Box<[u64]>, bool)>,
        reply: &Reply,
        turn_came: bool,
        polls_every: u64,
        random: Random,
    ) {
        self.latest = None;
        let (Some(stop), Some((costs, is_in_line))) = (reply.stop, denied) else {
            return;
        };
        let ready_at = match stop.until {
            DeniedUntil::Instant(at) => local(now, reply, at),
            DeniedUntil::Never => Moment::NEVER,
            DeniedUntil::Release { first_expiry } => {
                let polls_at = now.plus(random.around(polls_every));
                local(now, reply, first_expiry).min(polls_at)
            }
        };
        self.latest = Some(Denial {
            costs,
            ready_at,
            until: ready_at,
            is_in_line,
            ends_by_release: matches!(stop.until, DeniedUntil::Release { .. }),
            reply: reply.clone(),
            replied_at: now,
        });
        if turn_came {
            self.note_turn(now);
        }
    }

    /// Records that no request waits any more. Returns whether the store is to be told so.
    pub(super) fn leave_line(&mut self) -> bool {
        let denial = self.latest.as_mut();
        denial.is_some_and(|denial| std::mem::take(&mut denial.is_in_line))
    }

    /// Records that it is the turn of this process to take places: a denial that waits for a release ends.
    pub(super) fn note_turn(&mut self, now: Moment) {
        if let Some(denial) = &mut self.latest
            && denial.ends_by_release
        {
            denial.until = denial.until.min(now);
        }
    }

    /// Records that it is the turn of another process. If the turn of this one is `next`, it asks soon, in case the other one does
    /// not.
    pub(super) fn note_other_turn(&mut self, now: Moment, next: bool) {
        /// More than the store waits for the other process, in nanoseconds.
        const SOON: u64 = 30_000_000;
        if let Some(denial) = &mut self.latest
            && denial.ends_by_release
            && denial.until > now
        {
            let soon = if next { now.plus(SOON) } else { Moment::NEVER };
            denial.until = denial.ready_at.min(soon);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::DeniedAsk;

    const NOW: Moment = Moment::from_nanos(1_000);

    /// Costs of 2, denied until this instant of the store's clock, which is 500 behind.
    fn denials(until: DeniedUntil) -> Denials {
        let reply = Reply {
            now: 500,
            granted: 0,
            first_fence: 0,
            stop: Some(DeniedAsk { limit: 0, until }),
            limits: Vec::new(),
            lost: Vec::new(),
            reclaimed: 0,
        };
        let mut denials = Denials::default();
        let denied = Some((Box::from([2]), true));
        denials.note_reply(NOW, denied, &reply, false, u64::MAX, Random(0));
        denials
    }

    fn until(denials: &Denials) -> Option<Moment> {
        denials.latest.as_ref().map(|denial| denial.until)
    }

    #[test]
    fn a_denial_is_known_until_its_end_and_recent_until_a_call_would_have_ended() {
        let denials = denials(DeniedUntil::Instant(600));
        let known = |after, cost| denials.known(NOW.plus(after), || [cost].into()).is_some();
        assert_eq!([1, 2, 3].map(|cost| known(99, cost)), [false, true, true]);
        assert!(!known(100, 2));
        let recent = |after| denials.recent(NOW.plus(after), 10).is_some();
        assert_eq!([0, 99, 109, 110].map(recent), [true, true, true, false]);
    }

    #[test]
    fn a_turn_ends_only_a_denial_that_waits_for_a_release() {
        let mut denials = denials(DeniedUntil::Instant(600));
        denials.note_turn(NOW);
        assert_eq!(until(&denials), Some(NOW.plus(100)));
        for next in [true, false] {
            denials.note_other_turn(NOW, next);
            assert_eq!(until(&denials), Some(NOW.plus(100)));
        }
    }

    #[test]
    fn the_turn_of_another_process_takes_back_no_turn_that_came() {
        let soon = 30_000_000;
        let first_expiry = 500 + 2 * soon;
        let mut denials = denials(DeniedUntil::Release { first_expiry });
        denials.note_other_turn(NOW, true);
        assert_eq!(until(&denials), Some(NOW.plus(soon)));
        denials.note_other_turn(NOW, false);
        assert_eq!(until(&denials), Some(NOW.plus(2 * soon)));
        denials.note_turn(NOW.plus(1));
        denials.note_other_turn(NOW.plus(1), false);
        assert_eq!(until(&denials), Some(NOW.plus(1)));
    }
}
