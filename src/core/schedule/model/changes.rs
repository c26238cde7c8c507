//! The schedule under changes: other policies, settled and refunded costs, pauses, resets. The reference keeps for each limit what it was
//! charged since it began; what it took over is its first charge. Refunds are bounded below what would be exact, so the reference
//! says what may be granted, not what must be: that nobody is stranded is checked by itself.

use std::collections::BTreeMap;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;

use proptest::prelude::*;

use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::grant::Admission;
use crate::core::plan::Plan;
use crate::core::queue::AnswerKind;
use crate::core::request::Request;
use crate::core::schedule::{Options, Outcome, Schedule};
use crate::policy::{Limit, Policy};
use crate::priority::Priority;
use crate::rate::Rate;
use crate::strategy::{FixedWindow, MaxConcurrency, Moment, SlidingMethod, SlidingWindow, Throttle, TokenBucket};

#[derive(Debug, Clone)]
enum Step {
    Request { cost: u64, priority: u8, timeout: Option<u64> },
    TryAcquire { cost: u64 },
    Poll(prop::sample::Index),
    Abandon(prop::sample::Index),
    Release(prop::sample::Index),
    Settle(prop::sample::Index, u64),
    Leak(prop::sample::Index),
    Renew(prop::sample::Index),
    SetPolicy(Policy, bool),
    Reset,
    Pause(Option<u64>),
    Resume,
    Pass(u64),
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any_of = any::<prop::sample::Index>;
    let step = prop_oneof![
        8 => (1_u64..7, 0_u8..3, prop::option::weighted(0.2, 0_u64..120))
            .prop_map(|(cost, priority, timeout)| Step::Request { cost, priority, timeout }),
        3 => (1_u64..5).prop_map(|cost| Step::TryAcquire { cost }),
        4 => any_of().prop_map(Step::Poll),
        2 => any_of().prop_map(Step::Abandon),
        2 => any_of().prop_map(Step::Release),
        5 => (any_of(), 0_u64..10).prop_map(|(permit, actual)| Step::Settle(permit, actual)),
        1 => any_of().prop_map(Step::Leak),
        1 => any_of().prop_map(Step::Renew),
        2 => (policies(), any::<bool>()).prop_map(|(policy, in_proportion)| Step::SetPolicy(policy, in_proportion)),
        1 => Just(Step::Reset),
        1 => prop::option::weighted(0.8, 0_u64..200).prop_map(Step::Pause),
        1 => Just(Step::Resume),
        6 => prop_oneof![0_u64..30, 0_u64..300].prop_map(Step::Pass),
    ];
    (prop::collection::vec(step, 1..80), prop::option::weighted(0.1, 0_usize..80)).prop_map(|(mut steps, close)| {
        if let Some(at) = close {
            steps.insert(at.min(steps.len()), Step::Close);
        }
        steps
    })
}

/// Of few sizes, so that a change often meets the same limit, or one of its kind.
fn policies() -> impl Strategy<Value = Policy> {
    let nanos = Duration::from_nanos;
    let limit = prop_oneof![
        (1_u64..3, 3_u64..5).prop_map(move |(n, burst)| Limit::from(Throttle::every(nanos(n * 17)).burst(burst))),
        (2_u64..7, prop::option::of(1_u64..4)).prop_map(move |(limit, ttl)| {
            let concurrency = MaxConcurrency::new(limit);
            Limit::from(ttl.map_or(concurrency, |ttl| concurrency.ttl(nanos(ttl * 60))))
        }),
        (3_u64..6, 1_u64..3).prop_map(move |(limit, n)| Limit::from(FixedWindow::new(limit, nanos(n * 40)))),
        (1_u64..4, 3_u64..7, any::<bool>(), prop::option::of(0_u64..4)).prop_map(move |(units, burst, interval, initial)| {
            let bucket = TokenBucket::new(Rate::new(units, nanos(50)), burst);
            let bucket = if interval { bucket.refill_each_period() } else { bucket };
            Limit::from(initial.map_or(bucket, |initial| bucket.initial(initial)))
        }),
        (3_u64..6, 1_u64..3, any::<bool>()).prop_map(move |(limit, n, log)| {
            let period = nanos(n * 40);
            Limit::from(if log { SlidingWindow::log(limit, period) } else { SlidingWindow::counter(limit, period) })
        }),
    ];
    prop::collection::vec(limit, 1..4).prop_map(|limits| limits.into_iter().map(Policy::from).reduce(Policy::and).unwrap())
}

/// What a limit was charged: when, how much, and by which grant, if by one.
#[derive(Debug, Clone, Copy)]
struct Charge {
    at: u64,
    units: u64,
    grant: Option<u64>,
}

