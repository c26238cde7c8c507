//! What a store keeps for one key: the state of each limit, and the leases. A [`Call`] is one step of it.
//!
//! The same rules decide here as in the gate of one process. A call brings many asks of the same costs; of each run, as many are
//! granted as every limit has room for, and each limit is charged once, so that a thousand asks take as long as one.
//!
//! # A ledger as bytes
//!
//! For stores that keep bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | the version of this form: 4; version 3 has no revision, version 2 has no tickets either |
//! | 8 | a checksum of all that follows: FNV-1a, little-endian |
//! | n | the text of the policy, its revision |
//! | n | the latest instant, the time from the start of the limits to it, the fence |
//! | n | the number of limits, then the leases by holder: number, time from the latest instant to the expiry, costs |
//! | n | the last instant that was named to a replica without a ticket, the number of tickets; each: holder, asks that wait, their costs, units granted, when it asked, when it is due or 0, when its turn began |
//! | n | the state of each limit: two words, or the grants of a log that still count; nothing of a concurrency, which follows from the leases |
//!
//! Numbers are LEB128: seven bits a byte, the low ones first. A text has its length before it.
//!
//! The [past grants](crate::strategy::RefundBound) of a pace, which bound its refunds, are not among them. So a ledger that was read
//! refunds nothing of its earlier grants to a pace: too little, which never exceeds the limit.

#[cfg(test)]
mod tests;
mod turns;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::carry_over::UsageCarryOver;
use crate::core::gate::limit_state::{LimitState, counterparts, place_counterpart};
use crate::core::gate::plan::Plan;
use crate::exchange::{Asks, Call, DeniedAsk, DeniedUntil, LimitReading, Reply, Settlement};
use crate::policy::Limit;
use crate::strategy::{Grants, Moment};

pub(crate) use turns::Offer;
use turns::{Caller, KEEN_FOR, Left, MAX_TICKETS, Turn, TurnTicket, Turns, units};

/// The version of a ledger's bytes. Version 3 has no revision, version 2 has no tickets either.
const VERSION: u8 = 4;
/// The number of bytes before the text of the policy.
const HEAD: usize = 9;

/// What a store keeps for one key.
#[derive(Debug)]
pub(crate) struct Ledger {
    plan: Arc<Plan>,
    /// The revision of the policy.
    revision: u64,
    limits: Vec<LimitState>,
    leases: BTreeMap<LeaseId, Lease>,
    by_expiry: BTreeSet<(Moment, LeaseId)>,
    /// The fence of the latest grant.
    fence: u64,
    /// The latest instant of a call: a clock that steps back stands still here.
    latest: Moment,
    /// When the limits started: earlier grants cannot be refunded.
    reset_at: Moment,
    /// Until when the policy is kept, whatever the limits count.
    policy_kept_until: Moment,
    turns: Turns,
}

/// A holder, and the number that it gave the lease.
type LeaseId = (u64, u64);

#[derive(Debug)]
struct Lease {
    expires_at: Moment,
    /// Many leases share them.
    costs: Arc<[u64]>,
}

/// How the policy of a call compares with the ledger's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agreement {
    Same,
    /// It is a later revision, which the ledger now has.
    Adopted,
    /// It is of an earlier revision, or another policy of the same one.
    Differs,
}

/// A ledger as bytes, of which only the policy was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Encoded<'a> {
    version: u8,
    /// The policy as text.
    pub(crate) text: &'a str,
    pub(crate) revision: u64,
    rest: &'a [u8],
}

/// No ledger has written these bytes, or one of another version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

impl Ledger {
    /// The ledger of a new key.
    pub(crate) fn new(plan: Arc<Plan>, revision: u64, now: Moment) -> Self {
        let limits = plan
            .rules()
            .iter()
            .map(|rule| LimitState::new(rule, now))
            .collect();
        Self {
            plan,
            revision,
            limits,
            leases: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            fence: 0,
            latest: now,
            reset_at: now,
            policy_kept_until: Moment::START,
            turns: Turns::default(),
        }
    }

