//! The word before the lock, its guard, and the answers that are taken without the lock, in every interleaving of two threads and in those
//! of three with few preemptions.
//!
//! The code that is checked is the crate's own: its files are compiled here with the atomics and the lock of loom, a model checker.
//! The state behind the word is a small limiter of this file. `LOOM_MAX_PREEMPTIONS` sets another bound for three threads.

#[allow(dead_code, reason = "some of it is for unit tests")]
#[path = "../src/core/queue/answers.rs"]
mod answers;
#[path = "../src/manager/lock/guard.rs"]
mod guard;
#[path = "../src/core/word/packed_rate.rs"]
mod packed_rate;
#[allow(dead_code, reason = "a new policy is not modelled")]
#[path = "../src/manager/lock/word.rs"]
mod word;

mod core {
    pub(crate) mod word {
        pub(crate) use crate::packed_rate;
    }
}

mod sync {
    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Behaves as the type of parking_lot.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// Behaves as the type of the standard library, because loom has none.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        is_set: AtomicU64,
        setting: Mutex<()>,
        value: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self {
                is_set: AtomicU64::new(0),
                setting: Mutex::new(()),
                value: std::sync::OnceLock::new(),
            }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            if self.is_set.load(Ordering::Acquire) == 0 {
                None
            } else {
                self.value.get()
            }
        }

        pub(crate) fn get_or_init(&self, value: impl FnOnce() -> T) -> &T {
            let _setting = self.setting.lock();
            let value = self.value.get_or_init(value);
            self.is_set.store(1, Ordering::Release);
            value
        }
    }

    impl<T> From<T> for OnceLock<T> {
        fn from(value: T) -> Self {
            Self {
                is_set: AtomicU64::new(1),
                setting: Mutex::new(()),
                value: value.into(),
            }
        }
    }
}

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc as Shared;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread::{self, Thread};

use self::Job::{
    Adapt, Close, Deny, GiveUp, GiveUpInFlow, Hold, HoldInFlow, Look, PauseAndResume, Refund,
    Report, SetLimit, Spend, Switch,
};
use self::answers::{Answers, Slot, Slots};
use self::guard::{BehindWord, Guarded, Source};
use self::packed_rate::{MAX_PLACES, MAX_VALUE, PackedRate, WordContents, WordValue};
use self::word::{PutBack, WordRate};

/// The state that the lock protects.
#[derive(Debug)]
struct State {
    limit: u64,
    in_use: u64,
    fence: u64,
    queue: VecDeque<Waiter>,
    slots: Slots,
    /// The slots of requests that were refused.
    refused: BTreeSet<Slot>,
    /// The grants to requests of flows, by slot: such an answer lies under the lock.
    granted_in_flows: BTreeMap<Slot, u64>,
    /// The units that permits of flows hold. Meanwhile every grant is made under the lock, where the flows count it.
    in_flows: u64,
    /// Whether reports on work move the limit.
    adapts: bool,
    closed: bool,
    paused: bool,
    /// Whether the policy is a rate, which brings no units while the test runs.
    is_rate: bool,
    used: u64,
    line: PackedRate,
    /// The latest value.
    latest: u64,
    drawn: Shared<Drawn>,
}

/// The units that were used when a line was drawn, by its `max_age`, which differs from line to line.
type Drawn = std::sync::Mutex<BTreeMap<u64, u64>>;

#[derive(Debug)]
struct Waiter {
    slot: Slot,
    cost: u64,
    in_flow: bool,
    thread: Thread,
}

impl BehindWord for State {
    fn take_over(&mut self, content: WordValue, fence: u64, _latest: Option<u64>) {
        match content {
            WordValue::Places { units } => self.in_use = self.limit - units,
            WordValue::Rate { value } => {
                self.used = value - self.line.origin;
                self.latest = value;
            }
        }
        self.fence = fence;
    }

    fn put_back(&mut self, units: u64) {
        self.in_use -= units;
    }

    fn may_hand_over(&self) -> bool {
        self.queue.is_empty() && self.in_flows == 0 && !self.adapts
    }