/// One limit of the present policy.
#[derive(Debug, Clone)]
struct Ledger {
    limit: Limit,
    charges: Vec<Charge>,
}

impl Ledger {
    /// As new, with what it lacks when new.
    fn new(limit: Limit, now: u64) -> Self {
        let lack = match limit {
            Limit::TokenBucket(bucket) => limit.capacity().saturating_sub(bucket.initial.unwrap_or(u64::MAX)),
            _ => 0,
        };
        Self { limit, charges: vec![Charge { at: now, units: lack, grant: None }] }
    }

    fn counts_places(&self) -> bool {
        matches!(self.limit, Limit::MaxConcurrency(_))
    }

    fn units(&self, which: impl Fn(u64) -> bool) -> u64 {
        self.charges.iter().filter(|charge| which(charge.at)).map(|charge| charge.units).sum()
    }

    /// Units that stand against it, times a denominator of its own.
    fn used(&self, now: u64) -> (u64, u64) {
        match self.limit {
            Limit::Throttle(Throttle { interval, .. }) => self.paced(1, interval, now),
            Limit::TokenBucket(TokenBucket { rate, each_period: false, .. }) => self.paced(rate.units(), rate.period(), now),
            Limit::TokenBucket(TokenBucket { rate, .. }) => (self.windowed(rate.period(), rate.units(), now), 1),
            Limit::FixedWindow(FixedWindow { limit, period, .. }) => (self.windowed(period, limit, now), 1),
            Limit::SlidingWindow(SlidingWindow { period, method: SlidingMethod::Log, .. }) => {
                (self.units(|at| at + period.as_nanos() as u64 > now), 1)
            }
            Limit::SlidingWindow(SlidingWindow { period, method: SlidingMethod::Counter, .. }) => {
                let period = period.as_nanos() as u64;
                let previous = self.units(|at| at / period + 1 == now / period) * (period - now % period);
                (previous + self.units(|at| at / period == now / period) * period, period)
            }
            Limit::MaxConcurrency(_) | Limit::Penalty(_) => (0, 1),
        }
    }

    /// Each charge and all after it, less what the time since has brought.
    fn paced(&self, units: u64, period: Duration, now: u64) -> (u64, u64) {
        let period = period.as_nanos() as u64;
        let since = |first: usize| {
            let taken = self.charges[first..].iter().map(|charge| charge.units).sum::<u64>() * period;
            taken.saturating_sub((now - self.charges[first].at) * units)
        };
        ((0..self.charges.len()).map(since).max().unwrap_or(0), period)
    }

    /// Window after window, each taking so many units off what the last one leaves it.
    fn windowed(&self, period: Duration, refill: u64, now: u64) -> u64 {
        let period = period.as_nanos() as u64;
        (0..=now / period).fold(0, |used: u64, window| used.saturating_sub(refill) + self.units(|at| at / period == window))
    }

    fn admits(&self, now: u64, cost: u64) -> bool {
        let (used, of) = self.used(now);
        used + cost * of <= self.limit.capacity() * of
    }
}

/// One grant that was ever given.
#[derive(Debug, Clone, Copy)]
struct Grant {
    cost: u64,
    /// Out, holding a place.
    held: bool,
    /// From when its TTL counts; `None` where it was granted without one.
    leased: Option<u64>,
}

/// A permit in somebody's hands.
#[derive(Debug, Clone, Copy)]
struct Held {
    admission: Admission,
    cost: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    index: Index,
    cost: u64,
    priority: u8,
}

struct Harness {
    schedule: Schedule,
    now: u64,
    ledgers: Vec<Ledger>,
    /// By fence.
    grants: BTreeMap<u64, Grant>,
    /// By arrival, those who have no answer.
    waiting: BTreeMap<usize, Waiting>,
    /// Refused, and not polled since.
    failed: Vec<Index>,
    held: Vec<Held>,
    leaked: Vec<Held>,
    paused_until: u64,
    closed: bool,
    arrivals: usize,
}

impl Harness {
    fn new(policy: &Policy) -> Self {
        let gate = Gate::new(Plan::new(policy.clone(), Duration::ZERO).unwrap(), Moment::START, false);
        Self {
            schedule: Schedule::new(gate, Options::default()),
            now: 0,
            ledgers: policy.limits().iter().map(|limit| Ledger::new(*limit, 0)).collect(),
            grants: BTreeMap::new(),
            waiting: BTreeMap::new(),
            failed: Vec::new(),
            held: Vec::new(),
            leaked: Vec::new(),
            paused_until: 0,
            closed: false,
            arrivals: 0,
        }
    }