    pub(crate) fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Whether replicas wait, or did so lately.
    pub(crate) fn has_tickets(&self) -> bool {
        !self.turns.tickets.is_empty()
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Compares the policy of a call with the ledger's, and adopts it if its revision is later.
    pub(crate) fn agree(&mut self, plan: &Arc<Plan>, revision: u64, now: Moment) -> Agreement {
        let is_same = plan.policy() == self.plan.policy();
        match revision.cmp(&self.revision) {
            Ordering::Less => Agreement::Differs,
            Ordering::Equal if is_same => Agreement::Same,
            Ordering::Equal => Agreement::Differs,
            Ordering::Greater => {
                self.revision = revision;
                if !is_same {
                    self.set_plan(Arc::clone(plan), now.max(self.latest));
                }
                Agreement::Adopted
            }
        }
    }

    /// Replaces the policy. Each limit of time takes over the usage of its counterpart, and the leases stay. Replicas that wait lose
    /// their tickets, which have the costs of the former limits, and ask again.
    fn set_plan(&mut self, plan: Arc<Plan>, now: Moment) {
        let new = Self::new(plan, self.revision, now);
        let old = std::mem::replace(self, new);
        let (former, limits) = (old.plan.limits(), self.plan.limits());
        self.fence = old.fence;
        self.leases = old.leases;
        self.by_expiry = old.by_expiry;
        let ratio = UsageCarryOver::AsIs.ratio(1, 1);
        let mut states: Vec<_> = old.limits.into_iter().map(Some).collect();
        let counterparts = counterparts(former, limits).into_iter().enumerate();
        for (index, counterpart) in
            counterparts.filter(|(index, _)| !limits[*index].counts_places())
        {
            let taken = counterpart.and_then(|of| Some((former[of], states[of].take()?)));
            match taken {
                Some((limit, state)) if limit == limits[index] => self.limits[index] = state,
                Some((_, state)) => self.limits[index].take_over(now, &state, ratio),
                None => {}
            }
        }
        for lease in self.leases.values_mut() {
            let cost = |limit: &Limit| match place_counterpart(former, limit) {
                _ if !limit.counts_places() => 0,
                Some(index) => lease.costs[index],
                None => 1, // the lease is from before the former policy
            };
            lease.costs = limits.iter().map(cost).collect();
            charge(&mut self.limits, now, &lease.costs, 1);
        }
    }

    /// When the key can be forgotten, if no further call comes.
    pub(crate) fn forgettable_at(&self) -> Moment {
        let limits = self
            .limits
            .iter()
            .map(|limit| limit.forgettable_at(self.latest))
            .max()
            .unwrap_or(self.latest)
            .max(self.turns.forgettable_at())
            .max(self.policy_kept_until);
        self.by_expiry
            .last()
            .map_or(limits, |(last, _)| limits.max(*last))
    }

    /// Carries out a call. Fences follow the clock where it is ahead of them, so that they rise even after a key was forgotten. Also
    /// returns the holders whose turn it is to take a place.
    pub(crate) fn call(&mut self, now: Moment, call: &Call) -> (Reply, Offer) {
        let now = now.max(self.latest);
        self.latest = now;
        if call.keeps_policy {
            self.policy_kept_until = now.plus(Call::KEEPS_POLICY_FOR);
        }
        let reclaimed = self.reclaim(now);
        let returned = call
            .returns
            .iter()
            .filter(|number| self.take_lease((call.holder, **number)).is_some())
            .count();
        call.settlements
            .iter()
            .for_each(|settlement| self.settle(now, settlement));
        let lost = call
            .renewals
            .iter()
            .copied()
            .filter(|number| !self.renew(now, (call.holder, *number), call.ttl))
            .collect();
        let first_fence = self.fence.saturating_add(1).max(now.nanos() / 1_000);
        let caller = Caller {
            holder: call.holder,
            polls_every: call.polls_every,
            returns: returned > 0,
        };
        let held = |holder| held(&self.leases, holder);
        let mut turn = self.turns.begin(now, caller, held);
        if let (Some(turn), Some(asks)) = (&mut turn, call.asks.first()) {
            turn.bound(|| self.pause(&asks.costs));
        }
        let (granted, stop) = self.grant(now, call, &mut turn);
        if granted > 0 {
            self.fence = first_fence.saturating_add(granted - 1);
        }
        let stop = self.end_turn(now, call, caller, granted, stop);
        let offered = if self.plan.holds_places() && call.peek.is_none() {
            self.turns.offer(now, &self.limits, call.holder)
        } else {
            Offer::default()
        };
        let reading = |limit: &LimitState| {
            let report = limit.report(now, 0, 1);
            let available_at = if limit.places().is_some() {
                now
            } else {
                report.ready_at
            };
            LimitReading {
                remaining: report.remaining,
                available_at: available_at.nanos(),
                reset_at: report.reset_at.nanos(),
            }
        };
        let limits = self.limits.iter().map(reading).collect();
        let stop = stop.or_else(|| self.stop(now, call.peek.as_deref()?, turn));
        let reply = Reply {
            now: now.nanos(),
            granted,
            first_fence,
            stop,
            limits,
            lost,
            reclaimed,
        };
        (reply, offered)
    }

    /// Records what the caller waits for.
    fn end_turn(
        &mut self,
        now: Moment,
        call: &Call,
        caller: Caller,
        granted: u64,
        stop: Option<DeniedAsk>,
    ) -> Option<DeniedAsk> {
        if call.asks.is_empty() && call.returns.is_empty() && !call.waits_no_more {
            return stop;
        }
        let last = call.asks.last().map_or(&[][..], |asks| &asks.costs);
        let mut left = Left {
            wanted: 0,
            costs: last,
            due: None,
            granted: 0,
        };
        let mut rest = granted;
        for asks in &call.asks {
            let taken = asks.count.min(rest);
            rest -= taken;
            left.granted = left
                .granted
                .saturating_add(taken.saturating_mul(units(&asks.costs)));
            let waits = asks.waits && !asks.ahead;
            let waiting = if waits { asks.count - taken } else { 0 };
            if left.wanted == 0 {
                left.costs = &asks.costs;
            }
            left.wanted = left.wanted.saturating_add(waiting);
        }
        match stop.map(|stop| stop.until) {
            Some(DeniedUntil::Never) => left.wanted = 0,
            // As exact as the clock of each store.
            Some(DeniedUntil::Instant(at)) => {
                left.due = Some(Moment::from_nanos(at.div_ceil(1_000).saturating_mul(1_000)));
            }
            Some(DeniedUntil::Release { .. }) | None => {}
        }
        if left.wanted == 0 && self.turns.tickets.is_empty() {
            return stop;
        }
        let (held, pause) = (held(&self.leases, call.holder), self.pause(left.costs));
        match (stop, self.turns.end(now, caller, held, left, pause)) {
            (Some(stop), Some(at)) => Some(DeniedAsk {
                until: DeniedUntil::Instant(at.nanos()),
                ..stop
            }),
            _ => stop,
        }
    }

    /// The time in which the units of an ask of these costs come on average, in nanoseconds: whole microseconds.
    fn pause(&self, costs: &[u64]) -> u64 {
        let pauses = self.plan.limits().iter().zip(costs).map(|(limit, cost)| {
            let micros = u128::from(limit.round_nanos() / 1_000);
            micros
                .saturating_mul((*cost).into())
                .div_ceil(limit.capacity().max(1).into())
        });
        let micros = u64::try_from(pauses.max().unwrap_or(0)).unwrap_or(u64::MAX);
        micros.saturating_mul(1_000)
    }

    /// Reclaims all leases that have expired.
    fn reclaim(&mut self, now: Moment) -> u64 {
        let mut reclaimed = 0;
        while let Some((_, id)) = self
            .by_expiry
            .first()
            .copied()
            .filter(|(expires_at, _)| *expires_at <= now)
        {
            drop(self.take_lease(id));
            reclaimed += 1;
        }
        reclaimed
    }

    /// Ends a lease: its places are free.
    fn take_lease(&mut self, id: LeaseId) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        self.by_expiry.remove(&(lease.expires_at, id));
        for (limit, cost) in self.limits.iter_mut().zip(&*lease.costs) {
            limit.release(*cost);
        }
        Some(lease)
    }

