//! What the callers of one limiter hold and were granted, counted by themselves. The limiter is not asked.
//!
//! Each count errs on the side of the limiter: a place counts from the time at which its holder has it to the time at which the holder
//! begins to give it back, or at which its TTL may have passed; a grant counts in a span only if the whole request lies within it.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::run::Run;
use crate::tally::Tally;

/// The most units that a limit of a rate admits in any span of length `t`: `base + units × t / period`, in whole periods that begin, or
/// evenly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    base: u64,
    units: u64,
    period: Duration,
    evenly: bool,
}

impl Rule {
    /// At most `units` in any span of a period.
    pub(crate) const fn sliding_log(units: u64, period: Duration) -> Self {
        Self {
            base: 0,
            units,
            period,
            evenly: false,
        }
    }

    /// At most one unit less than twice as many in any span of a period.
    pub(crate) const fn sliding_counter(units: u64, period: Duration) -> Self {
        Self {
            base: units - 1,
            units,
            period,
            evenly: false,
        }
    }

    /// Twice as many around the boundary of two windows.
    pub(crate) const fn window(units: u64, period: Duration) -> Self {
        Self {
            base: units,
            units,
            period,
            evenly: false,
        }
    }

    /// A burst, and units that come evenly.
    pub(crate) const fn bucket(units: u64, period: Duration, burst: u64) -> Self {
        Self {
            base: burst,
            units,
            period,
            evenly: true,
        }
    }

    /// A burst or a threshold, and units that come at the end of each period.
    pub(crate) const fn steps(units: u64, period: Duration, burst: u64) -> Self {
        Self {
            base: burst,
            units,
            period,
            evenly: false,
        }
    }

    fn most_in(&self, span: Duration) -> u64 {
        let (span, period) = (span.as_nanos(), self.period.as_nanos());
        let units = u128::from(self.units);
        let rate = if self.evenly {
            units * span / period
        } else {
            units * span.div_ceil(period)
        };
        self.base + rate as u64
    }

    /// The lengths of the spans that are checked all the time.
    fn spans(&self) -> [Duration; 3] {
        [self.period / 10, self.period, self.period * 10]
    }
}

/// A grant: it was made at some time between these two.
#[derive(Debug, Clone, Copy)]
struct Grant {
    from: Instant,
    to: Instant,
    cost: u64,
}

#[derive(Debug)]
struct Places {
    most: u64,
    held: u64,
    /// By the time at which they end at the latest, and a number.
    holds: BTreeMap<(Instant, u64), u64>,
    next: u64,
}

#[derive(Debug)]
struct Log {
    /// Those of the last seconds.
    grants: Vec<Grant>,
    units: u64,
    since: Instant,
}

/// The account of the units of one limiter or key.
#[derive(Debug)]
pub(crate) struct Reference {
    name: String,
    tally: Arc<Tally>,
    places: Option<Mutex<Places>>,
    rules: Vec<Rule>,
    log: Mutex<Log>,
    /// Whether the store may have lost what it had granted.
    excused: Mutex<bool>,
}

impl Reference {
    /// With `places` of a concurrency, if it has one.
    pub(crate) fn new(
        name: impl Into<String>,
        tally: &Arc<Tally>,
        places: Option<u64>,
        rules: &[Rule],
    ) -> Arc<Self> {
        let places = places.map(|most| {
            Mutex::new(Places {
                most,
                held: 0,
                holds: BTreeMap::new(),
                next: 0,
            })
        });
        Arc::new(Self {
            name: name.into(),
            tally: Arc::clone(tally),
            places,
            rules: rules.to_vec(),
            log: Mutex::new(Log {
                grants: Vec::new(),
                units: 0,
                since: Instant::now(),
            }),
            excused: Mutex::new(false),
        })
    }

    /// Counts a grant that was made between two times. Its places end at `until` at the latest, if that is known.
    pub(crate) fn enter(
        self: &Arc<Self>,
        cost: u64,
        (from, to): (Instant, Instant),
        until: Option<Instant>,
    ) -> Hold {
        let excused = *self.excused.lock().unwrap();
        if !self.rules.is_empty() && !excused {
            let mut log = self.log.lock().unwrap();
            log.units += cost;
            log.grants.push(Grant { from, to, cost });
        }
        let mut key = None;
        if let Some(places) = &self.places {
            let mut places = places.lock().unwrap();
            let now = Instant::now();
            while let Some(end) = places.holds.first_entry().filter(|end| end.key().0 <= now) {
                let cost = end.remove();
                places.held -= cost;
            }
            let until = until.unwrap_or(now + Duration::from_secs(1_000_000));
            if until > now {
                let at = (until, places.next);
                places.next += 1;
                places.holds.insert(at, cost);
                places.held += cost;
                key = Some(at);
            }
            if places.held > places.most && !excused {
                let (held, most) = (places.held, places.most);
                self.tally.fault(format_args!(
                    "over: {held} of {most} places are held: {}",
                    self.name
                ));
            }
        }
        Hold {
            reference: Arc::clone(self),
            key,
        }
    }

