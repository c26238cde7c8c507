//! What a schedule says to the store that holds its limits, and what it remembers of the replies.
//!
//! One call of a key is under way at most. Requests that come meanwhile go together into the next one: the busier a key, the fewer
//! calls a grant takes. A denial is remembered until the instant that the store named, or until a release.

mod block;
mod flight;
mod news;
mod terms;
mod untold;

use std::collections::{BTreeMap, BTreeSet};

use crate::core::waiter::WaiterId;
use crate::decision::Decision;
use crate::exchange::{LimitReading, Reply, Settlement, Stop, Until};
use crate::policy::{Limit, Policy};
use crate::snapshot::LimitStatus;
use crate::strategy::{LimitReport, Moment};

pub(crate) use block::{Ahead, Block, Unused};
pub(crate) use flight::{Flight, Runs};
pub(crate) use terms::{OnDown, Terms};

#[derive(Debug)]
pub(crate) struct Dialogue {
    pub(crate) terms: Terms,
    /// The number of the next lease.
    next_number: u64,
    flight: Option<Flight>,
    /// Of the latest call.
    generation: u64,
    /// Until when whoever carries calls must have come for the next one; `None`: nobody was sent for.
    pub(super) carrier_due: Option<Moment>,
    /// Returns that may not have arrived, and when their leases expire anyway.
    pub(super) unconfirmed: Vec<(u64, Moment)>,
    /// After a failure, no request is sent before.
    pub(super) retry_at: Moment,
    /// After a failure, no call that only has returns and settlements is sent before. Many keys may have some, and need not learn soon
    /// that the store is back.
    pub(super) tells_at: Moment,
    failures: u32,
    /// Since when settlements are told again and again.
    untold_since: Option<Moment>,
    /// How many resets are under way.
    pub(super) resets: u32,
    /// Settlements that are told only if these fail.
    pub(super) withheld: Vec<Settlement>,
    /// How often replies of late granted nothing, because others take what there is.
    denials: u32,
    pub(super) denial: Option<Denial>,
    /// The instant of the latest reply, by both clocks.
    instant: Option<(Moment, u64)>,
    /// The waiters that are denied where they are not granted.
    pub(super) impatient: BTreeSet<WaiterId>,
    denied: BTreeMap<WaiterId, Denied>,
    /// Whether somebody renews the leases.
    pub(super) has_heartbeat: bool,
    pub(super) block: Option<Block>,
    /// When a carrier comes again that waits to tell what a failed call has not told; [`Moment::NEVER`] if none does.
    pub(super) retrier_at: Moment,
    /// Whether the store does not answer, and this process decides alone.
    pub(super) is_alone: bool,
    /// Whether it is time to see whether the store answers again, although nobody waits for it.
    pub(super) probes: bool,
    lead: Lead,
    pub(super) news: news::News,
}

/// Whether the newcomer may carry the next call itself.
#[derive(Debug, Clone, Copy)]
enum Lead {
    NotOffered,
    Offered,
    /// By this one, the only waiter.
    Taken(WaiterId),
}

/// What the store has denied.
#[derive(Debug)]
pub(super) struct Denial {
    /// The costs of the first ask that was not granted, for each limit.
    costs: Box<[u64]>,
    /// Until when, as the store says.
    pub(super) ready_at: Moment,
    /// When to ask again: then, or a while later.
    pub(super) until: Moment,
    /// A release may end it sooner.
    pub(super) ends_by_release: bool,
    reply: Reply,
    replied_at: Moment,
}

/// How a request was denied.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) decision: Decision,
    /// What each limit says, where the request is to be explained and the store has denied it.
    pub(crate) limits: Vec<LimitStatus>,
}

impl From<Decision> for Denied {
    fn from(decision: Decision) -> Self {
        Self { decision, limits: Vec::new() }
    }
}

impl Denial {
    const LONGEST_SPREAD: u64 = 100_000_000;

    /// When a waiter with this deadline asks again. One that may have given up by then asks as soon as the store may grant it.
    pub(super) fn asks_at(&self, deadline: Moment) -> Moment {
        if deadline <= self.until.plus(Self::LONGEST_SPREAD) { self.ready_at.min(self.until) } else { self.until }
    }