    fn ttl(&self) -> Option<u64> {
        let ttl = self.ledgers.iter().filter_map(|ledger| match ledger.limit {
            Limit::MaxConcurrency(concurrency) => concurrency.ttl.map(|ttl| ttl.as_nanos() as u64),
            _ => None,
        });
        ttl.min()
    }

    fn in_flight(&self) -> u64 {
        self.grants.values().filter(|grant| grant.held).map(|grant| grant.cost).sum()
    }

    /// Takes note of a grant that the schedule has made, which must be one that may be made.
    fn grant(&mut self, fence: u64, cost: u64) -> Result<(), TestCaseError> {
        prop_assert!(!self.closed && self.now >= self.paused_until, "granted while closed or paused");
        let (now, in_flight) = (self.now, self.in_flight());
        for ledger in &mut self.ledgers {
            if ledger.counts_places() {
                prop_assert!(in_flight + cost <= ledger.limit.capacity(), "{} of {}", in_flight + cost, ledger.limit);
            } else {
                prop_assert!(ledger.admits(now, cost), "{} at {} by {:?}", cost, now, ledger);
                ledger.charges.push(Charge { at: now, units: cost, grant: Some(fence) });
            }
        }
        let held = self.ledgers.iter().any(Ledger::counts_places);
        self.grants.insert(fence, Grant { cost, held, leased: self.ttl().map(|_| now) });
        Ok(())
    }

    /// Tells whether it is live; then its place is free.
    fn give_back(&mut self, fence: u64, counted: bool) -> bool {
        let grant = self.grants.get_mut(&fence).unwrap();
        let live = grant.held || !counted;
        grant.held = false;
        live
    }

    fn settled(&mut self, fence: u64, cost: u64, actual: u64) {
        let now = self.now;
        for ledger in self.ledgers.iter_mut().filter(|ledger| !ledger.counts_places()) {
            if actual > cost {
                ledger.charges.push(Charge { at: now, units: actual - cost, grant: None });
            } else if let Some(charge) = ledger.charges.iter_mut().find(|charge| charge.grant == Some(fence)) {
                charge.units = actual;
            }
        }
    }

    fn reclaim(&mut self) {
        let (now, ttl) = (self.now, self.ttl());
        for grant in self.grants.values_mut() {
            if grant.leased.zip(ttl).is_some_and(|(from, ttl)| from + ttl <= now) {
                grant.held = false;
            }
        }
    }

    fn input<R>(&mut self, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let (now, mut effects) = (Moment::from_nanos(self.now), Effects::default());
        let result = input(&mut self.schedule, now, &mut effects);
        while std::mem::take(&mut effects).unfinished {
            self.schedule.run_due(now, &mut effects);
        }
        result
    }

