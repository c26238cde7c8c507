//! Checks that all processes together kept to each limit, and finds when the places of a killed process were in use again.

use std::fmt;
use std::time::Duration;

use tollgate::{Limit, Policy, Rate, SlidingMethod};

use crate::record::Run;

/// A fence is the instant of the grant, in microseconds of the store's clock. The grants of one call, up to a thousand, have the next
/// numbers, so that of any grant the instant is up to this much earlier.
const BATCH: Duration = Duration::from_millis(1);

/// What one limit admits.
enum Bound {
    /// This many at the same time.
    Places(u64),
    /// This many at once, and more at a rate.
    Bucket { burst: u64, rate: Rate },
    /// This many in any span that is shorter than a window.
    Window { most: u64, period: Duration },
}

impl Bound {
    /// `None` for a limit that is not checked: a penalty that halves.
    fn of(limit: &Limit) -> Option<Self> {
        Some(match limit {
            Limit::MaxConcurrency(limit) => Self::Places(limit.get_limit()),
            Limit::Throttle(limit) => Self::Bucket {
                burst: limit.get_burst(),
                rate: Rate::new(1, limit.get_interval()),
            },
            // The units of a period may come at its start, just after the full bucket was used.
            Limit::TokenBucket(limit) if limit.get_refill_each_period() => Self::Bucket {
                burst: limit.get_burst() + limit.get_rate().units(),
                rate: limit.get_rate(),
            },
            Limit::TokenBucket(limit) => Self::Bucket {
                burst: limit.get_burst(),
                rate: limit.get_rate(),
            },
            // Around a boundary.
            Limit::FixedWindow(limit) => Self::Window {
                most: 2 * limit.get_limit(),
                period: limit.get_period(),
            },
            Limit::SlidingWindow(limit) => match limit.method() {
                SlidingMethod::Log => Self::Window {
                    most: limit.limit(),
                    period: limit.period(),
                },
                _ => Self::Window {
                    most: 2 * limit.limit() - 1,
                    period: limit.period(),
                },
            },
            Limit::Penalty(limit) => Self::Bucket {
                burst: limit.get_threshold(),
                rate: limit.get_fall()?,
            },
            _ => return None,
        })
    }
}

/// The result of the check of one limit.
pub(crate) struct Finding {
    limit: Limit,
    counted: String,
    pub(crate) over: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            counted,
            over,
        } = self;
        write!(
            f,
            "{}{limit}: {counted}",
            if *over { "over the limit: " } else { "" }
        )
    }
}

/// Checks each limit: places by the clock of this machine, rates and windows by that of the store.
pub(crate) fn check(policy: &Policy, run: &Run) -> Vec<Finding> {
    let mut fences: Vec<_> = run
        .grants()
        .map(|(_, grant)| Duration::from_micros(grant.fence))
        .collect();
    fences.sort_unstable();
    let finding = |limit: &Limit| {
        let Some(bound) = Bound::of(limit) else {
            return Finding {
                limit: *limit,
                counted: "not checked".to_owned(),
                over: false,
            };
        };
        let (counted, over) = match bound {
            Bound::Places(places) => {
                let most = most_places(run);
                (
                    format!("{most} places at the same time, of {places}"),
                    most > places as i64,
                )
            }
            Bound::Bucket { burst, rate } => {
                let most = most_of_bucket(&fences, rate);
                let over = most > burst as f64 + per_second(rate) * BATCH.as_secs_f64();
                (
                    format!(
                        "{:.1} more than the rate at once, of {burst}",
                        (most * 10.0).floor() / 10.0
                    ),
                    over,
                )
            }
            Bound::Window {
                most: limit,
                period,
            } => {
                let most = most_within(&fences, period.saturating_sub(BATCH));
                (
                    format!("{most} grants within a period, of {limit}"),
                    most as u64 > limit,
                )
            }
        };
        Finding {
            limit: *limit,
            counted,
            over,
        }
    };
    policy.limits().iter().map(finding).collect()
}

/// The number of places, if a limit sets it.
pub(crate) fn places(policy: &Policy) -> Option<u64> {
    let limits = policy.limits().iter().filter_map(Bound::of);
    limits
        .filter_map(|bound| {
            if let Bound::Places(limit) = bound {
                Some(limit)
            } else {
                None
            }
        })
        .min()
}

/// The most grants that the rates and windows admit within a time. Infinite if there are none.
pub(crate) fn admitted_within(policy: &Policy, span: f64) -> f64 {
    let limits = policy.limits().iter().filter_map(Bound::of);
    limits.fold(f64::INFINITY, |least, bound| {
        least.min(match bound {
            Bound::Places(_) => f64::INFINITY,
            Bound::Bucket { burst, rate } => (burst as f64 + per_second(rate) * span).floor(),
            Bound::Window { most, period } => {
                most as f64 * ((span / period.as_secs_f64()).floor() + 1.0)
            }
        })
    })
}

fn most_places(run: &Run) -> i64 {
    let held = run.changes().into_iter().scan(0, |held, (_, _, change)| {
        *held += change;
        Some(*held)
    });
    held.max().unwrap_or(0)
}

/// The highest level of a bucket that leaks at the rate and gets a unit at each grant.
fn most_of_bucket(fences: &[Duration], rate: Rate) -> f64 {
    let (mut level, mut most) = (0.0_f64, 0.0_f64);
    for (index, fence) in fences.iter().enumerate() {
        let since = *fence - fences[index.saturating_sub(1)];
        level = (level - per_second(rate) * since.as_secs_f64()).max(0.0) + 1.0;
        most = most.max(level);
    }
    most
}

fn most_within(fences: &[Duration], period: Duration) -> usize {
    let within = |(first, start): (usize, &Duration)| {
        fences[first..].partition_point(|at| *at - *start < period)
    };
    fences.iter().enumerate().map(within).max().unwrap_or(0)
}

fn per_second(rate: Rate) -> f64 {
    rate.units() as f64 / rate.period().as_secs_f64()
}

/// When the places of the killed process were in use again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Returned {
    /// The number of places that it held.
    pub(crate) held: i64,
    /// How long after its end others had one of the places, and all of them. `None`: never, for example because no caller asked for
    /// them.
    pub(crate) first: Option<Duration>,
    pub(crate) all: Option<Duration>,
}

/// `None` if no process was killed while it held places.
pub(crate) fn returned(policy: &Policy, run: &Run) -> Option<Returned> {
    let (killed, limit) = (run.killed.as_ref()?, i64::try_from(places(policy)?).ok()?);
    let (mut own, mut others) = (0, 0);
    let mut returned = None;
    for (at, process, change) in run.changes() {
        if process == killed.process {
            if at == killed.at && change < 0 {
                returned.get_or_insert(Returned {
                    held: own,
                    first: None,
                    all: None,
                });
            }
            own += change;
        } else {
            others += change;
        }
        if let Some(Returned { held, first, all }) = &mut returned {
            let since = at.saturating_sub(killed.at);
            if others > limit - *held {
                first.get_or_insert(since);
            }
            if others == limit {
                all.get_or_insert(since);
            }
        }
    }
    returned
}