    /// From now on there are this many places.
    pub(crate) fn set_places(&self, most: u64) {
        if let Some(places) = &self.places {
            places.lock().unwrap().most = most;
        }
    }

    /// Whether nothing is held and nothing was granted for a while.
    pub(crate) fn is_idle_since(&self, since: Instant) -> bool {
        let places_end = self.places.as_ref().and_then(|places| {
            let places = places.lock().unwrap();
            places.holds.last_key_value().map(|(end, _)| end.0)
        });
        let last_grant = self
            .log
            .lock()
            .unwrap()
            .grants
            .iter()
            .map(|grant| grant.to)
            .max();
        places_end.is_none_or(|end| end < since) && last_grant.is_none_or(|last| last < since)
    }

    /// Until [`resume`](Self::resume), more may be granted than the limits admit.
    pub(crate) fn excuse(&self) {
        *self.excused.lock().unwrap() = true;
    }

    pub(crate) fn resume(&self) {
        self.log.lock().unwrap().grants.clear();
        *self.excused.lock().unwrap() = false;
    }

    /// Checks the grants of the last seconds, and forgets older ones.
    pub(crate) fn check(&self) {
        let mut log = self.log.lock().unwrap();
        let mut grants = mem::take(&mut log.grants);
        drop(log);
        grants.sort_unstable_by_key(|grant| grant.from);
        for rule in &self.rules {
            for span in rule.spans() {
                let (found, most) = (most_within(&grants, span), rule.most_in(span));
                if found > most {
                    self.tally.fault(format_args!(
                        "over: {found} of {most} units in {span:?}: {}",
                        self.name
                    ));
                }
            }
        }
        let longest = self
            .rules
            .iter()
            .flat_map(Rule::spans)
            .max()
            .unwrap_or_default();
        // Callers may be late to count a grant.
        let oldest = Instant::now().checked_sub(longest + Duration::from_secs(3));
        grants.retain(|grant| oldest.is_none_or(|oldest| grant.to >= oldest));
        let mut log = self.log.lock().unwrap();
        grants.append(&mut log.grants);
        log.grants = grants;
    }

    /// Checks the sum of all grants.
    pub(crate) fn check_sum(&self) {
        self.check();
        let log = self.log.lock().unwrap();
        let lasted = log.since.elapsed();
        for rule in &self.rules {
            let (units, most) = (log.units, rule.most_in(lasted));
            if units > most {
                self.tally.fault(format_args!(
                    "over: {units} of {most} units in {lasted:?}: {}",
                    self.name
                ));
            }
        }
    }
}

/// The most units of grants that lie within one span, its end excluded. The grants are sorted by their beginning.
fn most_within(grants: &[Grant], span: Duration) -> u64 {
    let mut by_end: Vec<usize> = (0..grants.len()).collect();
    by_end.sort_unstable_by_key(|index| grants[*index].to);
    let mut ends = by_end.into_iter().peekable();
    let mut counted = vec![false; grants.len()];
    let (mut units, mut most) = (0, 0);
    for (first, grant) in grants.iter().enumerate() {
        while let Some(index) = ends.next_if(|index| grants[*index].to < grant.from + span) {
            if index >= first {
                counted[index] = true;
                units += grants[index].cost;
            }
        }
        most = most.max(units);
        if counted[first] {
            units -= grant.cost;
        }
    }
    most
}

/// The places of a permit in the account. It must end before the permit does.
#[derive(Debug)]
pub(crate) struct Hold {
    reference: Arc<Reference>,
    key: Option<(Instant, u64)>,
}

impl Hold {
    /// The places stay taken until the TTL has passed.
    pub(crate) fn leak(mut self) {
        self.key = None;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let (Some(key), Some(places)) = (self.key, &self.reference.places) {
            let mut places = places.lock().unwrap();
            if let Some(cost) = places.holds.remove(&key) {
                places.held -= cost;
            }
        }
    }
}

/// Checks accounts until the run stops.
pub(crate) async fn watch(run: &Run, references: impl Fn() -> Vec<Arc<Reference>>) {
    while run.pause(Duration::from_secs(2)).await {
        for reference in references() {
            reference.check();
        }
    }
}
