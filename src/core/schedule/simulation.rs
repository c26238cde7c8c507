//! Many processes on one key of a store, in virtual time: a seeded network that delays and loses messages and is cut, processes
//! that die, clocks that differ. Whatever happens, the limits hold at every instant, and no unit stays lost.
//!
//! The tests run it small; `examples/simulation` runs it large, through `src/simulation.rs`. `search` tries every order of events.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
#[cfg(any(test, fuzzing))]
#[cfg_attr(
    fuzzing,
    allow(dead_code, reason = "a fuzzer chooses without a search")
)]
mod search;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::NonZeroU64;
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::core::effects::{Effects, Errand};
use crate::core::gate::plan::Plan;
use crate::core::ledger::{Ledger, Offer};
use crate::core::queue::WaiterId;
use crate::core::request::{Costs, Grant, Request};
use crate::core::schedule::{Enqueued, Options, Schedule};
use crate::core::session::{
    CallFailed, PolicyTerms, PrefetchOptions, Renewal, SessionOptions, StoreSession, Trip,
};
use crate::error::{ConfigError, StoreError};
use crate::exchange::{Call, OnStoreDown, Reply, Scope};
use crate::policy::Policy;
use crate::priority::Priority;
use crate::strategy::Moment;

const MS: u64 = 1_000_000;
const STORE: &str = "the limits are in a store";
const DEADLINE: u64 = 500 * MS;
/// When it begins, by the clock of the store.
const EPOCH: u64 = 1_700_000_000_000 * MS;
/// The TTL of places where the policy has none.
const LEASE: NonZeroU64 = NonZeroU64::new(30_000 * MS).unwrap();

/// What happens at an instant.
#[derive(Debug)]
enum Event {
    /// The callers of a process send their first requests; or one caller sends its only request.
    Start(usize),
    /// A caller of a process gives up.
    Impatience(usize),
    /// The timer of a process fires.
    Wake(usize),
    /// A process hears that it is the turn of this holder, and whose turn is next.
    Turn(usize, u64, Option<u64>),
    /// A call reaches the store.
    Arrive(usize, Box<Call>, Sent),
    /// A reply reaches its process.
    Reply(usize, Box<(Call, Reply)>, Sent),
    /// A carrier stops awaiting its reply.
    GiveUp(usize, u64),
    /// The work under a permit is done.
    Release(usize, u64),
    Heartbeat(usize),
    Retry(usize),
    Die(usize),
    /// A process begins to stand still.
    Freeze(usize),
}

impl Event {
    /// The process that it happens to, or whose call it is.
    fn process(&self) -> usize {
        match *self {
            Self::Start(index)
            | Self::Impatience(index)
            | Self::Wake(index)
            | Self::Turn(index, ..)
            | Self::Arrive(index, ..)
            | Self::Reply(index, ..)
            | Self::GiveUp(index, _)
            | Self::Release(index, _)
            | Self::Heartbeat(index)
            | Self::Retry(index)
            | Self::Die(index)
            | Self::Freeze(index) => index,
        }
    }
}

/// What a process records of a call that it has sent.
#[derive(Debug, Clone)]
enum Sent {
    Call { generation: u64 },
    Renewal { sent_at: Moment, fences: Vec<u64> },
}

struct Process {
    schedule: Schedule,
    holder: u64,
    /// How much its clock is ahead of the true time.
    offset: u64,
    alive: bool,
    /// Until when it stands still.
    frozen_until: u64,
    waiting: Vec<WaiterId>,
    permits: BTreeMap<u64, Grant>,
    granted: u64,
    /// The instant to which its timer is set.
    wakes_at: u64,
}

/// The parameters of a simulation.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) policy: Policy,
    pub(crate) processes: usize,
    /// The number of requests that wait in each process at any time. If it is 0, there is one request for each [`Event::Start`].
    pub(crate) callers: usize,
    /// How many of a thousand messages are lost.
    pub(crate) lost: u64,
    /// Whether some processes die, some are cut off for a while, and some callers give up.
    pub(crate) faults: bool,
    /// Whether one in ten processes fails: see [`fails`].
    pub(crate) failing: bool,
    pub(crate) prefetch: Option<PrefetchOptions>,
    pub(crate) until: u64,
    pub(crate) seed: u64,
}