    fn hand_over(&mut self) -> Option<(WordContents, u64)> {
        if self.closed || self.paused {
            return None;
        }
        if !self.is_rate {
            let units = self
                .limit
                .checked_sub(self.in_use)
                .filter(|_| self.limit <= MAX_PLACES)?;
            return Some((WordContents::Places { units }, self.fence));
        }
        self.line = PackedRate {
            origin: (self.latest + 1 - self.used.min(self.latest + 1)).max(self.line.origin),
            parts_per_unit: 1,
            tolerance: self.limit,
            max_age: MAX_VALUE / 2 + self.latest,
            ..self.line
        };
        self.drawn
            .lock()
            .unwrap()
            .insert(self.line.max_age, self.used);
        self.latest = self.line.origin + self.used;
        (self.in_use == 0).then_some((
            WordContents::Rate {
                line: self.line,
                value: self.latest,
            },
            self.fence,
        ))
    }
}

impl State {
    fn admits(&self, cost: u64) -> bool {
        let used = if self.is_rate { self.used } else { self.in_use };
        !self.paused && used + cost <= self.limit
    }

    fn admit(&mut self, cost: u64, in_flow: bool) -> Option<u64> {
        if !self.admits(cost) {
            return None;
        }
        if in_flow {
            self.in_flows += cost;
        }
        *(if self.is_rate {
            &mut self.used
        } else {
            &mut self.in_use
        }) += cost;
        self.fence += 1;
        Some(self.fence)
    }

    fn release(&mut self, cost: u64, in_flow: bool) {
        self.in_use -= cost;
        if in_flow {
            self.in_flows -= cost;
        }
    }
}

/// The numbers that determine a state.
#[derive(Debug)]
struct Beginning {
    limit: u64,
    is_rate: bool,
    fence: u64,
    rate: WordRate,
    drawn: Shared<Drawn>,
}

impl Source for Beginning {
    type State = State;
    type OutsideLock = Shared<Answers>;

    fn state(&self) -> (State, Shared<Answers>) {
        let &Self {
            limit,
            is_rate,
            fence,
            ..
        } = self;
        let mut slots = Slots::default();
        let slot = slots.claim(1).expect("a slot is free");
        slots.free(slot);
        let answers = Shared::clone(
            slots
                .answers
                .as_ref()
                .expect("they are allocated with the first slot"),
        );
        let state = State {
            limit,
            in_use: 0,
            fence,
            queue: VecDeque::new(),
            slots,
            refused: BTreeSet::new(),
            granted_in_flows: BTreeMap::new(),
            in_flows: 0,
            adapts: false,
            closed: false,
            paused: false,
            is_rate,
            used: 0,
            line: PackedRate::default(),
            latest: 0,
            drawn: Shared::clone(&self.drawn),
        };
        (state, answers)
    }

    fn rate(&self) -> Option<&WordRate> {
        Some(&self.rate)
    }
}

struct Limiter {
    state: Guarded<Beginning>,
}

impl Limiter {
    /// A limiter of places can begin as `only_a_word`.
    fn new(limit: u64, is_rate: bool, fence: u64, only_a_word: bool) -> Self {
        let beginning = Shared::new(Beginning {
            limit,
            is_rate,
            fence,
            rate: WordRate::default(),
            drawn: Shared::default(),
        });
        if only_a_word {
            return Self {
                state: Guarded::of_places(beginning, limit, fence),
            };
        }
        let (state, answers) = beginning.state();
        Self {
            state: Guarded::new(beginning, state, answers),
        }
    }