    /// Sees what has become of those who wait; grants are taken at once.
    fn take_answers(&mut self) -> Result<(), TestCaseError> {
        let mut answered: Vec<_> = self.waiting.iter().map(|(id, waiting)| (*id, *waiting)).collect();
        answered.sort_by_key(|(id, waiting)| (std::cmp::Reverse(waiting.priority), *id));
        let mut passed_over = false;
        for (id, Waiting { index, cost, .. }) in answered {
            match self.schedule.queue.peek(index) {
                None => passed_over = true,
                Some(AnswerKind::Failed) => {
                    self.waiting.remove(&id);
                    self.failed.push(index);
                }
                Some(AnswerKind::Granted) => {
                    prop_assert!(!passed_over, "request {} was served before its turn", id);
                    self.waiting.remove(&id);
                    let Ok(Ok(admission)) = self.schedule.poll(index, Waker::noop()) else { panic!("it was granted") };
                    self.grant(admission.fence, cost)?;
                    self.held.push(Held { admission, cost });
                }
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), TestCaseError> {
        self.take_answers()?;
        let snapshot = self.schedule.snapshot(Moment::from_nanos(self.now));
        prop_assert_eq!(snapshot.in_flight, self.in_flight());
        prop_assert_eq!(snapshot.queued as usize, self.waiting.len());
        prop_assert_eq!(snapshot.paused_for.is_some(), self.paused_until > self.now);
        let stranded = !self.waiting.is_empty()
            && self.schedule.next_wake() == Moment::NEVER
            && self.paused_until != u64::MAX
            && self.in_flight() == 0;
        prop_assert!(!stranded, "somebody waits, and nothing will ever happen");
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let pick = |index: prop::sample::Index, len: usize| (len > 0).then(|| index.index(len));
        match step {
            Step::Request { cost, priority, timeout } => {
                let deadline = timeout.map_or(Moment::NEVER, |timeout| Moment::from_nanos(self.now + timeout));
                let (id, level) = (self.arrivals, Priority::new(priority).unwrap());
                self.arrivals += 1;
                let request = Request { cost, priority: level, deadline, caller: Location::caller(), blocking: false };
                let outcome = self.input(|schedule, now, effects| {
                    match schedule.enqueue_behind(now, &request, &mut Some(Waker::noop().clone())) {
                        Some(index) => Ok(Outcome::Queued(index)),
                        None => schedule.request(now, &request, &mut Some(Waker::noop().clone()), effects),
                    }
                });
                match outcome {
                    Ok(Outcome::Queued(index)) => drop(self.waiting.insert(id, Waiting { index, cost, priority })),
                    Ok(Outcome::Admitted(admission)) => {
                        self.take_answers()?; // whoever was served before
                        self.grant(admission.fence, cost)?;
                        self.held.push(Held { admission, cost });
                    }
                    Err(_) => {}
                }
            }
            Step::TryAcquire { cost } => {
                let answer = self.input(|schedule, now, effects| {
                    let in_place = schedule.admit_in_place(now, cost, Location::caller());
                    in_place.or_else(|| schedule.try_acquire(now, cost, Location::caller(), effects).ok())
                });
                if let Some(admission) = answer {
                    prop_assert!(self.waiting.is_empty(), "barged");
                    self.grant(admission.fence, cost)?;
                    self.held.push(Held { admission, cost });
                }
            }
            Step::Poll(index) => {
                if let Some(nth) = pick(index, self.failed.len()) {
                    let index = self.failed.swap_remove(nth);
                    prop_assert!(matches!(self.schedule.poll(index, Waker::noop()), Ok(Err(_))));
                }
            }
            Step::Abandon(index) => {
                if let Some(nth) = pick(index, self.waiting.len()) {
                    let id = *self.waiting.keys().nth(nth).unwrap();
                    let Waiting { index, .. } = self.waiting.remove(&id).unwrap();
                    self.input(|schedule, now, effects| schedule.abandon(now, index, effects));
                }
            }
            Step::Release(index) => {
                if let Some(nth) = pick(index, self.held.len()) {
                    let held = self.held.swap_remove(nth);
                    self.release(held);
                }
            }
            Step::Settle(index, actual) => {
                if let Some(nth) = pick(index, self.held.len()) {
                    let Held { admission, cost } = self.held.swap_remove(nth);
                    let counted = admission.claim != crate::core::grant::Claim::None;
                    let live = self.give_back(admission.fence, counted);
                    if live {
                        self.settled(admission.fence, cost, actual);
                    }
                    let told = self.input(|schedule, now, effects| schedule.settle(now, admission, cost, actual, effects));
                    prop_assert_eq!(told, live);
                }
            }
            Step::Leak(index) => {
                if let Some(nth) = pick(index, self.held.len()) {
                    self.leaked.push(self.held.swap_remove(nth));
                }
            }
            Step::Renew(index) => {
                if let Some(nth) = pick(index, self.held.len()) {
                    let Admission { fence, claim, .. } = self.held[nth].admission;
                    let (now, grant) = (self.now, self.grants.get_mut(&fence).unwrap());
                    prop_assert_eq!(claim.lease().is_some(), grant.leased.is_some());
                    if let Some(lease) = claim.lease() {
                        let live = self.schedule.gate.renew(lease, fence, Moment::from_nanos(now));
                        prop_assert_eq!(live, grant.held);
                        grant.leased = Some(if live { now } else { 0 });
                    }
                }
            }
            Step::SetPolicy(policy, in_proportion) => self.set_policy(&policy, in_proportion)?,
            Step::Reset => {
                for ledger in self.ledgers.iter_mut().filter(|ledger| !ledger.counts_places()) {
                    *ledger = Ledger::new(ledger.limit, self.now);
                }
                self.reclaim();
                self.input(Schedule::reset);
            }
            Step::Pause(nanos) => {
                let until = nanos.map_or(u64::MAX, |nanos| self.now + nanos);
                self.paused_until = self.paused_until.max(until);
                self.input(|schedule, now, effects| schedule.pause(now, Moment::from_nanos(until), effects));
            }
            Step::Resume => {
                self.paused_until = 0;
                self.input(Schedule::resume);
            }
            Step::Pass(nanos) => self.pass(nanos)?,
            Step::Close => {
                self.closed = true;
                self.input(Schedule::close);
            }
        }
        self.look()
    }

    fn release(&mut self, Held { admission, cost }: Held) {
        self.give_back(admission.fence, true);
        self.input(|schedule, now, effects| {
            if !schedule.release(admission.fence, cost, admission.claim) {
                schedule.release_to_next(now, admission.fence, cost, admission.claim, effects);
            }
        });
    }

    /// Who takes over from whom: the same, or else of its kind, or else any that is left.
    fn set_policy(&mut self, policy: &Policy, in_proportion: bool) -> Result<(), TestCaseError> {
        let now = self.now;
        let mut old: Vec<_> = std::mem::take(&mut self.ledgers).into_iter().filter(|ledger| !ledger.counts_places()).collect();
        let mut new: Vec<_> = policy.limits().iter().map(|limit| (*limit, None)).collect();
        for round in 0..3 {
            for (limit, heir) in
                new.iter_mut().filter(|(limit, heir)| heir.is_none() && !matches!(limit, Limit::MaxConcurrency(_)))
            {
                let fits = |ledger: &Ledger| match round {
                    0 => ledger.limit == *limit,
                    1 => std::mem::discriminant(&ledger.limit) == std::mem::discriminant(limit),
                    _ => true,
                };
                let Some(found) = old.iter().position(fits) else { continue };
                let former = old.remove(found);
                *heir = Some(if former.limit == *limit {
                    former
                } else {
                    let (used, of) = former.used(now);
                    let used = used.div_ceil(of);
                    let share = (used * limit.capacity()).div_ceil(former.limit.capacity());
                    let units = if in_proportion { share } else { used };
                    Ledger { limit: *limit, charges: vec![Charge { at: now, units, grant: None }] }
                });
            }
        }
        self.ledgers = new.into_iter().map(|(limit, heir)| heir.unwrap_or_else(|| Ledger::new(limit, now))).collect();
        self.reclaim();
        let carry = if in_proportion { UsageCarryOver::InProportion } else { UsageCarryOver::AsIs };
        let plan = Plan::new(policy.clone(), Duration::ZERO).unwrap();
        self.input(|schedule, now, effects| schedule.set_plan(now, plan, carry, effects));
        let max = policy.limits().iter().map(Limit::capacity).min().unwrap();
        for waiting in self.waiting.values().filter(|waiting| waiting.cost > max) {
            prop_assert_eq!(self.schedule.queue.peek(waiting.index), Some(AnswerKind::Failed), "its cost can never be met");
        }
        Ok(())
    }

    fn pass(&mut self, nanos: u64) -> Result<(), TestCaseError> {
        let end = self.now + nanos;
        while self.schedule.next_wake() <= Moment::from_nanos(end) {
            let wake = self.schedule.next_wake().nanos();
            prop_assert!(wake > self.now, "woken at {} for what was due at {}", self.now, wake);
            self.now = wake;
            self.reclaim();
            self.input(Schedule::run_due);
            self.look()?;
        }
        self.now = end;
        Ok(())
    }

    /// Everything comes back and time passes: whoever waits is served, and then the limiter is as good as new.
    fn finish(mut self) -> Result<(), TestCaseError> {
        self.step(Step::Resume)?;
        loop {
            for held in std::mem::take(&mut self.held).into_iter().chain(std::mem::take(&mut self.leaked)) {
                self.release(held);
            }
            self.look()?;
            if self.held.is_empty() {
                if self.waiting.is_empty() {
                    break;
                }
                let wake = self.schedule.next_wake();
                prop_assert!(wake != Moment::NEVER, "stranded");
                self.pass(wake.nanos() - self.now)?;
            }
        }
        let snapshot = self.schedule.snapshot(Moment::from_nanos(self.now));
        prop_assert_eq!((snapshot.in_flight, snapshot.queued), (0, 0));
        self.now += 1_000_000;
        self.reclaim();
        self.input(Schedule::run_due);
        prop_assert_eq!(self.schedule.next_wake(), Moment::NEVER);
        let now = Moment::from_nanos(self.now);
        let max = self.ledgers.iter().map(|ledger| ledger.limit.capacity()).min().unwrap();
        let decision = self.schedule.check(now, max);
        prop_assert_eq!(decision.is_allowed(), !self.closed);
        prop_assert_eq!((decision.remaining(), decision.reset_after()), (max, Duration::ZERO));
        prop_assert!(self.schedule.suspension.is_none(), "a pause that has ended leaves nothing behind");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Invariants 1 (never over), 2 (never lost), 3 (in order) and 5 (reclaim once), whatever is changed meanwhile.
    #[test]
    fn changes_never_let_anything_over_nor_lose_it(policy in policies(), steps in steps()) {
        let mut harness = Harness::new(&policy);
        for step in steps {
            harness.step(step)?;
        }
        harness.finish()?;
    }
}
