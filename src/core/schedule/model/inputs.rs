//! What is done to a schedule, and how each of it is drawn.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index as Pick;

use super::super::Options;
use super::costs::{Cost, Settled, UNITS};
use crate::overflow::Overflow;
use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use crate::strategy::{
    Adapt, Align, Counts, FixedWindow, MaxConcurrency, Outcome, Penalty, SlidingWindow, Throttle, TokenBucket, Unit,
};

/// One input. All times are in nanoseconds.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Request {
        cost: Cost,
        priority: u8,
        timeout: Option<u64>,
        blocking: bool,
    },
    TryAcquire {
        cost: Cost,
    },
    /// If the state fits a word, the word decides some requests that do not wait: each has a cost, and the nanoseconds that pass
    /// before it. Then the schedule takes the word over.
    InWord(Vec<(u64, u64)>),
    /// Asks what `TryAcquire` would answer; `waits` if the caller is going to wait, so that it is not counted as denied.
    Ask {
        cost: Cost,
        waits: bool,
    },
    /// The owner of a request looks for its answer, and takes it.
    Poll(Pick),
    Abandon(Pick),
    Release(Pick),
    Settle(Pick, Settled),
    Report(Pick, Outcome),
    /// A permit is lost; its release comes at the very end.
    Leak(Pick),
    Renew(Pick),
    /// A permit gets a TTL of its own, from now on, or from its grant or latest renewal on.
    SetOwnTtl {
        pick: Pick,
        ttl: u64,
        renews: bool,
    },
    SetPolicy {
        policy: Policy,
        in_proportion: bool,
    },
    Reset,
    Charge(u64),
    Forgive(u64),
    /// `None`: without an end.
    Pause(Option<u64>),
    Resume,
    /// An upstream has this many units remaining for this long.
    Spread {
        units: u64,
        nanos: u64,
    },
    /// Time passes; the timer is late.
    Pass {
        nanos: u64,
        late: u64,
    },
    Close,
    CloseToNew,
}

/// How a schedule is set up.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) policy: Policy,
    /// The wall clock at the start.
    pub(super) since_epoch: u64,
    pub(super) options: Options,
    /// Whether there is a runtime. Without one every waiter blocks a thread, and the one at the front runs the timer.
    pub(super) has_runtime: bool,
    /// Whether a policy of one rate is kept as a line.
    pub(super) prefers_line: bool,
}

pub(super) fn setups() -> impl Strategy<Value = Setup> {
    let penalty = (0_u64..60).prop_map(|nanos| Overflow::Block { penalty: Duration::from_nanos(nanos) });
    let overflow = prop_oneof![
        3 => Just(Overflow::Reject),
        1 => Just(Overflow::DropOldest),
        1 => Just(Overflow::DropLowestPriority),
        1 => Just(Overflow::Leak),
        1 => penalty,
    ];
    let max_queue = prop_oneof![1 => 0_usize..4, 1 => Just(usize::MAX)];
    let policy = prop_oneof![any_policies(varied_limits), any_policies(like_limits)];
    (
        policy,
        0_u64..1_000,
        max_queue,
        overflow,
        prop_oneof![Just(0_u64), 1_u64..12],
        prop::bool::weighted(0.8),
        any::<bool>(),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(policy, since_epoch, max_queue, overflow, spread_below, has_runtime, prefers_line, newest_first)| {
            Setup {
                policy,
                since_epoch,
                options: Options { max_queue, overflow, newest_first, spread_below, ..Options::default() },
                has_runtime,
                prefers_line,
            }
        })
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = any::<Pick>;
    let timeout = || prop::option::weighted(0.3, 0_u64..120);
    let reports = prop_oneof![2 => Just(Outcome::Ok), 2 => Just(Outcome::Overloaded), 1 => Just(Outcome::Ignored)];
    let waiting = prop_oneof![
        8 => (costs(1), timeout(), any::<bool>())
            .prop_map(|(cost, timeout, blocking)| Step::Request { cost, priority: 0, timeout, blocking }),
        6 => (costs(0), 0_u8..10, timeout(), any::<bool>())
            .prop_map(|(cost, priority, timeout, blocking)| Step::Request { cost, priority, timeout, blocking }),
        5 => costs(1).prop_map(|cost| Step::TryAcquire { cost }),
        3 => prop::collection::vec((0_u64..5, 0_u64..30), 1..5).prop_map(Step::InWord),
        1 => (costs(0), any::<bool>()).prop_map(|(cost, waits)| Step::Ask { cost, waits }),
        6 => pick().prop_map(Step::Poll),
        4 => pick().prop_map(Step::Abandon),
    ];
    let holding = prop_oneof![
        5 => pick().prop_map(Step::Release),
        5 => (pick(), settled()).prop_map(|(permit, actual)| Step::Settle(permit, actual)),
        2 => (pick(), reports).prop_map(|(permit, outcome)| Step::Report(permit, outcome)),
        2 => pick().prop_map(Step::Leak),
        2 => pick().prop_map(Step::Renew),
        2 => (pick(), 1_u64..120, any::<bool>()).prop_map(|(pick, ttl, renews)| Step::SetOwnTtl { pick, ttl, renews }),
    ];
    let changing = prop_oneof![
        4 => (any_policies(like_limits), any::<bool>())
            .prop_map(|(policy, in_proportion)| Step::SetPolicy { policy, in_proportion }),
        1 => Just(Step::Reset),
        1 => (0_u64..9).prop_map(Step::Charge),
        1 => (0_u64..9).prop_map(Step::Forgive),
        2 => prop::option::weighted(0.8, 0_u64..200).prop_map(Step::Pause),
        2 => Just(Step::Resume),
        2 => (0_u64..12, prop_oneof![9 => 0_u64..300, 1 => Just(2_000_000_000)])
            .prop_map(|(units, nanos)| Step::Spread { units, nanos }),
    ];
    let passing = (prop_oneof![0_u64..30, 0_u64..300], prop_oneof![3 => Just(0_u64), 1 => 0_u64..40])
        .prop_map(|(nanos, late)| Step::Pass { nanos, late });
    let step = prop_oneof![8 => waiting, 4 => holding, 2 => changing, 4 => passing];
    let close = || prop::option::weighted(0.15, 0_usize..70);
    (prop::collection::vec(step, 1..70), close(), close()).prop_map(|(mut steps, close, close_to_new)| {
        if let Some(at) = close {
            steps.insert(at.min(steps.len()), Step::Close);
        }
        if let Some(at) = close_to_new {
            steps.insert(at.min(steps.len()), Step::CloseToNew);
        }
        steps
    })
}