    /// Changes the state, and serves the queue.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let mut woken = Vec::new();
        while let Some(&Waiter {
            slot,
            cost,
            in_flow,
            ..
        }) = state.queue.front()
        {
            if state.closed {
                state.refused.insert(slot);
            } else if let Some(fence) = state.admit(cost, in_flow) {
                if in_flow {
                    state.granted_in_flows.insert(slot, fence);
                } else {
                    state.slots.grant(slot, fence);
                }
            } else {
                break;
            }
            woken.extend(state.queue.pop_front().map(|waiter| waiter.thread));
        }
        drop(state);
        woken.iter().for_each(Thread::unpark);
    }

    /// Grants in place, or queues the request. No word grants a request of a flow.
    fn begin(&self, cost: u64, in_flow: bool) -> Begun {
        if !in_flow && let Some(fence) = self.state.word.take_place(cost) {
            return Begun::Granted(fence);
        }
        let mut state = self.state.lock();
        if state.closed {
            return Begun::Refused;
        }
        if state.queue.is_empty()
            && let Some(fence) = state.admit(cost, in_flow)
        {
            return Begun::Granted(fence);
        }
        let slot = state
            .slots
            .claim(1)
            .expect("there are more slots than threads");
        state.queue.push_back(Waiter {
            slot,
            cost,
            in_flow,
            thread: thread::current(),
        });
        Begun::Queued(slot)
    }

    /// The answer to a queued request, if there is one. A grant is taken without the lock.
    fn poll(&self, slot: Slot) -> Option<Option<u64>> {
        if let Some(fence) = self.state.outside_lock().take(slot) {
            return Some(Some(fence));
        }
        let mut state = self.state.lock();
        if let Some(fence) = state.slots.take(slot) {
            return Some(Some(fence));
        }
        let granted = state.granted_in_flows.remove(&slot);
        (granted.is_some() || state.refused.remove(&slot)).then(|| {
            state.slots.free(slot);
            granted
        })
    }

    /// The fence of the grant; `None` if the limiter is closed.
    fn acquire(&self, cost: u64, in_flow: bool) -> Option<u64> {
        let slot = match self.begin(cost, in_flow) {
            Begun::Granted(fence) => return Some(fence),
            Begun::Refused => return None,
            Begun::Queued(slot) => slot,
        };
        loop {
            match self.poll(slot) {
                Some(answer) => return answer,
                None => thread::park(),
            }
        }
    }

    /// Queues a request if it must wait, polls it once, and gives it up. An untaken grant goes to the next request.
    fn glance(&self, cost: u64, in_flow: bool) -> Option<u64> {
        let slot = match self.begin(cost, in_flow) {
            Begun::Granted(fence) => return Some(fence),
            Begun::Refused => return None,
            Begun::Queued(slot) => slot,
        };
        if let Some(fence) = self.state.outside_lock().take(slot) {
            return Some(fence);
        }
        self.change(|state| {
            if state.slots.take(slot).is_some() {
                state.release(cost, in_flow);
                return;
            }
            if state.granted_in_flows.remove(&slot).is_some() {
                state.release(cost, in_flow);
            }
            state.queue.retain(|waiter| waiter.slot != slot);
            state.refused.remove(&slot);
            state.slots.free(slot);
        });
        None
    }

    /// Takes units without waiting. Returns the fence of the grant, and whether it holds a place.
    fn spend(&self, cost: u64) -> Option<(u64, bool)> {
        let word = &self.state.word;
        let granted = if word.decides_rate() {
            let taken = word.take_rate(&self.state.common().rate, 0, cost);
            taken.map(|(fence, _)| (fence, false))
        } else {
            word.take_place(cost).map(|fence| (fence, true))
        };
        granted.or_else(|| {
            if self.state.peek().is_some_and(|looked| !looked.admits(cost)) {
                return None;
            }
            let mut state = self.state.lock();
            Some((state.admit(cost, false)?, !state.is_rate))
        })
    }

    fn release(&self, cost: u64) {
        match self.state.word.put_back(cost) {
            PutBack::Done => {}
            PutBack::InTransit => self.change(|_| {}),
            PutBack::Refused => self.change(|state| state.release(cost, false)),
        }
    }

    /// Releases units whose work has failed. Where there is only a word, nothing learns from that.
    fn report(&self, cost: u64) {
        if self.state.is_only_a_word() {
            return self.release(cost);
        }
        self.change(|state| {
            state.release(cost, false);
            if state.adapts {
                state.limit = 1.max(state.limit - 1);
            }
        });
    }
}

enum Begun {
    Granted(u64),
    Refused,
    Queued(Slot),
}

/// The job of a thread.
#[derive(Debug, Clone, Copy)]
enum Job {
    /// Acquires this many units, and releases them.
    Hold(u64),
    /// The same, but gives up if the units are not granted at the second poll.
    GiveUp(u64),
    /// As the two above, by a request of a flow.
    HoldInFlow(u64),
    GiveUpInFlow(u64),
    /// Acquires this many units, and releases them with a report that the work has failed.
    Report(u64),
    /// Replaces the policy by one whose limit follows the reports.
    Adapt,
    Close,
    PauseAndResume,
    SetLimit(u64),
    Look,
    /// Takes this many units without waiting, of a rate or as places, which it releases.
    Spend(u64),
    /// Is denied this many units of a rate, or nothing.
    Deny(u64),
    /// Lowers the usage of a rate.
    Refund(u64),
    /// Changes the policy from a rate to a concurrency, or back.
    Switch,
}