    fn settle(&mut self, now: Moment, settlement: &Settlement) {
        let Settlement {
            granted_at,
            charged,
            actual,
        } = settlement;
        let granted_at =
            Some(Moment::from_nanos(*granted_at)).filter(|at| (self.reset_at..=now).contains(at));
        for (limit, (charged, actual)) in self.limits.iter_mut().zip(charged.iter().zip(actual)) {
            limit.settle(now, granted_at, *charged, *actual);
        }
    }

    /// Returns whether the lease is live.
    fn renew(&mut self, now: Moment, id: LeaseId, ttl: u64) -> bool {
        let Some(lease) = self.leases.get_mut(&id) else {
            return false;
        };
        let former = std::mem::replace(&mut lease.expires_at, now.plus(ttl));
        self.by_expiry.remove(&(former, id));
        self.by_expiry.insert((lease.expires_at, id));
        true
    }

    /// Grants the longest prefix of the asks. Of those that do not wait, the others count as denied.
    fn grant(
        &mut self,
        now: Moment,
        call: &Call,
        turn: &mut Option<Turn>,
    ) -> (u64, Option<DeniedAsk>) {
        let mut granted = 0;
        let mut stop = None;
        for asks in &call.asks {
            let is_free = asks.costs.iter().all(|cost| *cost == 0); // it takes nothing from others, so it has no turn
            let mut turn = turn.as_mut().filter(|_| !is_free);
            let room = if stop.is_some() {
                0
            } else {
                self.room(now, asks, turn.as_deref().copied())
            };
            granted = room.saturating_add(granted);
            charge(&mut self.limits, now, &asks.costs, room);
            self.open_leases(now, call, asks, room);
            if let Some(turn) = &mut turn {
                turn.advance(&self.limits, &asks.costs, room);
            }
            if room == asks.count {
                continue;
            }
            if !asks.waits {
                self.note_denials(now, asks, asks.count - room);
            }
            stop = stop
                .or_else(|| self.stop(now, &asks.costs, turn.as_deref().copied()))
                .or_else(|| soon(now, &asks.costs));
        }
        (granted, stop)
    }