/// The plain cost is from `least` on. Most name both units.
fn costs(least: u64) -> impl Strategy<Value = Cost> {
    let units = || prop::option::weighted(0.9, 0_u64..6);
    let named = prop_oneof![1 => Just([None; 2]), 2 => [units(), units()]];
    (least..7, named).prop_map(|(plain, units)| Cost { plain, units })
}

fn settled() -> impl Strategy<Value = Settled> {
    let units = || prop::option::of(0_u64..9);
    prop_oneof![
        1 => Just(Settled::Nothing),
        4 => (0_u64..10).prop_map(Settled::Cost),
        2 => [units(), units()].prop_map(Settled::Units),
    ]
}

/// Policies that count only the plain cost, and others.
fn any_policies<L: Strategy<Value = Limit> + 'static>(limits: fn() -> L) -> impl Strategy<Value = Policy> {
    let counts = prop_oneof![
        2 => Just(Counts::Cost),
        2 => Just(Counts::Requests),
        3 => prop::sample::select(UNITS.to_vec()).prop_map(|unit| Counts::Unit(Unit::new(unit))),
    ];
    let counting = (limits(), counts).prop_map(|(limit, counts)| limit.counting(counts));
    prop_oneof![policies(limits()), policies(counting)]
}

fn policies(limits: impl Strategy<Value = Limit>) -> impl Strategy<Value = Policy> {
    prop::collection::vec(limits, 1..4).prop_map(|limits| limits.into_iter().map(Policy::from).reduce(Policy::and).unwrap())
}