struct World {
    limiter: Limiter,
    limit: u64,
    /// The units that all threads can hold together.
    most_held: u64,
    /// The fences that the latest grant can have.
    fences: RangeInclusive<u64>,
    /// The units held, as the test counts them. The accesses are relaxed, so they order nothing.
    held: AtomicU64,
    /// The fence of the latest holder, where there is one place: two holders at once, or one that does not see what the former did,
    /// are a data race.
    latest: UnsafeCell<u64>,
}

impl World {
    /// Performs a job. Returns the fence of its grant.
    fn run(&self, job: Job) -> Option<u64> {
        let in_flow = matches!(job, HoldInFlow(_) | GiveUpInFlow(_));
        let (fence, cost) = match job {
            Hold(cost) | HoldInFlow(cost) | Report(cost) => {
                (self.limiter.acquire(cost, in_flow)?, cost)
            }
            GiveUp(cost) | GiveUpInFlow(cost) => (self.limiter.glance(cost, in_flow)?, cost),
            Adapt => {
                self.limiter.change(|state| state.adapts = true);
                return None;
            }
            Close => {
                self.limiter.change(|state| state.closed = true);
                return None;
            }
            PauseAndResume => {
                self.limiter.change(|state| state.paused = true);
                self.limiter.change(|state| state.paused = false);
                return None;
            }
            SetLimit(limit) => {
                self.limiter.change(|state| state.limit = limit);
                return None;
            }
            Refund(units) => {
                self.limiter
                    .change(|state| state.used = state.used.saturating_sub(units));
                return None;
            }
            Switch => {
                self.limiter
                    .change(|state| (state.is_rate, state.used) = (!state.is_rate, 0));
                return None;
            }
            Spend(cost) => {
                let (fence, holds) = self.limiter.spend(cost)?;
                if holds {
                    self.limiter.release(cost);
                }
                return Some(fence);
            }
            Deny(cost) => {
                let Beginning { rate, drawn, .. } = &**self.limiter.state.common();
                if let Some(denial) = self.limiter.state.word.deny_rate(rate, 0, cost) {
                    let used = drawn.lock().unwrap()[&(denial.until - 1)];
                    assert_eq!(denial.remaining, self.limit - used, "of one line");
                }
                return None;
            }
            Look => {
                let check = |state: &State| {
                    assert!(
                        state.in_use <= self.most_held && state.used <= self.limit,
                        "{state:?}"
                    );
                    assert!(self.fences.contains(&state.fence), "{state:?}");
                };
                assert_eq!(self.limiter.state.common().rate.present(0), Some(0));
                if let Some(copy) = self.limiter.state.copy_of_word() {
                    check(&copy);
                } else if let Some(looked) = self.limiter.state.peek() {
                    check(&looked);
                } else {
                    check(&self.limiter.state.lock());
                }
                return None;
            }
        };
        let held = self.held.fetch_add(cost, Relaxed) + cost;
        assert!(held <= self.limit, "{held} units held");
        assert!(
            !in_flow || !self.limiter.state.word.is_open(),
            "a word grants what no flow counts"
        );
        if self.limit == 1 {
            self.latest.with_mut(|latest| {
                // SAFETY: loom reports a second holder.
                let latest = unsafe { &mut *latest };
                assert!(fence > *latest, "fence {fence} after {latest}");
                *latest = fence;
            });
        }
        self.held.fetch_sub(cost, Relaxed);
        match job {
            Report(_) => self.limiter.report(cost),
            _ if in_flow => self.limiter.change(|state| state.release(cost, true)),
            _ => self.limiter.release(cost),
        }
        Some(fence)
    }
}

/// Checks a limiter of places, with a state from the start and without one.
fn check(limit: u64, fence: u64, jobs: &'static [Job]) {
    for only_a_word in [false, true] {
        check_limiter(jobs, limit, fence, move || {
            Limiter::new(limit, false, fence, only_a_word)
        });
    }
}

fn check_policy(limit: u64, is_rate: bool, fence: u64, jobs: &'static [Job]) {
    check_limiter(jobs, limit, fence, move || {
        Limiter::new(limit, is_rate, fence, false)
    });
}

