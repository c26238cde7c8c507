//! The reference: a policy, its queue and its slots, as naively as they can be written down.

use std::collections::BTreeMap;

use super::costs::{Cost, Settled, UNITS};
use super::flows::{Flow, NaiveFlows, Participant};
use super::limits::{Bound, NaiveLimit};
use super::quota::{Quota, Taken};
use crate::error::AcquireError;
use crate::overflow::Overflow;
use crate::policy::{Limit, Policy};
use crate::priority::Priority;
use crate::snapshot::LimiterSnapshot;
use crate::strategy::Counts;

/// The number of accounts: one for each thing that a limit counts.
const ACCOUNTS: usize = 2 + UNITS.len();

fn account_of(counts: Counts) -> usize {
    match counts {
        Counts::Cost => 0,
        Counts::Requests => 1,
        Counts::Unit(unit) => {
            2 + UNITS
                .iter()
                .position(|name| *name == unit.as_str())
                .unwrap()
        }
    }
}

/// One grant that was ever given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) cost: Cost,
    /// Whether it holds a place that must be released.
    pub(super) has_place: bool,
    /// Its units in each account.
    accounts: [u64; ACCOUNTS],
    /// The units that it holds for its flow.
    held: u64,
    /// Whether it is in flight: in a slot or with a holder, with its place.
    pub(super) is_out: bool,
    /// The start of its TTL; `None` if it was granted without one.
    pub(super) leased: Option<u64>,
    /// Its own TTL; the TTL of the policy is the most.
    own_ttl: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) id: usize,
    pub(super) cost: Cost,
    pub(super) priority: Priority,
    pub(super) deadline: u64,
}

/// When a new request would be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    At(u64),
    /// After the last instant that was checked.
    Later,
    /// Unknown: only a release or a resume helps.
    TakesARelease,
}

#[derive(Debug, Clone)]
pub(super) struct Reference {
    pub(super) now: u64,
    /// All that was due before this instant is done.
    pub(super) done_until: u64,
    since_epoch: u64,
    pub(super) limits: Vec<NaiveLimit>,
    /// The present value of each concurrency limit. For an adaptive one, only the bounds are checked; this is the schedule's own
    /// value.
    pub(super) concurrency: Vec<Option<u64>>,
    /// The accounts with units in flight that only former limits counted.
    accounts: Vec<usize>,
    /// By fence.
    pub(super) grants: BTreeMap<u64, Grant>,
    /// The waiters without an answer, in arrival order.
    pub(super) waiting: Vec<Waiting>,
    flows: NaiveFlows,
    /// Whether an unclear amount decides which flow is next. Then nothing more can be checked.
    pub(super) order_is_unclear: bool,
    /// The answers given: the fence, or an error of the same kind.
    pub(super) answers: BTreeMap<usize, Result<u64, AcquireError>>,
    pub(super) max_queue: usize,
    pub(super) overflow: Overflow,
    spread_below: u64,
    pub(super) paused_until: u64,
    blocked_until: u64,
    quota: Option<Quota>,
    newest_first: bool,
    pub(super) closed: bool,
    pub(super) draining: bool,
    pub(super) denied: u64,
    pub(super) shed: u64,
    pub(super) timed_out: u64,
    pub(super) reclaimed: u64,
    pub(super) refunded: u64,
    prefers_line: bool,
}

impl Reference {
    pub(super) fn new(
        policy: &Policy,
        since_epoch: u64,
        options: super::super::Options,
        prefers_line: bool,
    ) -> Self {
        let mut reference = Self {
            now: 0,
            done_until: 0,
            since_epoch,
            limits: policy
                .limits()
                .iter()
                .map(|limit| NaiveLimit::new(*limit, since_epoch, 0))
                .collect(),
            concurrency: Vec::new(),
            accounts: Vec::new(),
            grants: BTreeMap::new(),
            waiting: Vec::new(),
            flows: NaiveFlows::default(),
            order_is_unclear: false,
            answers: BTreeMap::new(),
            max_queue: options.max_queue.unwrap_or(usize::MAX),
            overflow: options.overflow,
            spread_below: options.spread_below,
            paused_until: 0,
            blocked_until: 0,
            quota: None,
            newest_first: options.newest_first,
            closed: false,
            draining: false,
            denied: 0,
            shed: 0,
            timed_out: 0,
            reclaimed: 0,
            refunded: 0,
            prefers_line,
        };
        reference.begin_lines();
        reference
    }

