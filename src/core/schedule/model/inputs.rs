//! The inputs to a schedule, and how each is drawn.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index as Pick;

use super::super::Options;
use super::costs::{Cost, Settled, UNITS};
use super::flows::{Flow, WEIGHTS};
use crate::overflow::Overflow;
use crate::policy::{Limit, Policy, all_limits};
use crate::rate::Rate;
use crate::strategy::{
    Adapt, Align, Counts, FixedWindow, MaxConcurrency, Outcome, Penalty, SlidingWindow, Throttle,
    TokenBucket, Unit,
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
    /// With a report on the work, if there is one.
    Settle(Pick, Settled, Option<Outcome>),
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
    /// Whether requests have flows.
    pub(super) has_flows: bool,
}

pub(super) fn setups() -> impl Strategy<Value = Setup> {
    let penalty = (0_u64..60).prop_map(|nanos| Overflow::Block {
        penalty: Duration::from_nanos(nanos),
    });
    let overflow = prop_oneof![
        3 => Just(Overflow::Reject),
        1 => Just(Overflow::DropOldest),
        1 => Just(Overflow::DropLowestPriority),
        1 => Just(Overflow::Leak),
        2 => Just(Overflow::DropLongest),
        1 => penalty,
    ];
    let max_queue = prop::option::of(0_usize..4);
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
        any::<bool>(),
    )
        .prop_map(
            |(
                policy,
                since_epoch,
                max_queue,
                overflow,
                spread_below,
                has_runtime,
                prefers_line,
                newest_first,
                has_flows,
            )| {
                Setup {
                    policy,
                    since_epoch,
                    options: Options {
                        max_queue,
                        overflow,
                        newest_first,
                        spread_below,
                        ..Options::default()
                    },
                    has_runtime,
                    prefers_line,
                    has_flows,
                }
            },
        )
}

/// Any input that closes nothing.
pub(super) fn step() -> impl Strategy<Value = Step> {
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
        5 => (pick(), settled(), prop::option::of(reports.clone()))
            .prop_map(|(permit, actual, outcome)| Step::Settle(permit, actual, outcome)),
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
    let passing = (
        prop_oneof![0_u64..30, 0_u64..300],
        prop_oneof![3 => Just(0_u64), 1 => 0_u64..40],
    )
        .prop_map(|(nanos, late)| Step::Pass { nanos, late });
    prop_oneof![8 => waiting, 4 => holding, 2 => changing, 4 => passing]
}

#[cfg(test)]
pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let close = || prop::option::weighted(0.15, 0_usize..70);
    (prop::collection::vec(step(), 1..70), close(), close()).prop_map(
        |(mut steps, close, close_to_new)| {
            if let Some(at) = close {
                steps.insert(at.min(steps.len()), Step::Close);
            }
            if let Some(at) = close_to_new {
                steps.insert(at.min(steps.len()), Step::CloseToNew);
            }
            steps
        },
    )
}

/// The plain cost is at least `least`. Most costs name both units.
fn costs(least: u64) -> impl Strategy<Value = Cost> {
    let units = || prop::option::weighted(0.9, 0_u64..6);
    let named = prop_oneof![1 => Just([None; 2]), 2 => [units(), units()]];
    (least..7, named, prop::option::weighted(0.7, flows())).prop_map(|(plain, units, flow)| Cost {
        plain,
        units,
        flow,
    })
}

fn flows() -> impl Strategy<Value = Flow> {
    let weight = || prop::sample::select(WEIGHTS.to_vec());
    let parent = prop::option::of((0_u8..2, weight()));
    (0_u8..3, weight(), parent).prop_map(|(name, weight, parent)| Flow {
        name,
        weight,
        parent,
    })
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
fn any_policies<L: Strategy<Value = Limit> + 'static>(
    limits: fn() -> L,
) -> impl Strategy<Value = Policy> {
    let counts = prop_oneof![
        2 => Just(Counts::Cost),
        2 => Just(Counts::Requests),
        3 => prop::sample::select(UNITS.to_vec()).prop_map(|unit| Counts::Unit(Unit::new(unit))),
    ];
    let counting = (limits(), counts).prop_map(|(limit, counts)| limit.counting(counts));
    prop_oneof![policies(limits()), policies(counting)]
}

fn policies(limits: impl Strategy<Value = Limit>) -> impl Strategy<Value = Policy> {
    prop::collection::vec(limits, 1..4).prop_map(|limits| {
        limits
            .into_iter()
            .map(Policy::from)
            .reduce(Policy::and)
            .unwrap()
    })
}

/// How the parameters of a limit are drawn.
trait Drawn: Into<Limit> + Sized + 'static {
    /// A limit of any size.
    fn varied() -> BoxedStrategy<Self>;

    /// One of few sizes, so that a change of the policy often meets the same limit, or one of its kind.
    fn alike() -> BoxedStrategy<Self>;
}

macro_rules! any_of {
    ([$($limit:ident)*] $sizes:ident) => {
        prop_oneof![$($limit::$sizes().prop_map(Limit::from)),*]
    };
}

fn varied_limits() -> impl Strategy<Value = Limit> {
    all_limits!(any_of, varied)
}

fn like_limits() -> impl Strategy<Value = Limit> {
    all_limits!(any_of, alike)
}

impl Drawn for Throttle {
    fn varied() -> BoxedStrategy<Self> {
        (1_u64..50, 1_u64..6)
            .prop_map(|(interval, burst)| Self::every(nanos(interval)).burst(burst))
            .boxed()
    }

    fn alike() -> BoxedStrategy<Self> {
        (1_u64..3, 3_u64..5)
            .prop_map(|(n, burst)| Self::every(nanos(n * 17)).burst(burst))
            .boxed()
    }
}

