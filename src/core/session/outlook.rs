//! Answers of a session without a call. They change nothing.

use super::denial::{Denial, Denied, statuses};
use super::{SessionStep, StoreSession};
use crate::core::gate::limits::Limits;
use crate::core::queue::Waiters;
use crate::core::request::Costs;
use crate::decision::Decision;
use crate::exchange::{OnStoreDown, Reply};
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

/// The state of a session with its waiters at one instant, to look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreOutlook<'a> {
    pub(super) now: Moment,
    pub(super) session: &'a StoreSession,
    pub(super) waiters: &'a Waiters,
}

impl StoreSession {
    /// A view for questions, which change nothing.
    pub(crate) fn outlook<'a>(&'a self, now: Moment, waiters: &'a Waiters) -> StoreOutlook<'a> {
        StoreOutlook {
            now,
            session: self,
            waiters,
        }
    }
}

impl SessionStep<'_> {
    pub(crate) fn outlook(&self) -> StoreOutlook<'_> {
        self.session.outlook(self.now, self.waiters)
    }
}

/// Denials.
impl<'a> StoreOutlook<'a> {
    fn limits(self) -> &'a Limits {
        self.session.gate.limits()
    }

    /// The latest denial of the store, if it is of these costs or less and holds. Units that this process returns may end it.
    fn binding_denial(self, costs: Costs<'_>) -> Option<&'a Denial> {
        let StoreSession {
            debts,
            calls,
            denials,
            ..
        } = self.session;
        if debts.has_unsent() || self.session.fallback.is_active || calls.gives_back() {
            return None;
        }
        denials.known(self.now, || self.limits().costs_of_each(costs))
    }

    /// Whether exactly these costs were denied. Then they are admitted at the instant of the denial.
    fn is_denial_of(self, denial: &Denial, costs: Costs<'_>) -> bool {
        denial.is_of(&self.limits().costs_of_each(costs))
    }

    /// Whether the store has denied exactly these costs, still would, and no penalty has to count the attempt.
    pub(super) fn is_known_denied(self, costs: Costs<'_>) -> bool {
        // The store tells only those that wait when places are free again.
        let denies =
            |denial: &Denial| denial.known_end().is_some() && self.is_denial_of(denial, costs);
        !self.limits().counts_denials() && self.binding_denial(costs).is_some_and(denies)
    }

    /// Until when requests of these costs are surely denied. `reported`: denials of other costs are ignored.
    pub(crate) fn denied_until(self, costs: Costs<'_>, reported: bool) -> Moment {
        self.binding_denial(costs)
            .filter(|denial| !reported || self.is_denial_of(denial, costs))
            .and_then(|denial| denial.known_end()?.known())
            .unwrap_or(self.now)
    }

    /// A denial of these costs, by the latest denial of the store. If there is none, or it is long past, the decision names no
    /// limit. It states when these costs are admitted only if the store has denied exactly these, or if the limiter is paused.
    pub(super) fn latest_denial(self, costs: Costs<'_>) -> Denied {
        let StoreSession {
            denials, options, ..
        } = self.session;
        let Some(denial) = denials.recent(self.now, options.deadline) else {
            return self.unknown_denial(self.waits_to_ask());
        };
        let (mut decision, limits) =
            denial.report(self.now, self.limits().policy(), costs.explained());
        if !self.is_denial_of(denial, costs) {
            decision = decision.refused();
        }
        if let Some(until) = self.waiters.paused_until(self.now) {
            decision = decision.held_back(until, self.now);
        }
        (decision, limits)
    }

    /// A denial that names no limit. It states when a pause ends.
    pub(super) fn unknown_denial(self, is_store_down: bool) -> Denied {
        let unknown = (self.limits().plan())
            .refused_decision(self.now)
            .paused(Moment::NEVER, self.now);
        let decision = match self.waiters.paused_until(self.now) {
            Some(until) => unknown.paused(until, self.now),
            None if is_store_down => unknown.without_store(),
            None => unknown,
        };
        (decision, Vec::new())
    }

    /// How a request is denied behind this number of waiting units, as far as is known without a call.
    pub(crate) fn known_denial(self, ahead: u64, costs: Costs<'_>) -> Denied {
        let Some(gate) = self.session.fallback.deciding() else {
            return self.latest_denial(costs);
        };
        let resumes_at = self.waiters.resumes_at(self.now, costs.plain);
        let limits = gate.limits();
        let decision = limits.decide_behind(self.now, ahead, costs, resumes_at);
        (decision, Vec::new()) // the store was not asked
    }
}