    fn begin_lines(&mut self) {
        let latest = self.prefers_line.then_some(self.grants.len() as u64);
        self.limits
            .iter_mut()
            .for_each(|limit| limit.line_after = latest);
    }

    // State.

    fn tightest(&self) -> Option<Limit> {
        let plain = self
            .limits
            .iter()
            .map(|limit| limit.limit)
            .filter(|limit| limit.counts() == Counts::Cost);
        plain.min_by_key(Limit::capacity)
    }

    pub(super) fn max_cost(&self) -> u64 {
        self.tightest().map_or(u64::MAX, |limit| limit.capacity())
    }

    pub(super) fn counts_by_unit(&self) -> bool {
        self.limits
            .iter()
            .any(|limit| limit.limit.counts() != Counts::Cost)
    }

    /// Why a request can never be admitted.
    pub(super) fn misfit(&self, cost: Cost) -> Option<AcquireError> {
        let exceeds = |limit: Box<Limit>, cost| AcquireError::ExceedsLimit {
            cost,
            max: limit.capacity(),
            limit,
        };
        if cost.plain == 0 {
            return Some(AcquireError::ZeroCost);
        }
        if let Some(limit) = self
            .tightest()
            .filter(|limit| cost.plain > limit.capacity())
        {
            return Some(exceeds(Box::new(limit), cost.plain));
        }
        self.limits
            .iter()
            .map(|limit| Box::new(limit.limit))
            .find_map(|limit| match (cost.of(limit.counts()), limit.counts()) {
                (Some(cost), _) if cost > limit.capacity() => Some(exceeds(limit, cost)),
                (None, Counts::Unit(unit)) => Some(AcquireError::MissingCost { unit, limit }),
                _ => None,
            })
    }

    fn ttl(&self) -> Option<u64> {
        let ttl = |limit: &NaiveLimit| {
            if let Limit::MaxConcurrency(concurrency) = limit.limit {
                concurrency.ttl
            } else {
                None
            }
        };
        self.limits
            .iter()
            .filter_map(ttl)
            .min()
            .map(|ttl| ttl.as_nanos() as u64)
    }

    /// The units in flight by the first concurrency limit, or by the first former one that counts any.
    pub(super) fn in_flight(&self) -> u64 {
        let first = self
            .limits
            .iter()
            .find(|limit| limit.counts_places())
            .map(|limit| account_of(limit.limit.counts()));
        let former = || {
            self.accounts
                .iter()
                .copied()
                .find(|account| self.out(*account) > 0)
        };
        first.or_else(former).map_or(0, |account| self.out(account))
    }

    /// The units in flight in this account.
    fn out(&self, account: usize) -> u64 {
        self.grants
            .values()
            .filter(|grant| grant.is_out)
            .map(|grant| grant.accounts[account])
            .sum()
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.grants.values().any(|grant| grant.is_out)
    }

    /// When the TTL of a grant in flight passes.
    pub(super) fn expires(&self, grant: &Grant) -> u64 {
        let ttl = self.ttl().into_iter().chain(grant.own_ttl).min();
        grant
            .leased
            .zip(ttl)
            .filter(|_| grant.is_out)
            .map_or(u64::MAX, |(from, ttl)| from + ttl)
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked_until > self.now
    }

    /// Whether anything but the policy holds back `cost` at an instant.
    pub(super) fn is_suspended(&self, at: u64, cost: Cost, bound: Bound) -> bool {
        let spreads = self
            .quota
            .as_ref()
            .is_some_and(|quota| quota.holds_back(at, cost.plain, bound));
        self.paused_until > at || self.blocked_until > at || spreads
    }

    /// Whether anything but the policy holds requests back, now or later.
    pub(super) fn is_unsuspended(&self) -> bool {
        self.paused_until <= self.now
            && self.blocked_until <= self.now
            && self.quota.as_ref().is_none_or(|q| q.until <= self.now)
    }

    /// Whether one limit admits `cost` at an instant at or after now, if nothing happens before.
    pub(super) fn limit_admits(&self, index: usize, at: u64, cost: Cost, bound: Bound) -> bool {
        let limit = &self.limits[index];
        let Some(cost) = cost.of(limit.limit.counts()) else {
            return false;
        };
        cost == 0 || self.limit_admits_units(index, at, cost, bound)
    }

    pub(super) fn limit_admits_units(
        &self,
        index: usize,
        at: u64,
        units: u64,
        bound: Bound,
    ) -> bool {
        if self.limits[index].counts_places() {
            return self.concurrency[index].is_none_or(|most| {
                self.out(account_of(self.limits[index].limit.counts())) + units <= most
            });
        }
        self.limits[index].admits(at, units, bound)
    }

