//! The reference: what each rule says, applied to the list of all grants.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::queue::AnswerKind;
use crate::policy::{Limit, Policy};
use crate::priority::Priority;
use crate::strategy::{Align, FixedWindow, MaxConcurrency, SlidingMethod, SlidingWindow, Throttle, TokenBucket};

/// One grant that was ever given.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) at: u64,
    pub(super) cost: u64,
    /// Out, in a slot or with a holder.
    pub(super) held: bool,
    pub(super) expires: u64,
    /// As if it had never been given.
    pub(super) refunded: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) id: usize,
    pub(super) cost: u64,
    pub(super) priority: Priority,
    pub(super) deadline: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Naive {
    pub(super) limits: Vec<Limit>,
    pub(super) since_epoch: u64,
    pub(super) grants: Vec<Grant>,
    /// For each limit, the windows that a first grant opened: when each ends and the grants in it.
    pub(super) opened: Vec<Vec<(u64, Vec<usize>)>>,
    /// In arrival order.
    pub(super) queue: Vec<Waiting>,
    /// The answers given, by request.
    pub(super) answers: BTreeMap<usize, AnswerKind>,
    pub(super) granted_to: BTreeMap<usize, usize>,
    pub(super) closed: bool,
    /// When all that was due was done.
    settled: u64,
}

impl Naive {
    pub(super) fn new(policy: &Policy, since_epoch: u64) -> Self {
        Self {
            limits: policy.limits().to_vec(),
            since_epoch,
            grants: Vec::new(),
            opened: vec![Vec::new(); policy.limits().len()],
            queue: Vec::new(),
            answers: BTreeMap::new(),
            granted_to: BTreeMap::new(),
            closed: false,
            settled: 0,
        }
    }

    pub(super) fn admits(&self, limit: usize, now: u64, cost: u64) -> bool {
        let valid = || self.grants.iter().filter(|grant| !grant.refunded);
        match self.limits[limit] {
            Limit::Throttle(Throttle { interval, burst }) => self.paced(1, interval, (burst, burst), now, cost),
            Limit::TokenBucket(TokenBucket { rate, burst, each_period: true, initial }) => {
                let window = |at: u64| at / rate.period().as_nanos() as u64;
                let taken =
                    |in_window| valid().filter(|grant| window(grant.at) == in_window).map(|grant| grant.cost).sum::<u64>();
                let first = initial.unwrap_or(burst).min(burst) - taken(0);
                let tokens = (1..=window(now)).fold(first, |tokens, next| (tokens + rate.units()).min(burst) - taken(next));
                cost <= tokens
            }
            Limit::TokenBucket(TokenBucket { rate, burst, initial, .. }) => {
                self.paced(rate.units(), rate.period(), (burst, initial.unwrap_or(burst).min(burst)), now, cost)
            }
            Limit::SlidingWindow(SlidingWindow { limit, period, method: SlidingMethod::Log }) => {
                let still = |grant: &&Grant| grant.at + period.as_nanos() as u64 > now;
                valid().filter(still).map(|grant| grant.cost).sum::<u64>() + cost <= limit
            }
            Limit::SlidingWindow(SlidingWindow { limit, period, method: SlidingMethod::Counter }) => {
                let period = period.as_nanos() as u64;
                let units = |window: Option<u64>| -> u64 {
                    valid().filter(|grant| Some(grant.at / period) == window).map(|grant| grant.cost).sum()
                };
                let previous = units((now / period).checked_sub(1)) * (period - now % period);
                previous + (units(Some(now / period)) + cost) * period <= limit * period
            }
            Limit::Penalty(_) => unreachable!("not among the policies here: it has a model of its own"),
            Limit::MaxConcurrency(MaxConcurrency { limit, .. }) => {
                self.grants.iter().filter(|grant| grant.held).map(|grant| grant.cost).sum::<u64>() + cost <= limit
            }
            Limit::FixedWindow(FixedWindow { limit: units, period, align }) => {
                let period = period.as_nanos() as u64;
                let phase = if align == Align::WallClock { self.since_epoch } else { 0 };
                let window = |at: u64| (at + phase) / period;
                let used: u64 = match align {
                    Align::FirstGrant => {
                        let open = self.opened[limit].last().filter(|(ends, _)| now < *ends);
                        open.map_or(0, |(_, grants)| grants.iter().map(|&grant| self.grants[grant].cost).sum())
                    }
                    _ => valid().filter(|grant| window(grant.at) == window(now)).map(|grant| grant.cost).sum(),
                };
                used + cost <= units
            }
        }
    }

    /// `units` every `period`, `burst` at once: no span of time holds more than the burst and what its length brings.
    fn paced(&self, units: u64, period: Duration, (burst, initial): (u64, u64), now: u64, cost: u64) -> bool {
        let period = period.as_nanos() as u64;
        let taken_before = Grant { at: 0, cost: burst - initial, held: false, expires: u64::MAX, refunded: false };
        let grants: Vec<_> = std::iter::once(&taken_before).chain(self.grants.iter().filter(|grant| !grant.refunded)).collect();
        (0..=grants.len()).all(|first| {
            let taken: u64 = grants[first..].iter().map(|grant| grant.cost).sum::<u64>() + cost;
            let elapsed = grants.get(first).map_or(0, |grant| now - grant.at);
            taken * period <= burst * period + elapsed * units
        })
    }