/// Runs a thread for each job. `limit` is the largest limit there is at any time; `fence` is that of the latest grant before.
fn check_limiter(
    jobs: &'static [Job],
    limit: u64,
    fence: u64,
    limiter: impl Fn() -> Limiter + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    if jobs.len() > 2 {
        model.preemption_bound = model.preemption_bound.or(Some(2));
    }
    model.check(move || {
        let limiter = limiter();
        let is_rate = limiter.state.common().is_rate;
        let cost = |job: &Job| match job {
            Hold(cost) | GiveUp(cost) | HoldInFlow(cost) | GiveUpInFlow(cost) | Report(cost) => {
                *cost
            }
            _ => 0,
        };
        let most_held = jobs.iter().map(cost).sum::<u64>().min(limit);
        let fences = fence..=fence + jobs.len() as u64;
        let world = World {
            limiter,
            limit,
            most_held,
            fences,
            held: AtomicU64::new(0),
            latest: UnsafeCell::new(fence),
        };
        let world = Arc::new(world);
        let others: Vec<_> = (1..jobs.len())
            .map(|nth| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.run(jobs[nth]))
            })
            .collect();
        let mut fences = vec![world.run(jobs[0])];
        fences.extend(others.into_iter().map(|other| other.join().unwrap()));

        let closed = jobs.iter().any(|job| matches!(job, Close));
        let gives_up = |job: &&Job| matches!(job, GiveUp(_) | GiveUpInFlow(_));
        let gave_up = jobs.iter().filter(gives_up).count();
        let must_wait = |job: &Job| matches!(job, Hold(_) | HoldInFlow(_) | Report(_));
        for (job, fence) in jobs.iter().zip(&fences) {
            assert!(
                !must_wait(job) || closed || fence.is_some(),
                "{job:?} was not granted"
            );
        }
        let mut fences: Vec<u64> = fences.into_iter().flatten().collect();
        fences.sort_unstable();
        let is_open = world.limiter.state.word.is_open();
        let state = world.limiter.state.lock();
        assert_eq!((state.in_use, state.in_flows, state.queue.len()), (0, 0, 0));
        assert_eq!(
            is_open,
            !state.closed && !state.adapts,
            "it is opened again"
        );
        if !jobs.iter().any(|job| matches!(job, Refund(_) | Switch)) && is_rate {
            let spent = jobs
                .iter()
                .filter_map(|job| {
                    if let Spend(cost) = job {
                        Some(*cost)
                    } else {
                        None
                    }
                })
                .sum::<u64>();
            assert_eq!(state.used, spent.min(limit), "each costs one unit");
        }
        // A grant that was given up untaken had a fence of its own.
        let granted = (state.fence - fence) as usize;
        assert!(
            granted >= fences.len() && granted <= fences.len() + gave_up,
            "{granted} grants, {fences:?}"
        );
        assert!(
            fences.windows(2).all(|two| two[0] < two[1]),
            "twice: {fences:?}"
        );
        assert!(
            fences
                .iter()
                .all(|given| (fence + 1..=state.fence).contains(given)),
            "{fences:?}"
        );
    });
}

#[test]
fn two_threads_that_hold_one_place() {
    check(1, 0, &[Hold(1), Hold(1)]);
}

#[test]
fn two_threads_that_hold_several_units() {
    check(3, 0, &[Hold(2), Hold(2)]);
}

#[test]
fn one_of_two_gives_up() {
    check(1, 0, &[Hold(1), GiveUp(1)]);
    check(1, 0, &[GiveUp(1), GiveUp(1)]);
}

#[test]
fn a_limiter_is_closed() {
    check(1, 0, &[Hold(1), Close]);
    check(1, 0, &[Hold(1), Hold(1), Close]);
}

#[test]
fn a_limiter_is_paused() {
    check(1, 0, &[Hold(1), PauseAndResume]);
    check(1, 0, &[Hold(1), Hold(1), PauseAndResume]);
}

#[test]
fn a_policy_is_replaced() {
    check(2, 0, &[Hold(1), SetLimit(1)]);
    check(2, 0, &[Hold(1), Hold(1), SetLimit(1)]);
}

#[test]
fn a_state_is_peeked_at() {
    check(1, 0, &[Hold(1), Look]);
    check(1, 0, &[Hold(1), Hold(1), Look]);
    check(2, 0, &[SetLimit(1), Look]);
    check(2, 0, &[SetLimit(1), Hold(1), Look]);
}