    /// What it says now, and what each limit says, if that is asked for.
    pub(super) fn tell(&self, now: Moment, policy: &Policy, explains: bool) -> Denied {
        let decision = decision(now, policy, &self.reply, self.replied_at);
        Denied { decision, limits: if explains { statuses(now, policy, &self.reply, self.replied_at) } else { Vec::new() } }
    }

    /// Whether exactly these costs were denied. Then they are admitted at its instant.
    pub(super) fn is_of(&self, costs: &[u64]) -> bool {
        *self.costs == *costs
    }

    /// Whether these costs are denied at least as long.
    pub(super) fn covers(&self, costs: &[u64]) -> bool {
        self.costs.iter().zip(costs).all(|(denied, cost)| cost >= denied)
    }
}

impl Dialogue {
    /// Most asks, returns, settlements, or renewals of one call. A store serves nobody else meanwhile.
    pub(crate) const MAX_CALL: usize = 1_000;

    pub(crate) fn new(terms: Terms) -> Self {
        Self {
            block: terms.ahead.map(Block::new),
            next_number: terms.first_number,
            terms,
            flight: None,
            generation: 0,
            carrier_due: None,
            unconfirmed: Vec::new(),
            retry_at: Moment::START,
            tells_at: Moment::START,
            failures: 0,
            untold_since: None,
            resets: 0,
            withheld: Vec::new(),
            denials: 0,
            denial: None,
            instant: None,
            impatient: BTreeSet::new(),
            denied: BTreeMap::new(),
            has_heartbeat: false,
            retrier_at: Moment::NEVER,
            is_alone: false,
            probes: false,
            lead: Lead::NotOffered,
            news: news::News::default(),
        }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    pub(super) fn flight(&self) -> Option<&Flight> {
        self.flight.as_ref()
    }

    /// When a reply is no longer awaited.
    pub(super) fn reply_due(&self) -> Option<Moment> {
        self.flight.as_ref().map(|flight| flight.sent_at.plus(self.terms.deadline))
    }

    /// What the store has denied, if that is of these costs or less, and holds. While a call that gives something back is under
    /// way, nothing is known.
    pub(super) fn known_denial(&self, now: Moment, of_each: &[u64]) -> Option<&Denial> {
        let gives_back = self.flight.as_ref().is_some_and(|flight| !flight.returns.is_empty() || !flight.settlements.is_empty());
        self.denial.as_ref().filter(|denial| !gives_back && now < denial.until && denial.covers(of_each))
    }

    /// What the store has denied last, as long as it may hold: when the store has not answered within a call after the end, nobody
    /// knows what it would say.
    pub(super) fn latest_denial(&self, now: Moment) -> Option<&Denial> {
        let holds_until = |denial: &Denial| denial.until.plus(self.terms.deadline);
        self.denial.as_ref().filter(|denial| now <= denial.replied_at || now < holds_until(denial))
    }

    /// By the store's clock, when a call that is sent now is no longer worth carrying out. `None` if its clock is not known well.
    pub(super) fn valid_until(&self, now: Moment) -> Option<u64> {
        /// The clocks of two machines may run apart by a millisecond in ten seconds.
        const RECENT: u64 = 10_000_000_000;
        let (at, by_store) = self.instant.filter(|(at, _)| now.since(*at) < RECENT)?;
        Some(by_store.saturating_add(now.since(at)).saturating_add(self.terms.deadline))
    }

    /// Sends a call. Returns its generation.
    pub(super) fn take_off(
        &mut self,
        now: Moment,
        runs: Runs<'_>,
        returns: Vec<(u64, Moment)>,
        settlements: Vec<Settlement>,
    ) -> u64 {
        self.generation += 1;
        self.next_number += runs.len();
        let (Runs { asked, runs, .. }, replaces) = (runs, self.news.replaces());
        self.flight = Some(Flight { sent_at: now, asked, runs, returns, settlements, heard: 0, was_reset: false, replaces });
        self.generation
    }

    /// The call of this generation has ended. `None`: it was given up before.
    pub(super) fn land(&mut self, generation: u64) -> Option<Flight> {
        if generation == self.generation { self.flight.take() } else { None }
    }

    /// The next newcomer may carry the next call, if nobody else waits.
    pub(super) fn offer_lead(&mut self) {
        self.lead = Lead::Offered;
    }

    /// Lets the only waiter carry the next call. `false`: it was not offered.
    pub(super) fn let_lead(&mut self, id: WaiterId) -> bool {
        let offered = matches!(self.lead, Lead::Offered);
        if offered {
            self.lead = Lead::Taken(id);
        }
        offered
    }

    /// Withdraws the offer. Returns who has taken it.
    pub(super) fn take_lead(&mut self) -> Option<WaiterId> {
        match std::mem::replace(&mut self.lead, Lead::NotOffered) {
            Lead::Taken(id) => Some(id),
            Lead::NotOffered | Lead::Offered => None,
        }
    }

    /// Whoever has brought a reply, or a failure, comes for the next call.
    pub(super) fn carrier_returns(&mut self, now: Moment) {
        self.carrier_due = Some(now.plus(self.terms.deadline));
    }

    /// The generation of the call under way, or of the last one.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Remembers what a reply says of the future.
    pub(super) fn note_reply(&mut self, now: Moment, denied: Option<Box<[u64]>>, reply: &Reply, heard: bool) {
        (self.failures, self.untold_since, self.is_alone) = (0, None, false);
        self.retry_from(Moment::START);
        self.instant = Some((now, reply.now));
        // Halved, not forgotten, by a grant: otherwise whoever was granted last would ask first, again and again.
        let is_denied = reply.granted == 0 && reply.stop.is_some();
        self.denials = if is_denied { self.denials.saturating_add(1).min(32) } else { self.denials / 2 };
        self.denial = match (reply.stop, denied) {
            (Some(stop), Some(costs)) => {
                let ends_by_release = matches!(stop.until, Until::Release { .. });
                let until = self.until(now, reply, stop);
                let until = if ends_by_release && heard { until.min(self.asks_after_release(now)) } else { until };
                let ready_at = if let Until::Instant(at) = stop.until { local(now, reply, at) } else { until };
                Some(Denial { costs, ready_at, until, ends_by_release, reply: reply.clone(), replied_at: now })
            }
            _ => None,
        };
    }

    fn until(&self, now: Moment, reply: &Reply, stop: Stop) -> Moment {
        match stop.until {
            Until::Instant(at) => {
                let at = local(now, reply, at);
                at.plus(self.spread(at.since(now)))
            }
            Until::Never => Moment::NEVER,
            Until::Release { first_expiry } => {
                local(now, reply, first_expiry).min(now.plus(self.jittered(self.terms.polls_every)))
            }
        }
    }

    /// How much later than at the instant to ask, where others took what there was at the last one: so that of many processes few ask in
    /// vain. It is random: nothing after one denial, up to the `wait` for that instant after two, about twice as much after each further
    /// one, and 100 ms at most.
    fn spread(&self, wait: u64) -> u64 {
        let doublings = self.denials.saturating_sub(1).min(30);
        let longest = wait.saturating_mul((1 << doublings) - 1).min(Denial::LONGEST_SPREAD);
        self.random_below(longest)
    }

    /// Places of the store came back somewhere.
    pub(super) fn released_elsewhere(&mut self, now: Moment) {
        if let Some(flight) = &mut self.flight {
            flight.heard = flight.heard.saturating_add(1);
        }
        let asks_at = self.asks_after_release(now);
        if let Some(denial) = self.denial.as_mut().filter(|denial| denial.ends_by_release) {
            denial.until = denial.until.min(asks_at);
        }
    }

    /// When to ask after a release. Others may want the places, too.
    fn asks_after_release(&self, now: Moment) -> Moment {
        /// A call takes about as long.
        const CALL: u64 = 500_000;
        now.plus(self.spread(CALL))
    }

    fn random_below(&self, end: u64) -> u64 {
        // A multiplicative hash (Knuth, "The art of computer programming", volume 3, 6.4).
        let hash = (self.terms.holder ^ self.generation).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((u128::from(end) * u128::from(hash)) >> 32) as u64
    }

    /// From half to one and a half times as long, so that processes do not ask at the same instants.
    fn jittered(&self, nanos: u64) -> u64 {
        (nanos / 2).saturating_add(self.random_below(nanos))
    }

    /// A call has failed: the next one is sent after a while, which doubles up to the longest. Up to half of it is left out, so that
    /// processes do not ask at the same instants.
    pub(super) fn back_off(&mut self, now: Moment) {
        const FIRST: u64 = 50_000_000;
        const LONGEST_OF_DEBTS: u64 = 10_000_000_000;
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let after = |longest| {
            let after = doubled.min(longest);
            now.plus(after - self.random_below(after / 2))
        };
        let (retry_at, tells_at) = (after(self.terms.longest_back_off), after(LONGEST_OF_DEBTS));
        self.retry_at = retry_at;
        self.tells_at = tells_at;
    }

    /// Calls may be sent again from this instant on.
    pub(super) fn retry_from(&mut self, at: Moment) {
        self.retry_at = at;
        self.tells_at = at;
    }

    /// The store's clock is not what it seemed.
    pub(super) fn forget_clock(&mut self) {
        self.instant = None;
    }

    /// Whether returns may not have arrived.
    pub(super) fn owes(&self) -> bool {
        !self.unconfirmed.is_empty()
    }

    /// Whether requests wait while the store does not answer.
    pub(super) fn waits_for_store(&self) -> bool {
        matches!(self.terms.on_down, OnDown::Deny)
    }

    /// Whether requests wait, and the store is not asked yet, because it has not answered.
    pub(super) fn waits_to_ask(&self, now: Moment) -> bool {
        self.waits_for_store() && now < self.retry_at
    }

    /// Returns of leases that have expired need no confirmation.
    pub(super) fn forget_expired(&mut self, now: Moment) {
        self.unconfirmed.retain(|(_, expires_at)| now < *expires_at);
    }

    /// How an impatient waiter was denied. It is taken once.
    pub(crate) fn take_denied(&mut self, id: WaiterId) -> Option<Denied> {
        self.denied.remove(&id)
    }

    pub(super) fn deny(&mut self, id: WaiterId, denied: Denied) {
        self.denied.insert(id, denied);
    }

    /// The owner of a request gave it up.
    pub(super) fn forget(&mut self, id: WaiterId) {
        self.impatient.remove(&id);
        self.denied.remove(&id);
    }
}

/// An instant of the store on the local clock: never before it, if the clocks run equally fast.
fn local(now: Moment, reply: &Reply, at: u64) -> Moment {
    now.plus(at.saturating_sub(reply.now))
}

/// What a reply of then says of the first ask that it did not grant, or of a peek.
pub(crate) fn decision(now: Moment, policy: &Policy, reply: &Reply, replied_at: Moment) -> Decision {
    let report = |(index, reading): (usize, &LimitReading)| {
        let stop = reply.stop.filter(|stop| stop.limit == index);
        let denied_until = stop.map(|stop| match stop.until {
            Until::Instant(at) => local(replied_at, reply, at),
            Until::Release { .. } | Until::Never => Moment::NEVER,
        });
        let ready_at = denied_until.unwrap_or(now);
        LimitReport { denied_until, remaining: reading.remaining, ready_at, reset_at: local(replied_at, reply, reading.reset_at) }
    };
    let capacity = |by: usize| policy.limits()[by].capacity();
    Decision::summarize(policy, None, reply.limits.iter().enumerate().map(report), now, 0, capacity)
}

/// What each limit said in a reply of then.
pub(crate) fn statuses(now: Moment, policy: &Policy, reply: &Reply, replied_at: Moment) -> Vec<LimitStatus> {
    let status = |(limit, reading): (&Limit, &LimitReading)| {
        let [ready_at, reset_at] = [reading.available_at, reading.reset_at].map(|at| local(replied_at, reply, at));
        let report = LimitReport { denied_until: None, remaining: reading.remaining, ready_at, reset_at };
        LimitStatus::new(*limit, limit.capacity(), report, now)
    };
    policy.limits().iter().zip(&reply.limits).map(status).collect()
}