    pub(super) fn admits_all(&self, now: u64, cost: u64) -> bool {
        (0..self.limits.len()).all(|limit| self.admits(limit, now, cost))
    }

    pub(super) fn grant(&mut self, now: u64, cost: u64) -> usize {
        let ttl = self.limits.iter().filter_map(|limit| match limit {
            Limit::MaxConcurrency(concurrency) => concurrency.ttl,
            _ => None,
        });
        let expires = ttl.min().map_or(u64::MAX, |ttl| now + ttl.as_nanos() as u64);
        let index = self.grants.len();
        self.grants.push(Grant { at: now, cost, held: true, expires, refunded: false });
        for (limit, opened) in self.limits.iter().zip(&mut self.opened) {
            if let Limit::FixedWindow(FixedWindow { period, align: Align::FirstGrant, .. }) = limit {
                match opened.last_mut().filter(|(ends, _)| now < *ends) {
                    Some((_, grants)) => grants.push(index),
                    None => opened.push((now + period.as_nanos() as u64, vec![index])),
                }
            }
        }
        index
    }

    pub(super) fn refund(&mut self, grant: usize) {
        if !self.grants[grant].held {
            return; // reclaimed before
        }
        (self.grants[grant].held, self.grants[grant].refunded) = (false, true);
        for opened in &mut self.opened {
            opened.iter_mut().for_each(|(_, grants)| grants.retain(|other| *other != grant));
            opened.retain(|(_, grants)| !grants.is_empty());
        }
    }

    pub(super) fn front(&self) -> Option<&Waiting> {
        let highest = self.queue.iter().map(|waiting| waiting.priority).max()?;
        self.queue.iter().find(|waiting| waiting.priority == highest)
    }

    pub(super) fn answer(&mut self, id: usize, answer: AnswerKind) {
        self.queue.retain(|waiting| waiting.id != id);
        self.answers.insert(id, answer);
    }

    pub(super) fn serve(&mut self, now: u64) {
        while let Some(Waiting { id, cost, .. }) = self.front().cloned().filter(|front| self.admits_all(now, front.cost)) {
            let grant = self.grant(now, cost);
            self.granted_to.insert(id, grant);
            self.answer(id, AnswerKind::Granted);
        }
    }

    /// All that is due. Whoever an undelayed timer would have refused before now is refused first.
    pub(super) fn settle(&mut self, now: u64) {
        if !self.closed && self.queue.iter().any(|waiting| waiting.deadline < now) {
            let mut in_time = self.clone();
            (self.settled..now).for_each(|instant| in_time.settle_at(instant));
            let late =
                |waiting: &&Waiting| waiting.deadline < now && in_time.answers.get(&waiting.id) == Some(&AnswerKind::Failed);
            for id in self.queue.iter().filter(late).map(|waiting| waiting.id).collect::<Vec<_>>() {
                self.answer(id, AnswerKind::Failed);
            }
        }
        self.settle_at(now);
        self.settled = now;
    }

    /// All that is due at one instant: reclaims, then grants, then timeouts.
    fn settle_at(&mut self, now: u64) {
        for grant in self.grants.iter_mut().filter(|grant| grant.expires <= now) {
            grant.held = false;
        }
        if self.closed {
            std::mem::take(&mut self.queue).iter().for_each(|waiting| {
                self.answers.insert(waiting.id, AnswerKind::Failed);
            });
        }
        self.serve(now);
        let late = |naive: &Self| {
            let late = naive.queue.iter().filter(|waiting| waiting.deadline <= now);
            late.min_by_key(|waiting| (waiting.deadline, Reverse(waiting.priority))).map(|waiting| waiting.id)
        };
        while let Some(id) = late(self) {
            self.answer(id, AnswerKind::Failed);
            self.serve(now);
        }
    }

    /// Would a newcomer be served by `deadline` if every holder released at once, and of those that wait only those gave up whose
    /// time is up by then?
    pub(super) fn could_be_served(&self, now: u64, waiting: Waiting, deadline: u64) -> bool {
        let mut best = self.clone();
        let id = waiting.id;
        best.grants.iter_mut().for_each(|grant| grant.held = false);
        best.queue.retain(|waiting| waiting.deadline > deadline);
        best.queue.iter_mut().for_each(|waiting| waiting.deadline = u64::MAX);
        best.queue.push(Waiting { deadline: u64::MAX, ..waiting });
        (now..=deadline).any(|at| {
            best.serve(at);
            best.grants.iter_mut().for_each(|grant| grant.held = false);
            best.answers.contains_key(&id)
        })
    }
}