/// Whether a process dies, or stands still for three seconds again and again, in a simulation where one in ten does.
pub(crate) fn fails(process: usize) -> bool {
    process % 10 == 9
}

pub(crate) struct Simulation {
    setting: Setting,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: BTreeMap<u64, Event>,
    sequence: u64,
    random: u64,
    processes: Vec<Process>,
    ledger: Ledger,
    pub(crate) calls: u64,
    /// When the store granted each unit of a rate that was used, or each place.
    pub(crate) grants: Vec<u64>,
    pub(crate) most_places: u64,
}

impl Simulation {
    pub(crate) fn new(setting: Setting) -> Result<Self, ConfigError> {
        let plan = Arc::new(Plan::new(setting.policy.clone(), Duration::ZERO)?);
        let ledger = Ledger::new(Arc::clone(&plan), 0, Moment::from_nanos(EPOCH));
        let terms = Arc::new(PolicyTerms {
            ttl: plan.ttl().unwrap_or(LEASE),
            plan,
            revision: 0,
            polls_every: 1_000 * MS,
            hears_turns: true,
            prefetch: setting.prefetch.unwrap_or_default(),
        });
        let mut simulation = Self {
            now: 0,
            events: BinaryHeap::new(),
            pending: BTreeMap::new(),
            sequence: 0,
            random: setting.seed | 1,
            processes: Vec::new(),
            ledger,
            calls: 0,
            grants: Vec::new(),
            most_places: 0,
            setting,
        };
        for index in 0..simulation.setting.processes {
            let offset = simulation.below(3_600_000) * MS;
            let holder = simulation.below(u64::MAX);
            let options = SessionOptions {
                holder,
                max_hold: None,
                deadline: DEADLINE,
                longest_back_off: 500 * MS,
                on_down: OnStoreDown::Deny,
                fallback: None,
                store: "simulated".into(),
            };
            let scope = Scope {
                limiter: "simulated".into(),
                key: Arc::default(),
            };
            let now = Moment::from_nanos(offset);
            let session = StoreSession::new(scope, 0, Arc::clone(&terms), now, options);
            let schedule = Schedule::of_store(session, Options::default());
            let (waiting, permits) = (Vec::new(), BTreeMap::new());
            simulation.processes.push(Process {
                schedule,
                holder,
                offset,
                alive: true,
                frozen_until: 0,
                waiting,
                permits,
                granted: 0,
                wakes_at: u64::MAX,
            });
            let start = simulation.below(100) * MS;
            simulation.at(start, Event::Start(index));
            simulation.at(start, Event::Heartbeat(index));
            if simulation.setting.faults {
                simulation.at(start, Event::Impatience(index));
            }
            if simulation.setting.failing && fails(index) {
                let at = simulation.below(simulation.setting.until / 2);
                let fails = if index % 20 == 9 {
                    Event::Die(index)
                } else {
                    Event::Freeze(index)
                };
                simulation.at(at, fails);
            }
            if simulation.setting.faults && index % 5 == 4 {
                let death = simulation.below(simulation.setting.until);
                simulation.at(death, Event::Die(index));
            }
        }
        Ok(simulation)
    }