/// The first request of a flow shuts the word, and the last one opens it.
#[test]
fn a_flow_holds_the_word_shut() {
    check(1, 0, &[Hold(1), HoldInFlow(1)]);
    check(2, 0, &[Hold(1), HoldInFlow(1)]);
    check(1, 0, &[HoldInFlow(1), HoldInFlow(1)]);
    check(1, 0, &[Hold(1), Hold(1), HoldInFlow(1)]);
    check(2, 0, &[Hold(1), Hold(1), HoldInFlow(1)]);
    check(1, 0, &[HoldInFlow(1), HoldInFlow(1), Hold(1)]);
}

/// An answer that lies under the lock comes while its future is dropped.
#[test]
fn a_request_of_a_flow_gives_up() {
    check(1, 0, &[Hold(1), GiveUpInFlow(1)]);
    check(1, 0, &[HoldInFlow(1), GiveUp(1)]);
    check(1, 0, &[GiveUpInFlow(1), GiveUpInFlow(1)]);
    check(1, 0, &[HoldInFlow(1), GiveUpInFlow(1), Hold(1)]);
    check(1, 0, &[Hold(1), GiveUpInFlow(1), Close]);
}

#[test]
fn results_are_reported() {
    check(1, 0, &[Report(1), Report(1)]);
    check(1, 0, &[Report(1), GiveUp(1)]);
    check(1, 0, &[Report(1), HoldInFlow(1)]);
    check(1, 0, &[Report(1), Hold(1), HoldInFlow(1)]);
    check(2, 0, &[Report(1), Look]);
}

/// Permits that the word granted are reported to a limit that learns from them.
#[test]
fn a_policy_begins_to_adapt() {
    check(2, 0, &[Report(1), Adapt]);
    check(2, 0, &[Report(1), Report(1), Adapt]);
    check(1, 0, &[Report(1), Hold(1), Adapt]);
    check(2, 0, &[Report(1), HoldInFlow(1), Adapt]);
}

/// The count wraps around at the first opening.
#[test]
fn the_count_wraps_around() {
    const MAX_COUNT: u64 = (1 << 30) - 1;
    for fence in MAX_COUNT - 3..=MAX_COUNT + 1 {
        check(1, fence, &[Hold(1), Hold(1)]);
    }
    check(1, MAX_COUNT - 2, &[Hold(1), Hold(1), Hold(1)]);
}

#[test]
fn threads_spend_a_rate() {
    check_policy(3, true, 0, &[Spend(1), Spend(1)]);
    check_policy(1, true, 0, &[Spend(1), Spend(1)]);
    check_policy(2, true, 0, &[Spend(1), Spend(1), Spend(1)]);
    check_policy(2, true, 0, &[Spend(1), Spend(1), Look]);
}

#[test]
fn units_of_a_rate_are_refunded() {
    check_policy(1, true, 0, &[Spend(1), Refund(1)]);
    check_policy(1, true, 0, &[Spend(1), Refund(1), Spend(1)]);
}

#[test]
fn a_denial_of_a_rate_is_of_one_line() {
    let all_used = || {
        let limiter = Limiter::new(3, true, 0, false);
        limiter.change(|state| state.used = 3);
        limiter
    };
    // loom tries more orders if the thread that writes comes first.
    check_limiter(&[Refund(1), Deny(3)], 3, 0, all_used);
    check_limiter(&[Refund(1), Deny(3), Refund(1)], 3, 0, all_used);
}

#[test]
fn the_count_of_a_rate_wraps_around() {
    const MAX_COUNT: u64 = (1 << 9) - 1;
    for fence in MAX_COUNT - 3..=MAX_COUNT + 1 {
        check_policy(3, true, fence, &[Spend(1), Spend(1)]);
    }
    check_policy(3, true, MAX_COUNT - 2, &[Spend(1), Spend(1), Spend(1)]);
}

#[test]
fn a_policy_becomes_of_another_kind() {
    check_policy(2, true, 0, &[Spend(1), Switch]);
    check_policy(2, false, 0, &[Spend(1), Switch]);
    check_policy(2, true, 0, &[Spend(1), Switch, Spend(1)]);
    check_policy(2, false, 0, &[Spend(1), Switch, Spend(1)]);
    check_policy(2, false, 0, &[Spend(1), Switch, Switch]);
}

#[test]
fn three_threads_that_hold_one_place() {
    check(1, 0, &[Hold(1), Hold(1), Hold(1)]);
}

#[test]
fn one_of_three_gives_up() {
    check(1, 0, &[Hold(1), GiveUp(1), Hold(1)]);
}