    /// How many of these asks every limit has room for, behind those of others whose turn comes before.
    fn room(&self, now: Moment, asks: &Asks, turn: Option<Turn>) -> u64 {
        let asked = self
            .limits
            .iter()
            .zip(&asks.costs)
            .filter(|(_, cost)| **cost > 0);
        let room = asked.map(|(limit, cost)| limit.report(now, 0, *cost).remaining / cost);
        let room = room.fold(asks.count, u64::min);
        turn.map_or(room, |turn| {
            self.turns.room(&self.limits, turn, now, &asks.costs, room)
        })
    }

    fn open_leases(&mut self, now: Moment, call: &Call, asks: &Asks, count: u64) {
        let mut limits = self.limits.iter().zip(&asks.costs);
        if !limits.any(|(limit, cost)| limit.places().is_some() && *cost > 0) {
            return;
        }
        let places =
            |(limit, cost): (&LimitState, &u64)| if limit.places().is_some() { *cost } else { 0 };
        let costs: Arc<[u64]> = self.limits.iter().zip(&asks.costs).map(places).collect();
        for number in asks.first..asks.first.saturating_add(count) {
            let (id, expires_at) = ((call.holder, number), now.plus(call.ttl));
            drop(self.take_lease(id)); // a number that is given twice is one lease
            self.leases.insert(
                id,
                Lease {
                    expires_at,
                    costs: Arc::clone(&costs),
                },
            );
            self.by_expiry.insert((expires_at, id));
        }
    }