    pub(super) fn policy_admits(&self, at: u64, cost: Cost, bound: Bound) -> bool {
        (0..self.limits.len()).all(|index| self.limit_admits(index, at, cost, bound))
    }

    pub(super) fn may_admit(&self, at: u64, cost: Cost) -> bool {
        !self.is_suspended(at, cost, Bound::Least) && self.policy_admits(at, cost, Bound::Least)
    }

    pub(super) fn must_admit(&self, at: u64, cost: Cost) -> bool {
        !self.is_suspended(at, cost, Bound::Most) && self.policy_admits(at, cost, Bound::Most)
    }

    /// The limits that count no named unit.
    pub(super) fn unnamed_limits(&mut self) -> impl Iterator<Item = &mut NaiveLimit> {
        self.limits
            .iter_mut()
            .filter(|limit| !matches!(limit.limit.counts(), Counts::Unit(_)))
    }

    pub(super) fn front(&self) -> Option<Waiting> {
        let highest = self.waiting.iter().map(|waiting| waiting.priority).max()?;
        let mut waiting: Vec<_> = self
            .waiting
            .iter()
            .filter(|waiting| waiting.priority == highest)
            .collect();
        if self.newest_first {
            waiting.reverse();
        }
        let reserved = &self.flows.reserved;
        if let Some(reserved) = waiting
            .iter()
            .find(|waiting| reserved.contains(&waiting.id))
        {
            return Some(**reserved);
        }
        let (_, first) = self.first_of(&waiting, 0)?;
        Some(*first)
    }