/// Calls.
impl StoreOutlook<'_> {
    /// Whether requests wait, and the store is not asked yet, because it has not answered.
    pub(super) fn waits_to_ask(self) -> bool {
        self.waits_for_store() && self.now < self.session.back_off.asks_from
    }

    /// Whether requests wait while the store does not answer.
    fn waits_for_store(self) -> bool {
        matches!(self.session.options.on_down, OnStoreDown::Deny)
    }

    /// When the next call is to be sent.
    pub(super) fn call_at(self) -> Moment {
        let StoreSession {
            debts, back_off, ..
        } = self.session;
        let settles_at = if debts.is_empty() {
            Moment::NEVER
        } else {
            back_off.settles_from.max(self.now)
        };
        let asks_at = if self.waits_for_store() {
            self.asks_at().max(back_off.asks_from)
        } else {
            self.asks_at() // by the other rules, a request has an answer at once
        };
        asks_at
            .min(settles_at)
            .min(self.leaves_at())
            .min(self.refill_at())
            .min(self.probes_at())
    }

    /// When the front may ask.
    pub(super) fn asks_at(self) -> Moment {
        let queue = &self.waiters.queue;
        let Some(front) = queue.front() else {
            return Moment::NEVER;
        };
        if self.waiters.refuses_waiters() || self.session.fallback.is_active {
            return Moment::NEVER;
        }
        let details = queue.cost_details(front.id);
        let costs = Costs::new(front.cost, &details);
        let resumes_at = self.waiters.resumes_at(self.now, costs.plain);
        if self.limits().counts_denials() && queue.tries().next().is_some() {
            return resumes_at; // the attempt is to be counted
        }
        let is_try = queue.is_try(front.id);
        match self.binding_denial(costs) {
            // A request that does not wait gets the instant at which its own costs are admitted.
            Some(denial)
                if !is_try || denial.known_end().is_some() && self.is_denial_of(denial, costs) =>
            {
                // After a try, the store does not know that a request waits for a release.
                let hears_of_release = denial.is_in_line || denial.known_end().is_some();
                if hears_of_release {
                    resumes_at.max(denial.until)
                } else {
                    resumes_at
                }
            }
            _ => resumes_at,
        }
    }

    /// When to tell the store that no request waits any more, for which it sets units aside: when they would be granted, because a
    /// request may come until then, or at once if that is late.
    fn leaves_at(self) -> Moment {
        /// Nanoseconds.
        const LATE: u64 = 50_000_000;
        let denial = self.session.denials.latest.as_ref();
        let in_line = denial.filter(|denial| denial.is_in_line && self.waiters.queue.is_empty());
        in_line.map_or(Moment::NEVER, |denial| {
            let is_late = denial.until.since(self.now) > LATE;
            if is_late {
                self.now
            } else {
                denial.until.max(self.now)
            }
        })
    }

    /// When a call is to find out whether the store answers again.
    fn probes_at(self) -> Moment {
        let is_awaited = self.session.fallback.probes
            || !self.waiters.queue.is_empty() && !self.waiters.refuses_waiters();
        if self.session.fallback.is_active && is_awaited {
            self.session.back_off.asks_from.max(self.now)
        } else {
            Moment::NEVER
        }
    }

    /// When more units are to be prefetched although no request waits, or the remaining ones are returned.
    fn refill_at(self) -> Moment {
        let StoreSession {
            prefetch,
            denials,
            back_off,
            ..
        } = self.session;
        if self.waiters.closed {
            return Moment::NEVER;
        }
        // During a pause, prefetched units are not granted.
        if !prefetch.runs_low() || self.waiters.suspension.is_some() {
            return prefetch.ends_at();
        }
        let denied_until = denials
            .latest
            .as_ref()
            .map_or(self.now, |denial| denial.until);
        denied_until.max(back_off.asks_from).min(prefetch.ends_at())
    }
}

/// Peeks.
impl StoreOutlook<'_> {
    /// The answer to a request without the store: that the limiter is closed or paused, or what this process decides while the store
    /// does not answer and is not to be asked again yet.
    pub(crate) fn check_here(self, costs: Costs<'_>) -> Option<Decision> {
        if self.waiters.closed || costs.plain == 0 {
            return Some(self.limits().plan().refused_decision(self.now));
        }
        let is_held_back = self.waiters.resumes_at(self.now, costs.plain) > self.now;
        let waits_to_probe =
            self.session.fallback.is_active && self.now < self.session.back_off.asks_from;
        let ahead = self.waiters.queue.units_ahead();
        (is_held_back || waits_to_probe).then(|| self.known_denial(ahead, costs).0)
    }

    /// The status of each limit in the reply to a [peek](super::StoreSession::peek).
    pub(super) fn peeked_limits(self, reply: &Reply) -> Vec<LimitStatus> {
        statuses(self.now, self.limits().policy(), reply, self.now)
    }
}