    fn note_denials(&mut self, now: Moment, asks: &Asks, count: u64) {
        /// More attempts of one call than this raise no penalty further.
        const MAX: u64 = 1_000;
        for _ in 0..count.min(MAX) {
            for (limit, cost) in self
                .limits
                .iter_mut()
                .zip(&asks.costs)
                .filter(|(_, cost)| **cost > 0)
            {
                limit.note_denial(now, *cost);
            }
        }
    }

    /// What stops a request of these costs: the limit that stops it longest, and the first of several such limits.
    fn stop(&self, now: Moment, costs: &[u64], turn: Option<Turn>) -> Option<DeniedAsk> {
        let before = turn
            .map(|turn| self.turns.before(now, &self.limits, turn))
            .unwrap_or_default();
        let asked = self.limits.iter().zip(costs).enumerate();
        let stops = asked.filter_map(|(limit, (state, cost))| {
            if *cost == 0 {
                return None;
            }
            let before = before.get(limit).copied().unwrap_or(0);
            let exceeds = *cost > self.plan.limits()[limit].capacity();
            let units = before.saturating_add(*cost);
            let until = state.comes_at(now, units, &self.plan.limits()[limit])?;
            let (rank, until) = match until {
                _ if exceeds => (Moment::NEVER, DeniedUntil::Never),
                Moment::NEVER if state.places().is_some() => {
                    let first_expiry = self
                        .by_expiry
                        .first()
                        .map_or(u64::MAX, |(first, _)| first.nanos());
                    (Moment::LAST, DeniedUntil::Release { first_expiry })
                }
                Moment::NEVER => (Moment::NEVER, DeniedUntil::Never),
                until => (until, DeniedUntil::Instant(until.nanos())),
            };
            Some((rank, DeniedAsk { limit, until }))
        });
        let longest = stops.reduce(|first, next| if next.0 > first.0 { next } else { first });
        longest.map(|(_, stop)| stop)
    }
}

impl<'a> Encoded<'a> {
    /// Reads the policy.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Damaged> {
        let (head, mut rest) = bytes.split_at_checked(HEAD).ok_or(Damaged)?;
        let version = head[0];
        if !(2..=VERSION).contains(&version) || head[1..] != checksum(rest).to_le_bytes() {
            return Err(Damaged);
        }
        let length = usize::try_from(take(&mut rest)?).map_err(|_| Damaged)?;
        let (text, mut rest) = rest.split_at_checked(length).ok_or(Damaged)?;
        let text = std::str::from_utf8(text).map_err(|_| Damaged)?;
        let revision = if version >= 4 { take(&mut rest)? } else { 0 };
        Ok(Self {
            version,
            text,
            revision,
            rest,
        })
    }
}

/// As bytes.
impl Ledger {
    /// As bytes. `text` is the policy's.
    pub(crate) fn encode(&self, text: &str) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        put(&mut bytes, text.len() as u64);
        bytes.extend_from_slice(text.as_bytes());
        put(&mut bytes, self.revision);
        put(&mut bytes, self.latest.nanos());
        put(&mut bytes, self.latest.since(self.reset_at));
        put(&mut bytes, self.fence);
        self.put_leases(&mut bytes);
        self.put_tickets(&mut bytes);
        self.limits
            .iter()
            .for_each(|limit| put_limit(&mut bytes, limit, self.latest));
        let checksum = checksum(&bytes[HEAD..]);
        bytes[0] = VERSION;
        bytes[1..HEAD].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// From bytes, with the plan of their policy.
    pub(crate) fn decode(plan: Arc<Plan>, encoded: Encoded<'_>) -> Result<Self, Damaged> {
        let (bytes, version) = (&mut { encoded.rest }, encoded.version);
        let latest = Moment::from_nanos(take(bytes)?);
        let mut ledger = Self::new(plan, encoded.revision, latest);
        ledger.reset_at = Moment::from_nanos(
            ledger
                .latest
                .nanos()
                .checked_sub(take(bytes)?)
                .ok_or(Damaged)?,
        );
        ledger.fence = take(bytes)?;
        ledger.take_leases(bytes)?;
        if version >= 3 {
            ledger.take_tickets(bytes)?;
        }
        for limit in &mut ledger.limits {
            take_limit(bytes, limit)?;
        }
        ledger.occupy_places()?;
        if bytes.is_empty() && ledger.latest <= Moment::LAST {
            Ok(ledger)
        } else {
            Err(Damaged)
        }
    }