impl Drawn for MaxConcurrency {
    fn varied() -> BoxedStrategy<Self> {
        let adapt = prop::option::of(adapting());
        (1_u64..7, prop::option::of(1_u64..200), adapt)
            .prop_map(concurrency)
            .boxed()
    }

    fn alike() -> BoxedStrategy<Self> {
        let ttl = |n: u64| prop::option::of((1..n).prop_map(|n| n * 60));
        prop_oneof![
            (2_u64..7, ttl(4), Just(None)).prop_map(concurrency),
            (2_u64..5, ttl(3), adapting().prop_map(Some)).prop_map(concurrency),
        ]
        .boxed()
    }
}

impl Drawn for FixedWindow {
    fn varied() -> BoxedStrategy<Self> {
        let align = vec![Align::Creation, Align::FirstGrant, Align::WallClock];
        (1_u64..6, 1_u64..80, prop::sample::select(align))
            .prop_map(|(limit, period, align)| Self::new(limit, nanos(period)).align(align))
            .boxed()
    }

    fn alike() -> BoxedStrategy<Self> {
        (3_u64..6, 1_u64..3)
            .prop_map(|(limit, n)| Self::new(limit, nanos(n * 40)))
            .boxed()
    }
}

impl Drawn for TokenBucket {
    fn varied() -> BoxedStrategy<Self> {
        let initial = prop::option::of(0_u64..7);
        (1_u64..6, 1_u64..80, 1_u64..7, any::<bool>(), initial)
            .prop_map(bucket)
            .boxed()
    }

    fn alike() -> BoxedStrategy<Self> {
        let initial = prop::option::of(0_u64..4);
        (1_u64..4, Just(50), 3_u64..7, any::<bool>(), initial)
            .prop_map(bucket)
            .boxed()
    }
}

impl Drawn for SlidingWindow {
    fn varied() -> BoxedStrategy<Self> {
        (1_u64..6, 1_u64..80, any::<bool>())
            .prop_map(|(limit, period, log)| sliding(limit, period, log))
            .boxed()
    }

    fn alike() -> BoxedStrategy<Self> {
        (3_u64..6, 1_u64..3, any::<bool>())
            .prop_map(|(limit, n, log)| sliding(limit, n * 40, log))
            .boxed()
    }
}

impl Drawn for Penalty {
    fn varied() -> BoxedStrategy<Self> {
        let fall = prop_oneof![
            (1_u64..4, 1_u64..60).prop_map(|(units, period)| (Some(units), period)),
            (1_u64..60).prop_map(|period| (None, period)),
        ];
        (1_u64..6, fall, 0_u64..12, bans(), any::<bool>())
            .prop_map(
                |(threshold, (units, period), ceiling, bans, counts_denied)| {
                    let fall = Rate::new(units.unwrap_or(1), nanos(period));
                    let mut penalty = Self::new(threshold, fall);
                    if units.is_none() {
                        penalty = penalty.half_life(nanos(period));
                    }
                    if !counts_denied {
                        penalty = penalty.ignore_denied();
                    }
                    if ceiling > 0 {
                        penalty = penalty.ceiling(ceiling);
                    }
                    if let Some((first, longest, quiet)) = bans {
                        penalty = penalty.ban(nanos(first)).escalate(nanos(longest));
                        penalty =
                            quiet.map_or(penalty, |quiet| penalty.forgive_after(nanos(quiet)));
                    }
                    penalty
                },
            )
            .boxed()
    }

    fn alike() -> BoxedStrategy<Self> {
        (3_u64..6, 1_u64..3, any::<bool>())
            .prop_map(|(threshold, n, bans)| {
                let penalty = Self::new(threshold, Rate::new(n, nanos(30)));
                if bans {
                    penalty.ban(nanos(n * 50))
                } else {
                    penalty
                }
            })
            .boxed()
    }
}

const fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

fn bans() -> impl Strategy<Value = Option<(u64, u64, Option<u64>)>> {
    prop::option::of((1_u64..60, 1_u64..200, prop::option::of(0_u64..200)))
}

fn adapting() -> impl Strategy<Value = Adapt> {
    let timeout = prop::option::of((1_u64..60).prop_map(Duration::from_nanos));
    (1_u64..4, 0_u64..5, any::<bool>(), timeout).prop_map(|(floor, more, aimd, timeout)| {
        let adapt = if aimd {
            Adapt::aimd()
        } else {
            Adapt::gradient()
        }
        .between(floor, floor + more);
        timeout.map_or(adapt, |timeout| adapt.timeout(timeout))
    })
}

fn concurrency((limit, ttl, adapt): (u64, Option<u64>, Option<Adapt>)) -> MaxConcurrency {
    let concurrency = MaxConcurrency::new(limit);
    let concurrency = adapt.map_or(concurrency, |adapt| concurrency.adapt(adapt));
    ttl.map_or(concurrency, |ttl| concurrency.ttl(nanos(ttl)))
}

fn bucket(
    (units, period, burst, each_period, initial): (u64, u64, u64, bool, Option<u64>),
) -> TokenBucket {
    let mut bucket = TokenBucket::new(Rate::new(units, nanos(period)), burst);
    if each_period {
        bucket = bucket.refill_each_period();
    }
    initial.map_or(bucket, |initial| bucket.initial(initial))
}

fn sliding(limit: u64, period: u64, log: bool) -> SlidingWindow {
    if log {
        SlidingWindow::log(limit, nanos(period))
    } else {
        SlidingWindow::counter(limit, nanos(period))
    }
}