/// Limits of any size.
fn varied_limits() -> impl Strategy<Value = Limit> {
    let nanos = Duration::from_nanos;
    prop_oneof![
        (1_u64..50, 1_u64..6).prop_map(move |(interval, burst)| Limit::from(Throttle::every(nanos(interval)).burst(burst))),
        (1_u64..7, prop::option::of(1_u64..200)).prop_map(move |(limit, ttl)| concurrency(limit, ttl, None)),
        (1_u64..7, prop::option::of(1_u64..200), adapting()).prop_map(move |(limit, ttl, adapt)| concurrency(
            limit,
            ttl,
            Some(adapt)
        )),
        (1_u64..6, 1_u64..80, prop_oneof![Just(Align::Creation), Just(Align::FirstGrant), Just(Align::WallClock)])
            .prop_map(move |(limit, period, align)| Limit::from(FixedWindow::new(limit, nanos(period)).align(align))),
        (1_u64..6, 1_u64..80, 1_u64..7, any::<bool>(), prop::option::of(0_u64..7))
            .prop_map(|(units, period, burst, each_period, initial)| bucket(units, period, burst, each_period, initial)),
        (1_u64..6, 1_u64..80, any::<bool>()).prop_map(|(limit, period, log)| sliding(limit, period, log)),
        (1_u64..6, prop_oneof![(1_u64..4).prop_map(Some), Just(None)], 1_u64..60, 0_u64..12, bans(), any::<bool>()).prop_map(
            move |(threshold, units, period, ceiling, bans, counts_denied)| {
                let penalty = match units {
                    Some(units) => Penalty::new(threshold, Rate::new(units, nanos(period))),
                    None => Penalty::new(threshold, Rate::new(1, nanos(1))).half_life(nanos(period)),
                };
                let penalty = if counts_denied { penalty } else { penalty.ignore_denied() };
                let penalty = if ceiling > 0 { penalty.ceiling(ceiling) } else { penalty };
                Limit::from(match bans {
                    Some((first, longest, Some(quiet))) => {
                        penalty.ban(nanos(first)).escalate(nanos(longest)).forgive_after(nanos(quiet))
                    }
                    Some((first, longest, None)) => penalty.ban(nanos(first)).escalate(nanos(longest)),
                    None => penalty,
                })
            }
        ),
    ]
}

/// Limits of few sizes, so that a change of the policy often meets the same limit, or one of its kind.
fn like_limits() -> impl Strategy<Value = Limit> {
    let nanos = Duration::from_nanos;
    prop_oneof![
        (1_u64..3, 3_u64..5).prop_map(move |(n, burst)| Limit::from(Throttle::every(nanos(n * 17)).burst(burst))),
        (2_u64..7, prop::option::of(1_u64..4)).prop_map(|(limit, n)| concurrency(limit, n.map(|n| n * 60), None)),
        (2_u64..5, prop::option::of(1_u64..3), adapting()).prop_map(|(limit, n, adapt)| concurrency(
            limit,
            n.map(|n| n * 60),
            Some(adapt)
        )),
        (3_u64..6, 1_u64..3).prop_map(move |(limit, n)| Limit::from(FixedWindow::new(limit, nanos(n * 40)))),
        (1_u64..4, 3_u64..7, any::<bool>(), prop::option::of(0_u64..4)).prop_map(|(units, burst, each_period, initial)| bucket(
            units,
            50,
            burst,
            each_period,
            initial
        )),
        (3_u64..6, 1_u64..3, any::<bool>()).prop_map(|(limit, n, log)| sliding(limit, n * 40, log)),
        (3_u64..6, 1_u64..3, any::<bool>()).prop_map(move |(threshold, n, bans)| {
            let penalty = Penalty::new(threshold, Rate::new(n, nanos(30)));
            Limit::from(if bans { penalty.ban(nanos(n * 50)) } else { penalty })
        }),
    ]
}

fn bans() -> impl Strategy<Value = Option<(u64, u64, Option<u64>)>> {
    prop::option::of((1_u64..60, 1_u64..200, prop::option::of(0_u64..200)))
}

fn adapting() -> impl Strategy<Value = Adapt> {
    let timeout = prop::option::of((1_u64..60).prop_map(Duration::from_nanos));
    (1_u64..4, 0_u64..5, any::<bool>(), timeout).prop_map(|(floor, more, aimd, timeout)| {
        let adapt = if aimd { Adapt::aimd() } else { Adapt::gradient() }.between(floor, floor + more);
        timeout.map_or(adapt, |timeout| adapt.timeout(timeout))
    })
}

fn concurrency(limit: u64, ttl: Option<u64>, adapt: Option<Adapt>) -> Limit {
    let concurrency = MaxConcurrency::new(limit);
    let concurrency = adapt.map_or(concurrency, |adapt| concurrency.adapt(adapt));
    Limit::from(ttl.map_or(concurrency, |ttl| concurrency.ttl(Duration::from_nanos(ttl))))
}

fn bucket(units: u64, period: u64, burst: u64, each_period: bool, initial: Option<u64>) -> Limit {
    let bucket = TokenBucket::new(Rate::new(units, Duration::from_nanos(period)), burst);
    let bucket = if each_period { bucket.refill_each_period() } else { bucket };
    Limit::from(initial.map_or(bucket, |initial| bucket.initial(initial)))
}

fn sliding(limit: u64, period: u64, log: bool) -> Limit {
    let period = Duration::from_nanos(period);
    Limit::from(if log { SlidingWindow::log(limit, period) } else { SlidingWindow::counter(limit, period) })
}