    fn put_leases(&self, bytes: &mut Vec<u8>) {
        let leases: Vec<_> = self.leases.iter().collect();
        let by_holder = || leases.chunk_by(|((one, _), _), ((next, _), _)| one == next);
        put(bytes, self.limits.len() as u64);
        put(bytes, by_holder().count() as u64);
        for leases in by_holder() {
            put(bytes, leases[0].0.0);
            put(bytes, leases.len() as u64);
            let mut before = 0;
            for ((_, number), lease) in leases {
                put(bytes, number - before);
                before = *number;
                put(bytes, lease.expires_at.since(self.latest));
                lease.costs.iter().for_each(|cost| put(bytes, *cost));
            }
        }
    }

    fn take_leases(&mut self, bytes: &mut &[u8]) -> Result<(), Damaged> {
        let limits = take(bytes)?;
        if limits != self.limits.len() as u64 {
            return Err(Damaged);
        }
        let mut leases: Vec<(LeaseId, Lease)> = Vec::new();
        let mut costs = Vec::new();
        for _ in 0..take(bytes)? {
            let holder = take(bytes)?;
            let mut number = 0_u64;
            for _ in 0..take(bytes)? {
                number = number.checked_add(take(bytes)?).ok_or(Damaged)?;
                let expires_at = self.latest.plus(take(bytes)?);
                costs.clear();
                for _ in 0..limits {
                    costs.push(take(bytes)?);
                }
                let (id, last) = ((holder, number), leases.last());
                if last.is_some_and(|(last, _)| id <= *last) {
                    return Err(Damaged);
                }
                let same = last
                    .filter(|(_, last)| *last.costs == costs)
                    .map(|(_, last)| Arc::clone(&last.costs));
                let costs = same.unwrap_or_else(|| costs.as_slice().into());
                leases.push((id, Lease { expires_at, costs }));
            }
        }
        self.by_expiry = leases
            .iter()
            .map(|(id, lease)| (lease.expires_at, *id))
            .collect();
        self.leases = leases.into_iter().collect();
        Ok(())
    }

    fn put_tickets(&self, bytes: &mut Vec<u8>) {
        put(bytes, self.turns.tail.nanos());
        put(bytes, self.turns.tickets.len() as u64);
        for ticket in &self.turns.tickets {
            let TurnTicket {
                holder,
                wanted,
                costs,
                granted,
                asked_at,
                due,
                turn_began,
                held: _,
            } = ticket;
            put(bytes, *holder);
            put(bytes, *wanted);
            let costs = costs.iter().copied().chain(std::iter::repeat(0));
            costs
                .take(self.limits.len())
                .for_each(|cost| put(bytes, cost));
            put(bytes, *granted);
            for at in [*asked_at, due.unwrap_or_default(), *turn_began] {
                put(bytes, at.nanos());
            }
        }
    }