    /// A xorshift generator.
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end.max(1)
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.pending.insert(self.sequence, event);
        self.events.push(Reverse((at.max(self.now), self.sequence)));
    }

    fn moment(&self, index: usize) -> Moment {
        Moment::from_nanos(self.now + self.processes[index].offset)
    }

    fn store_time(&self) -> Moment {
        Moment::from_nanos(EPOCH + self.now)
    }

    /// Runs all events, and passes the time of each to `tell`.
    pub(crate) fn run(&mut self, mut tell: impl FnMut(u64)) {
        while let Some(Reverse((at, sequence))) = self.events.pop() {
            if at > self.setting.until {
                break;
            }
            self.now = self.now.max(at); // an event may be late
            tell(self.now);
            if let Some(event) = self.pending.remove(&sequence) {
                self.happen(event);
                self.check();
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(index, call, sent) => return self.arrive(index, call, sent),
            Event::Die(index) => return self.processes[index].alive = false,
            Event::Freeze(index) => {
                self.processes[index].frozen_until = self.now + 3_000 * MS;
                return self.at(self.now + 6_000 * MS, Event::Freeze(index));
            }
            _ => {}
        }
        let index = event.process();
        if self.now < self.processes[index].frozen_until {
            let thaws_at = self.processes[index].frozen_until;
            if matches!(event, Event::Wake(_)) {
                self.processes[index].wakes_at = thaws_at;
            }
            return self.at(thaws_at, event);
        }
        let is_stale = matches!(event, Event::Wake(_)) && self.processes[index].wakes_at > self.now;
        if !self.processes[index].alive || is_stale {
            return;
        }
        let now = self.moment(index);
        let mut effects = Effects::default();
        match event {
            Event::Start(_) if self.setting.callers == 0 => self.ask(index, now, &mut effects),
            Event::Start(_) => {}
            Event::Impatience(_) => {
                self.give_up(index, now, &mut effects);
                let pause = 1 + self.below(200);
                self.at(self.now + pause * MS, Event::Impatience(index));
            }
            Event::Wake(_) => {
                self.processes[index].wakes_at = u64::MAX;
                self.processes[index].schedule.run_due(now, &mut effects);
            }
            Event::Turn(_, turn, next) => {
                let Process {
                    schedule, holder, ..
                } = &mut self.processes[index];
                schedule.change_session(now, &mut effects, |step| {
                    if turn == *holder {
                        step.session.turn_came(step.now);
                    } else {
                        step.session
                            .other_turn_came(step.now, next == Some(*holder));
                    }
                });
            }
            Event::Release(_, fence) => self.release(index, now, fence, &mut effects),
            Event::Reply(_, answer, sent) => self.reply(index, now, &answer, sent, &mut effects),
            Event::GiveUp(_, generation) => {
                let error = StoreError::Unanswered {
                    store: String::new(),
                    after: None,
                    source: None,
                };
                let answer = Err(CallFailed {
                    error,
                    may_have_run: true,
                });
                let schedule = &mut self.processes[index].schedule;
                schedule.change_session(now, &mut effects, |step| {
                    step.answered(generation, &answer);
                });
                self.carry(index);
            }
            Event::Heartbeat(_) => self.heartbeat(index, now),
            Event::Retry(_) => {
                let schedule = &mut self.processes[index].schedule;
                let step = schedule.session(now, &mut effects);
                step.expect(STORE).session.carrier_woke();
                self.carry(index);
            }
            Event::Arrive(..) | Event::Die(_) | Event::Freeze(_) => {}
        }
        self.settle(index, now, effects);
    }

    /// Carries out the results of an input: a caller that is answered asks again at once.
    fn settle(&mut self, index: usize, now: Moment, mut effects: Effects) {
        loop {
            for errand in effects
                .more
                .take()
                .into_iter()
                .flat_map(|more| more.errands)
            {
                if let Errand::Carry = errand {
                    self.carry(index);
                }
            }
            let process = &mut self.processes[index];
            let waiting = std::mem::take(&mut process.waiting);
            let answered: Vec<_> = waiting
                .into_iter()
                .map(|id| (id, process.schedule.waiters.poll(id, Waker::noop())))
                .collect();
            for (id, answer) in answered {
                match answer {
                    Err(_) => self.processes[index].waiting.push(id),
                    Ok(Ok(grant)) => self.hold(index, grant),
                    Ok(Err(_)) => {}
                }
            }
            if self.processes[index].waiting.len() >= self.setting.callers {
                break;
            }
            while self.processes[index].waiting.len() < self.setting.callers {
                self.ask(index, now, &mut effects);
            }
        }
        let process = &mut self.processes[index];
        if let Some(next) = process.schedule.next_wake().known() {
            let at = next
                .nanos()
                .saturating_sub(process.offset)
                .max(self.now + 1);
            if at < process.wakes_at {
                process.wakes_at = at;
                self.at(at, Event::Wake(index));
            }
        }
    }

    fn hold(&mut self, index: usize, grant: Grant) {
        let process = &mut self.processes[index];
        process.granted += 1;
        self.grants
            .push(grant.claim.reached().map_or(self.now, |at| at - EPOCH));
        if grant.claim.holds() {
            process.permits.insert(grant.fence, grant);
            let work = 1 + self.below(40);
            self.at(self.now + work * MS, Event::Release(index, grant.fence));
        }
    }

    fn ask(&mut self, index: usize, now: Moment, effects: &mut Effects) {
        let request = Request {
            costs: Costs::plain(1),
            priority: Priority::NORMAL,
            deadline: Moment::NEVER,
            caller: Location::caller(),
            blocking: false,
        };
        let process = &mut self.processes[index];
        match process
            .schedule
            .request(now, &request, &mut Some(Waker::noop().clone()), effects)
        {
            Ok(Enqueued::Queued(id)) => process.waiting.push(id),
            Ok(Enqueued::Granted(grant)) => self.hold(index, grant),
            Err(refused) => panic!("{}", refused.error),
        }
    }

    /// The request that has waited longest is given up.
    fn give_up(&mut self, index: usize, now: Moment, effects: &mut Effects) {
        let process = &mut self.processes[index];
        if !process.waiting.is_empty() {
            let id = process.waiting.remove(0);
            process.schedule.abandon(now, id, 1, effects);
        }
    }

    fn release(&mut self, index: usize, now: Moment, fence: u64, effects: &mut Effects) {
        let process = &mut self.processes[index];
        if let Some(grant) = process.permits.remove(&fence) {
            process
                .schedule
                .release_to_next(now, fence, 1, grant.claim, effects);
        }
    }

    /// A carrier comes for its next trip.
    fn carry(&mut self, index: usize) {
        let now = self.moment(index);
        let schedule = &mut self.processes[index].schedule;
        let mut effects = Effects::default();
        let step = schedule.session(now, &mut effects);
        let (call, generation) = match step.expect(STORE).next_trip(0, 0) {
            Trip::Call { call, generation } => (*call, generation),
            Trip::WaitUntil(at) => {
                let at = at.nanos().saturating_sub(self.processes[index].offset);
                return self.at(at, Event::Retry(index));
            }
            Trip::Yield(_) | Trip::End => return,
        };
        self.at(self.now + DEADLINE, Event::GiveUp(index, generation));
        self.send(index, call, Sent::Call { generation });
    }

    fn heartbeat(&mut self, index: usize, now: Moment) {
        let schedule = &mut self.processes[index].schedule;
        let mut effects = Effects::default();
        let step = schedule.session(now, &mut effects).expect(STORE);
        let ttl = step.session.lease_ttl();
        let renewals = step.session.renewals(now);
        if ttl == 0 {
            return;
        }
        for Renewal { call, fences } in renewals {
            self.send(
                index,
                call,
                Sent::Renewal {
                    sent_at: now,
                    fences,
                },
            );
        }
        self.at(self.now + ttl / 3, Event::Heartbeat(index));
    }

    /// A message takes 1 to 20 ms, and some are lost. Every seventh process is cut off for a part of each second.
    fn delay(&mut self, index: usize) -> Option<u64> {
        let is_cut = self.setting.faults && index % 7 == 3 && self.now / MS % 1_000 < 300;
        if is_cut || self.below(1_000) < self.setting.lost {
            return None;
        }
        Some((1 + self.below(20)) * MS)
    }

    fn send(&mut self, index: usize, call: Call, sent: Sent) {
        self.calls += 1;
        if let Some(delay) = self.delay(index) {
            self.at(self.now + delay, Event::Arrive(index, Box::new(call), sent));
        }
    }

    fn arrive(&mut self, index: usize, call: Box<Call>, sent: Sent) {
        let now = self.store_time();
        if call.valid_until.is_some_and(|until| until <= now.nanos()) {
            return; // its carrier gives up
        }
        let (reply, Offer { turns, next }) = self.ledger.call(now, &call);
        for holder in turns {
            for hears in 0..self.processes.len() {
                if let Some(delay) = self.delay(hears) {
                    self.at(self.now + delay, Event::Turn(hears, holder, next));
                }
            }
        }
        if let Some(delay) = self.delay(index) {
            self.at(
                self.now + delay,
                Event::Reply(index, Box::new((*call, reply)), sent),
            );
        }
    }

    fn reply(
        &mut self,
        index: usize,
        now: Moment,
        answer: &(Call, Reply),
        sent: Sent,
        effects: &mut Effects,
    ) {
        let (call, reply) = answer;
        let schedule = &mut self.processes[index].schedule;
        match sent {
            Sent::Renewal { sent_at, fences } => {
                let call = call.clone();
                let renewal = Renewal { call, fences };
                schedule.change_session(now, effects, |step| {
                    step.renewed(sent_at, &renewal, reply);
                });
            }
            Sent::Call { generation } => {
                schedule.change_session(now, effects, |step| {
                    step.answered(generation, &Ok(reply.clone()));
                });
                self.carry(index);
            }
        }
    }

    /// The permits that are live as their holders see it, dead processes included, are no more than the limit of places.
    fn check(&mut self) {
        if !self.ledger.plan().holds_places() {
            return;
        }
        let mut live = 0;
        for index in 0..self.processes.len() {
            let now = self.moment(index);
            let process = &mut self.processes[index];
            for grant in process.permits.values() {
                if let Some(lease) = grant.claim.lease() {
                    live += u64::from(
                        process
                            .schedule
                            .live_lease(now, lease, grant.fence)
                            .is_some(),
                    );
                }
            }
        }
        self.most_places = self.most_places.max(live);
    }

    #[cfg(feature = "_simulation")]
    pub(crate) fn granted_of_each(&self) -> impl Iterator<Item = u64> {
        let failing = self.setting.failing;
        let processes = self.processes.iter().enumerate();
        let sound = processes.filter(move |(index, _)| !failing || !fails(*index));
        sound.map(|(_, process)| process.granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(setting: Setting) -> Simulation {
        let mut simulation = Simulation::new(setting).unwrap();
        simulation.run(|_| {});
        simulation
    }

    /// The most units in any span of this length.
    fn most_in(grants: &mut [u64], span: u64) -> usize {
        grants.sort_unstable();
        let within =
            |(first, start): (usize, &u64)| grants[first..].partition_point(|at| at - start < span);
        grants.iter().enumerate().map(within).max().unwrap_or(0)
    }

    fn seeds() -> impl Iterator<Item = u64> {
        (1..=8).map(|seed: u64| seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    #[test]
    fn places_are_never_over_and_come_back_from_the_dead() {
        for seed in seeds() {
            let policy = "5 concurrent ttl 400ms".parse().unwrap();
            let run = run(Setting {
                policy,
                processes: 12,
                callers: 4,
                lost: 50,
                faults: true,
                failing: false,
                prefetch: None,
                until: 5_000 * MS,
                seed,
            });
            assert!(run.most_places <= 5, "seed {seed}: {}", run.most_places);
            assert!(run.grants.len() > 100, "seed {seed}: {}", run.grants.len());
            let late = run.grants.iter().filter(|at| **at > 4_000 * MS).count();
            assert!(late > 10, "seed {seed}: places were lost");
        }
    }

    #[test]
    fn shares_are_equal_although_one_in_ten_fails() {
        for seed in seeds() {
            let policy = "1000/s burst 100".parse().unwrap();
            let run = run(Setting {
                policy,
                processes: 100,
                callers: 4,
                lost: 0,
                faults: false,
                failing: true,
                prefetch: None,
                until: 6_000 * MS,
                seed,
            });
            let processes = run.processes.iter().enumerate();
            let sound = processes.filter(|(index, _)| !fails(*index));
            let grants: Vec<_> = sound.map(|(_, process)| process.granted as f64).collect();
            let sum: f64 = grants.iter().sum();
            let squares: f64 = grants.iter().map(|grants| grants * grants).sum();
            let index = sum * sum / (grants.len() as f64 * squares); // Jain's
            assert!(index > 0.99, "seed {seed}: {index}");
            assert!(
                run.grants.len() > 5_800,
                "seed {seed}: {}",
                run.grants.len()
            );
            let calls = run.calls as f64 / run.grants.len() as f64;
            assert!(calls < 1.1, "seed {seed}: {calls}");
        }
    }

    #[test]
    fn a_rate_is_never_over_and_mostly_used() {
        for (seed, prefetch) in seeds().zip(
            [
                None,
                Some(PrefetchOptions {
                    max: 20,
                    kept_for: 100 * MS,
                }),
            ]
            .into_iter()
            .cycle(),
        ) {
            let policy = "sliding log 50/s".parse().unwrap();
            let mut run = run(Setting {
                policy,
                processes: 12,
                callers: 4,
                lost: 20,
                faults: true,
                failing: false,
                prefetch,
                until: 6_000 * MS,
                seed,
            });
            let most = most_in(&mut run.grants, 1_000 * MS);
            assert!(most <= 50, "seed {seed}: {most}");
            assert!(run.grants.len() > 150, "seed {seed}: {}", run.grants.len());
        }
    }
}