    /// The first of these requests by the participants that they count for: of those at this depth, then of those within the chosen
    /// one. And its place among these requests.
    fn first_of<'a>(&self, waiting: &[&'a Waiting], depth: usize) -> Option<(usize, &'a Waiting)> {
        let participant = |waiting: &Waiting| {
            let all = Participant::all_of(waiting.cost.flow);
            all.get(depth).map(|(participant, _)| *participant)
        };
        let mut participants: Vec<_> = waiting.iter().map(|waiting| participant(waiting)).collect();
        participants.sort();
        participants.dedup();
        let next_of = |of: Option<Participant>| {
            let mut all = waiting.iter().enumerate();
            let Some(of) = of else {
                return all.next().map(|(place, first)| (place, *first));
            };
            let all = all.filter(|(_, waiting)| participant(waiting) == Some(of));
            let (places, all): (Vec<_>, Vec<_>) = all.unzip();
            let (nth, first) = self.first_of(&all, depth + 1)?;
            Some((places[nth], first))
        };
        let share = |of: Option<Participant>| {
            of.map(|of| self.flows.share(of, |participant| self.held(participant)))
        };
        let next = participants
            .into_iter()
            .filter_map(|of| Some((share(of), next_of(of)?)));
        next.min_by_key(|(share, (place, _))| (*share, *place))
            .map(|(_, next)| next)
    }

    /// The units that the permits of a participant hold.
    fn held(&self, participant: Participant) -> u64 {
        let held = |is_counted: &dyn Fn(&Grant) -> bool| -> u64 {
            let out = self.grants.values().filter(|grant| grant.is_out);
            out.filter(|grant| is_counted(grant))
                .map(|grant| grant.held)
                .sum()
        };
        if participant == Participant::Unnamed {
            let of_flows = held(&|grant| grant.cost.flow.is_some());
            return self.in_flight().saturating_sub(of_flows);
        }
        held(&|grant| participant.counts(grant.cost.flow))
    }

    /// A request begins to wait.
    pub(super) fn enter(&mut self, newcomer: Waiting) {
        self.flows.join(newcomer.cost.flow, &self.waiting);
        self.waiting.push(newcomer);
        self.tidy();
    }

    /// A request waits no more.
    pub(super) fn leave(&mut self, id: usize) {
        self.waiting.retain(|waiting| waiting.id != id);
        self.tidy();
    }

    fn tidy(&mut self) {
        let mut flows = std::mem::take(&mut self.flows);
        flows.tidy(&self.waiting, self.in_flight(), |participant| {
            self.held(participant)
        });
        self.flows = flows;
    }

    /// Before anything that may change the order: the front is not passed if a unit of what it asks for is free.
    pub(super) fn reserve(&mut self) {
        if self.newest_first || self.flows.is_empty() {
            return;
        }
        self.reserve_by_any_bound();
    }

    /// Before a request of this flow: from now on, flows share.
    pub(super) fn expect(&mut self, flow: Option<Flow>) {
        if self.flows.is_empty() {
            self.flows.reserved.clear();
        }
        if flow.is_some() && !self.newest_first {
            self.reserve_by_any_bound();
        }
    }

    fn reserve_by_any_bound(&mut self) {
        let has_room = [Bound::Least, Bound::Most].map(|bound| self.front_has_room(bound));
        match has_room {
            [true, true] => self.reserve_front(),
            [false, false] => {}
            _ => self.order_is_unclear = true,
        }
    }

    fn reserve_by(&mut self, bound: Bound) {
        if !self.newest_first && !self.flows.is_empty() && self.front_has_room(bound) {
            self.reserve_front();
        }
    }

    fn front_has_room(&self, bound: Bound) -> bool {
        let Some(front) = self.front() else {
            return false;
        };
        let has_room = |(index, limit): (usize, &NaiveLimit)| {
            let units = front.cost.of(limit.limit.counts());
            units == Some(0) || self.limit_admits_units(index, self.now, 1, bound)
        };
        !self.is_suspended(self.now, front.cost, bound)
            && self.limits.iter().enumerate().all(has_room)
    }

    fn reserve_front(&mut self) {
        if let Some(front) = self.front() {
            self.flows.reserved.push(front.id);
        }
    }

    /// Whether it is closed, and those that wait are not served any more.
    pub(super) fn refuses_waiters(&self) -> bool {
        self.closed && !self.draining
    }

    /// The waiter whose deadline has passed: of several the earliest, and of equal ones the one that is served first.
    pub(super) fn expired(&self) -> Option<Waiting> {
        let expired = self
            .waiting
            .iter()
            .filter(|waiting| waiting.deadline <= self.now);
        expired
            .min_by_key(|waiting| (waiting.deadline, std::cmp::Reverse(waiting.priority)))
            .copied()
    }

    /// A full queue drops the waiter that its rule names, and no other. Returns whether there is room for a request of this
    /// priority.
    pub(super) fn make_room(&mut self, newcomer: Waiting) -> bool {
        if self.waiting.len() < self.max_queue {
            return true;
        }
        if let Overflow::Block { .. } = self.overflow {
            self.shed += self.waiting.len() as u64 + 1;
            self.refuse_all(&AcquireError::Shed { retry_after: None });
            self.block();
            return false;
        }
        self.shed += 1;
        let victim = self.victim(newcomer);
        if let Some(victim) = victim {
            self.answer(victim.id, Err(AcquireError::Shed { retry_after: None }));
        }
        victim.is_some()
    }

    fn victim(&self, newcomer: Waiting) -> Option<Waiting> {
        let priority = newcomer.priority;
        match self.overflow {
            Overflow::Reject | Overflow::Block { .. } => None,
            Overflow::DropOldest => self.waiting.first().copied(),
            Overflow::DropLowestPriority => {
                let lowest = self.waiting.iter().map(|waiting| waiting.priority).min()?;
                let mut last = self
                    .waiting
                    .iter()
                    .filter(|waiting| waiting.priority == lowest);
                let last = if self.newest_first {
                    last.next()
                } else {
                    last.next_back()
                };
                last.filter(|_| lowest < priority).copied()
            }
            Overflow::DropLongest => self.newest_of_longest(newcomer, 0, &self.waiting),
            Overflow::Leak => {
                let lowest = self.waiting.iter().map(|waiting| waiting.priority).min()?;
                self.waiting
                    .iter()
                    .find(|waiting| waiting.priority == lowest)
                    .filter(|_| lowest <= priority)
                    .copied()
            }
        }
    }

    /// The request that a newcomer replaces: the newest one of the longest participant at this depth, or within its own one if that is
    /// the longest with the newcomer.
    fn newest_of_longest(
        &self,
        newcomer: Waiting,
        depth: usize,
        waiting: &[Waiting],
    ) -> Option<Waiting> {
        let (length, victim) = self.longest(depth, waiting)?;
        let (own, weight) = *Participant::all_of(newcomer.cost.flow).get(depth)?;
        let members = members_of(own, waiting);
        if self.flows.length(members.len() + 1, weight) < length {
            return Some(victim).filter(|victim| victim.priority <= newcomer.priority);
        }
        self.newest_of_longest(newcomer, depth + 1, &members)
    }

    /// The length of the longest participant at this depth, and the request of it that would be dropped.
    fn longest(&self, depth: usize, waiting: &[Waiting]) -> Option<(u64, Waiting)> {
        let lengths = waiting.iter().filter_map(|one| {
            let (participant, _) = *Participant::all_of(one.cost.flow).get(depth)?;
            let members = members_of(participant, waiting);
            let weight = self.flows.weight(participant);
            let victim = match self.longest(depth + 1, &members) {
                Some((_, victim)) => victim,
                None => *members
                    .iter()
                    .min_by_key(|waiting| (waiting.priority, std::cmp::Reverse(waiting.id)))?,
            };
            Some((self.flows.length(members.len(), weight), victim))
        });
        lengths.max_by_key(|(length, victim)| (*length, victim.id))
    }

    /// Whether a new request would be the next to be served.
    pub(super) fn goes_first(&self, newcomer: Waiting) -> bool {
        let mut with_newcomer = self.clone();
        with_newcomer.enter(newcomer);
        with_newcomer.front().map(|front| front.id) == Some(newcomer.id)
    }

    /// Where it is open how penalties were counted: each way that is possible. Several ways at once are not a state that can be.
    pub(super) fn each_way(&self) -> Vec<Self> {
        let mut all = vec![self.clone()];
        for (index, limit) in self.limits.iter().enumerate() {
            let ways = limit.each_way();
            let with = |reference: Self| {
                ways.iter().map(move |way| {
                    let mut reference = reference.clone();
                    reference.limits[index] = way.clone();
                    reference
                })
            };
            all = all.into_iter().flat_map(with).collect();
        }
        all
    }

    /// Whether a new request would be served by its deadline if no other request came, and no waiter left except at its deadline.
    /// From the instant at which the front needs a release or a resume, it is assumed that every place is released, that the
    /// pause has ended, and that all waiters have left that leave by that deadline.
    pub(super) fn could_be_served(&self, newcomer: Waiting, bound: Bound) -> bool {
        let (mut best, mut releases) = (self.clone(), false);
        let is_before = |waiting: &Waiting| {
            let own = |waiting: &Waiting| {
                Participant::all_of(waiting.cost.flow)
                    .last()
                    .map(|own| own.0)
            };
            waiting.priority > newcomer.priority || own(waiting) == own(&newcomer)
        };
        if self.waiting.len() >= self.max_queue
            && let Some(victim) = self.victim(newcomer)
        {
            best.waiting.retain(|waiting| waiting.id != victim.id);
        }
        best.enter(newcomer);
        for now in self.now..=newcomer.deadline {
            best.now = now;
            loop {
                best.grant_all(bound);
                let needs_release =
                    |front: Waiting| best.paused_until == u64::MAX || best.lacks_places(front.cost);
                if !releases && best.front().is_some_and(needs_release) {
                    releases = true;
                    best.concurrency.fill(None);
                    if best.paused_until == u64::MAX {
                        best.paused_until = 0;
                        best.quota = None;
                    }
                    best.waiting.retain(|waiting| {
                        waiting.id == newcomer.id
                            || waiting.deadline > newcomer.deadline && is_before(waiting)
                    });
                    continue;
                }
                let Some(expired) = best.expired() else { break };
                best.time_out(expired.id);
            }
            if let Some(answer) = best.answers.get(&newcomer.id) {
                return answer.is_ok();
            }
        }
        false
    }

    /// The waiters whose deadline passed before now and before their turn: those that a punctual timer would have refused.
    pub(super) fn refused_in_time(&self, bound: Bound) -> Vec<usize> {
        let is_late = |waiting: &&Waiting| waiting.deadline < self.now;
        if self.refuses_waiters() || !self.waiting.iter().any(|waiting| is_late(&waiting)) {
            return Vec::new();
        }
        let mut in_time = self.clone();
        for now in self.done_until..self.now {
            in_time.now = now;
            in_time.reserve_by(bound);
            in_time.reclaim();
            in_time.grant_all(bound);
            while let Some(expired) = in_time.expired() {
                in_time.answer(expired.id, Err(AcquireError::Closed));
                in_time.grant_all(bound);
            }
        }
        let is_refused =
            |waiting: &&Waiting| matches!(in_time.answers.get(&waiting.id), Some(Err(_)));
        self.waiting
            .iter()
            .filter(is_late)
            .filter(is_refused)
            .map(|waiting| waiting.id)
            .collect()
    }

    /// When a new request behind all waiters would be granted `cost`, if nothing were released and no other request came; and all
    /// grants until then: when, and to which request.
    pub(super) fn turn_of_new_request(
        &self,
        cost: Cost,
        latest: u64,
        bound: Bound,
    ) -> (Turn, Vec<(u64, usize)>) {
        let (mut naive, mut grants) = (self.clone(), Vec::new());
        for now in self.now..=latest {
            naive.now = now;
            loop {
                while let Some(front) = naive
                    .front()
                    .filter(|front| naive.admits(front.cost, bound))
                {
                    grants.push((now, front.id));
                    naive.grant_to(front);
                }
                let next = naive.front().map_or(cost, |front| front.cost);
                if naive.paused_until == u64::MAX || naive.lacks_places(next) {
                    return (Turn::TakesARelease, grants);
                }
                let Some(expired) = naive.expired() else {
                    break;
                };
                naive.time_out(expired.id);
            }
            if naive.waiting.is_empty() && naive.admits(cost, bound) {
                return (Turn::At(now), grants);
            }
        }
        (Turn::Later, grants)
    }

    fn lacks_places(&self, cost: Cost) -> bool {
        let mut limits = self.limits.iter().enumerate();
        limits.any(|(index, limit)| {
            limit.counts_places() && !self.limit_admits(index, self.now, cost, Bound::Most)
        })
    }

    fn admits(&self, cost: Cost, bound: Bound) -> bool {
        !self.is_suspended(self.now, cost, bound) && self.policy_admits(self.now, cost, bound)
    }

    fn grant_all(&mut self, bound: Bound) {
        while let Some(front) = self.front().filter(|front| self.admits(front.cost, bound)) {
            self.grant_to(front);
        }
        self.reserve_by(bound);
    }

    // Events.

    pub(super) fn grant(&mut self, cost: Cost) -> u64 {
        let (now, fence) = (self.now, self.grants.len() as u64 + 1);
        let mut accounts = [0; ACCOUNTS];
        for limit in &mut self.limits {
            let units = cost.of(limit.limit.counts()).unwrap();
            if limit.counts_places() {
                accounts[account_of(limit.limit.counts())] = units;
            } else if units > 0 {
                limit.charge(now, units, Some(fence));
            }
        }
        if let Some(quota) = &mut self.quota {
            quota.taken.push(Taken {
                fence,
                at: now,
                used: cost.plain,
                paced: cost.plain,
            });
        }
        let has_place = accounts.iter().any(|units| *units > 0);
        let first = self.limits.iter().find(|limit| limit.counts_places());
        let held = first.map_or(0, |limit| cost.of(limit.limit.counts()).unwrap());
        let waits = |participant: Participant| {
            let mut waiting = self.waiting.iter();
            waiting.any(|waiting| participant.counts(waiting.cost.flow))
        };
        let own = Participant::all_of(cost.flow).last().map(|own| own.0);
        if held > 0 && cost.flow.is_some() && !own.is_some_and(waits) {
            self.flows.join(cost.flow, &self.waiting);
        }
        let leased = self.ttl().filter(|_| has_place).map(|_| now);
        let units = if self.counts_by_unit() {
            cost.units
        } else {
            [None; 2]
        }; // otherwise they are not recorded
        let cost = Cost { units, ..cost };
        if !self.counts_by_unit() && !self.is_in_flight() {
            self.accounts.clear(); // all that former policies counted was released
        }
        for account in self.accounts.iter().filter(|_| has_place) {
            accounts[*account] = match account {
                0 => cost.plain,
                1 => 1,
                unit => cost.units[unit - 2].unwrap_or(0),
            };
        }
        self.grants.insert(
            fence,
            Grant {
                cost,
                has_place,
                accounts,
                held,
                is_out: has_place,
                leased,
                own_ttl: None,
            },
        );
        self.tidy();
        fence
    }

    /// Grants a request that does not wait.
    pub(super) fn grant_at_once(&mut self, cost: Cost) -> u64 {
        let fence = self.grant(cost);
        if cost.flow.is_some() || !self.flows.is_empty() {
            self.flows.join(cost.flow, &self.waiting);
            self.flows.serve(cost.flow, cost.plain);
            self.tidy();
        }
        fence
    }

    pub(super) fn grant_to(&mut self, Waiting { id, cost, .. }: Waiting) {
        let fence = self.grant(cost);
        self.flows.serve(cost.flow, cost.plain);
        self.answer(id, Ok(fence));
    }

    pub(super) fn answer(&mut self, id: usize, answer: Result<u64, AcquireError>) {
        self.leave(id);
        self.answers.insert(id, answer);
    }

    pub(super) fn time_out(&mut self, id: usize) {
        self.timed_out += 1;
        self.answer(
            id,
            Err(AcquireError::TimedOut {
                retry_after: None,
                decision: None,
            }),
        );
    }

    pub(super) fn refuse_all(&mut self, error: &AcquireError) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.answers.insert(waiting.id, Err(error.clone()));
        }
        self.tidy();
    }

    pub(super) fn reclaim(&mut self) {
        let expired = self
            .grants
            .iter()
            .filter(|(_, grant)| self.expires(grant) <= self.now);
        for fence in expired.map(|(fence, _)| *fence).collect::<Vec<_>>() {
            self.reclaimed += 1;
            self.grants.get_mut(&fence).unwrap().is_out = false;
        }
        self.tidy();
    }

    /// Releases the place of a permit. Returns whether it is live: not reclaimed before.
    pub(super) fn give_back(&mut self, fence: u64) -> bool {
        let grant = self.grants.get_mut(&fence).unwrap();
        let was_out = std::mem::replace(&mut grant.is_out, false);
        let is_live = was_out || !grant.has_place;
        self.tidy();
        is_live
    }

    /// Releases a permit whose work really cost `actual`. Returns whether it is live.
    pub(super) fn settle(&mut self, fence: u64, actual: Settled) -> bool {
        let (now, cost) = (self.now, self.grants[&fence].cost);
        if !self.give_back(fence) {
            return false;
        }
        let is_refund =
            actual == Settled::Nothing || actual == Settled::Cost(0) && !self.counts_by_unit();
        self.refunded += u64::from(is_refund);
        if let Some(quota) = &mut self.quota {
            let plain = actual.of(Counts::Cost, cost.plain);
            quota.settle(fence, cost.plain, plain, fence == self.grants.len() as u64);
        }
        for limit in self
            .limits
            .iter_mut()
            .filter(|limit| !limit.counts_places())
        {
            let counts = limit.limit.counts();
            let cost = cost.of(counts).unwrap_or(0);
            let actual = actual.of(counts, cost);
            if actual > cost {
                limit.charge(now, actual - cost, None);
            } else if actual < cost {
                limit.refund(now, fence, cost, actual);
            }
        }
        true
    }

    /// Returns whether the permit is live.
    pub(super) fn renew(&mut self, fence: u64) -> bool {
        let (now, expires) = (self.now, self.expires(&self.grants[&fence]));
        let grant = self.grants.get_mut(&fence).unwrap();
        let is_live = grant.is_out && now < expires;
        if is_live {
            grant.leased = Some(now);
        }
        is_live
    }

    /// Returns whether the permit is live then.
    pub(super) fn set_own_ttl(&mut self, fence: u64, ttl: u64, renews: bool) -> bool {
        let (now, expires) = (self.now, self.expires(&self.grants[&fence]));
        let grant = self.grants.get_mut(&fence).unwrap();
        if !grant.is_out || now >= expires {
            return false;
        }
        grant.own_ttl = Some(ttl);
        if renews {
            grant.leased = Some(now);
        }
        now < self.expires(&self.grants[&fence])
    }

    /// A concurrency limit takes over the units of one that counted the same, or else those of the first one that counts any.
    fn count_in_flight_by(&mut self, policy: &Policy) {
        let places = policy
            .limits()
            .iter()
            .filter(|limit| matches!(limit, Limit::MaxConcurrency(_)));
        let new: Vec<usize> = places.map(|limit| account_of(limit.counts())).collect();
        let mut old: Vec<usize> = self
            .limits
            .iter()
            .filter(|limit| limit.counts_places())
            .map(|limit| account_of(limit.limit.counts()))
            .collect();
        old.extend(
            self.accounts
                .iter()
                .filter(|account| self.out(**account) > 0),
        );
        let in_use: Vec<usize> = old
            .iter()
            .copied()
            .filter(|account| self.out(*account) > 0)
            .collect();
        let source = |account: usize| {
            if old.contains(&account) {
                Some(account)
            } else {
                in_use.first().copied()
            }
        };
        let is_kept = |account: usize| !new.contains(&account) && in_use.contains(&account);
        for grant in self.grants.values_mut().filter(|grant| grant.is_out) {
            let counted = |account| match source(account) {
                _ if is_kept(account) => grant.accounts[account],
                Some(source) if new.contains(&account) => grant.accounts[source],
                _ => 0,
            };
            grant.accounts = std::array::from_fn(counted);
        }
        let mut kept = in_use
            .iter()
            .copied()
            .filter(|account| is_kept(*account))
            .collect::<Vec<_>>();
        kept.dedup();
        self.accounts = kept;
    }

    /// Each new limit takes over from the one like it, or else from one of its kind, or else from any that is left, if it counts the
    /// same.
    pub(super) fn set_policy(&mut self, policy: &Policy, in_proportion: bool) {
        let (now, since_epoch) = (self.now, self.since_epoch);
        let is_like: [fn(&Limit, &Limit) -> bool; 3] = [
            |old, new| old == new,
            |old, new| std::mem::discriminant(old) == std::mem::discriminant(new),
            |_, _| true,
        ];
        self.count_in_flight_by(policy);
        let mut old: Vec<_> = std::mem::take(&mut self.limits)
            .into_iter()
            .filter(|limit| !limit.counts_places())
            .collect();
        let mut new: Vec<_> = policy.limits().iter().map(|limit| (*limit, None)).collect();
        for is_like in is_like {
            for (limit, heir) in &mut new {
                if heir.is_none()
                    && !matches!(limit, Limit::MaxConcurrency(_))
                    && let Some(found) = old.iter().position(|old| {
                        old.limit.counts() == limit.counts() && is_like(&old.limit, limit)
                    })
                {
                    *heir = Some(NaiveLimit::heir(
                        *limit,
                        old.remove(found),
                        now,
                        in_proportion,
                    ));
                }
            }
        }
        let or_new = |(limit, heir): (Limit, Option<_>)| {
            heir.unwrap_or_else(|| NaiveLimit::new(limit, since_epoch, now))
        };
        self.limits = new.into_iter().map(or_new).collect();
        self.begin_lines();
        for Waiting { id, cost, .. } in self.waiting.clone() {
            if let Some(error) = self.misfit(cost) {
                self.answer(id, Err(error));
            }
        }
        self.tidy();
    }

    pub(super) fn reset(&mut self) {
        for limit in &mut self.limits {
            *limit = NaiveLimit::new(limit.limit, self.since_epoch, self.now);
        }
        self.begin_lines();
    }

    /// The later end of two pauses counts.
    pub(super) fn pause(&mut self, until: u64) {
        self.paused_until = self.paused_until.max(until);
    }

    pub(super) fn resume(&mut self) {
        self.paused_until = 0;
        self.quota = None;
    }

    /// A further signal of a known quota never adds to it and does not restart its pace.
    pub(super) fn spread(&mut self, units: u64, until: u64) {
        const SAME: u64 = 1_000_000_000;
        if units >= self.spread_below {
            return;
        }
        let now = self.now;
        let known = self
            .quota
            .take()
            .filter(|quota| quota.until > now && until <= quota.until + SAME);
        let units = known
            .as_ref()
            .map_or(units, |quota| quota.left().min(units));
        let interval = (until - now).div_ceil(units.max(1));
        let since = known
            .as_ref()
            .map_or(now, |quota| quota.next().min(now + interval));
        let signalled_after = known
            .as_ref()
            .map_or(self.grants.len() as u64, |quota| quota.signalled_after);
        let is_unclear = known.is_some_and(|quota| quota.is_unclear);
        self.quota = Some(Quota {
            units,
            interval,
            since,
            until,
            signalled_after,
            taken: Vec::new(),
            is_unclear,
        });
    }

    /// A full queue drops all waiters, and no request is accepted for a while.
    pub(super) fn block(&mut self) {
        self.blocked_until = self
            .now
            .saturating_add(self.overflow.penalty().as_nanos() as u64);
    }

    pub(super) fn note_denial(&mut self, cost: Cost) {
        for limit in &mut self.limits {
            let units = cost.of(limit.limit.counts()).unwrap();
            if units > 0 {
                limit.note_denial(self.now, units);
            }
        }
    }

    /// The counts of a snapshot, except those that only the schedule has.
    pub(super) fn counts(&self, snapshot: LimiterSnapshot) -> LimiterSnapshot {
        LimiterSnapshot {
            in_flight: self.in_flight(),
            queued: self.waiting.len() as u64,
            granted: self.grants.len() as u64,
            denied: self.denied,
            shed: self.shed,
            timed_out: self.timed_out,
            reclaimed: self.reclaimed,
            refunded: self.refunded,
            ..snapshot
        }
    }
}

fn members_of(participant: Participant, waiting: &[Waiting]) -> Vec<Waiting> {
    let members = waiting
        .iter()
        .filter(|waiting| participant.counts(waiting.cost.flow));
    members.copied().collect()
}