    fn take_tickets(&mut self, bytes: &mut &[u8]) -> Result<(), Damaged> {
        self.turns.tail = Moment::from_nanos(take(bytes)?);
        let count = take(bytes)?;
        if count > MAX_TICKETS as u64 {
            return Err(Damaged);
        }
        for _ in 0..count {
            let mut next = || take(bytes);
            let mut ticket = TurnTicket {
                holder: next()?,
                wanted: next()?,
                ..TurnTicket::default()
            };
            ticket.costs = self
                .limits
                .iter()
                .map(|_| next())
                .collect::<Result<_, _>>()?;
            ticket.granted = next()?;
            ticket.asked_at = Moment::from_nanos(next()?);
            ticket.due = Some(Moment::from_nanos(next()?)).filter(|due| *due != Moment::START);
            ticket.turn_began = Moment::from_nanos(next()?);
            self.turns.tickets.push(ticket);
        }
        Ok(())
    }

    /// Occupies the places that the leases hold.
    fn occupy_places(&mut self) -> Result<(), Damaged> {
        for lease in self.leases.values() {
            if lease.costs.len() != self.limits.len() {
                return Err(Damaged);
            }
            for (limit, cost) in self.limits.iter_mut().zip(&*lease.costs) {
                match limit {
                    LimitState::Places(places) => {
                        places.in_use = places.in_use.checked_add(*cost).ok_or(Damaged)?;
                    }
                    _ if *cost == 0 => {}
                    _ => return Err(Damaged),
                }
            }
        }
        Ok(())
    }
}

/// What stops an ask that is denied only because other replicas are taken to want more units than they have asked for.
fn soon(now: Moment, costs: &[u64]) -> Option<DeniedAsk> {
    let limit = costs.iter().position(|cost| *cost > 0)?;
    let until = DeniedUntil::Instant(now.plus(KEEN_FOR).nanos());
    Some(DeniedAsk { limit, until })
}

/// The places that a holder holds.
fn held(leases: &BTreeMap<LeaseId, Lease>, holder: u64) -> u64 {
    let leases = leases.range((holder, 0)..=(holder, u64::MAX));
    leases
        .flat_map(|(_, lease)| &*lease.costs)
        .fold(0, |sum, cost| sum.saturating_add(*cost))
}

/// Charges this many requests of these costs, which all limits admit.
fn charge(limits: &mut [LimitState], now: Moment, costs: &[u64], count: u64) {
    for (limit, cost) in limits.iter_mut().zip(costs) {
        let units = cost.saturating_mul(count);
        if units > 0 {
            limit.charge(now, units);
        }
    }
}

fn put_limit(bytes: &mut Vec<u8>, limit: &LimitState, now: Moment) {
    match limit {
        LimitState::Pace(_, words, _) | LimitState::Rule(_, words) => {
            words.iter().for_each(|word| put(bytes, *word));
        }
        LimitState::Log(rule, log) => {
            let grants = rule.counting(log, now);
            put(bytes, grants.len() as u64);
            let mut before = Moment::START;
            for (at, units) in grants {
                put(bytes, at.since(before));
                before = at;
                put(bytes, units);
            }
        }
        LimitState::Places(..) => {}
    }
}

fn take_limit(bytes: &mut &[u8], limit: &mut LimitState) -> Result<(), Damaged> {
    match limit {
        LimitState::Pace(_, words, _) | LimitState::Rule(_, words) => {
            *words = [take(bytes)?, take(bytes)?];
        }
        LimitState::Log(_, log) => {
            let (mut at, mut grants) = (0_u64, Vec::new());
            for _ in 0..take(bytes)? {
                at = at.checked_add(take(bytes)?).ok_or(Damaged)?;
                grants.push((Moment::from_nanos(at), take(bytes)?));
            }
            **log = Grants::new(grants).ok_or(Damaged)?;
        }
        LimitState::Places(..) => {}
    }
    Ok(())
}

/// Appends a number.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number from the front.
fn take(bytes: &mut &[u8]) -> Result<u64, Damaged> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(Damaged)?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return if number >> shift == bits {
                Ok(number)
            } else {
                Err(Damaged)
            };
        }
    }
    Err(Damaged)
}

/// FNV-1a of 64 bits (Fowler, Noll, Vo): it finds accidents.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
