//! The limiters, one a panel of the page: what each is for, what the page may change, and the policy that follows from it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::chain;
use serde_json::Value;
use tollgate::{
    Adapt, ConfigError, EventKind, Limiter, LimiterEvent, MaxConcurrency, Overflow, Policy, Rate,
    SlidingWindow, TokenBucket,
};

use crate::leaks::Leaks;
use crate::tenants::{self, Tally, Tenant};

/// Requests that may wait.
const QUEUE: usize = 100;

/// A number that the page changes.
pub(crate) struct Knob {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) range: RangeInclusive<u64>,
    start: u64,
}

/// The numbers of a panel, by name.
pub(crate) type Settings = BTreeMap<&'static str, u64>;

/// The parts of a panel that do not change.
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) text: &'static str,
    pub(crate) knobs: &'static [Knob],
    policy: fn(&Settings) -> Policy,
    /// Which request a full queue drops.
    overflow: Overflow,
    pub(crate) tenants: &'static [Tenant],
    /// How long a caller holds a permit on average.
    pub(crate) work: Duration,
    /// Whether its callers come in waves.
    pub(crate) waves: bool,
    /// Whether its permits have a TTL, so that leaked permits are reclaimed.
    pub(crate) leaks: bool,
}

const fn knob(
    name: &'static str,
    label: &'static str,
    unit: &'static str,
    range: RangeInclusive<u64>,
    start: u64,
) -> Knob {
    Knob {
        name,
        label,
        unit,
        range,
        start,
    }
}

const fn load(start: u64) -> Knob {
    knob("load", "Load", "requests a second", 0..=200, start)
}

/// The knob for how long a caller waits. With 0, callers use `try_acquire`.
const fn patience(start: u64) -> Knob {
    knob("patience", "Callers wait up to", "ms", 0..=2_000, start)
}

static PANELS: [About; 5] = [
    About {
        name: "api",
        title: "API quota",
        text: "A token bucket. The callers come in waves of 20\u{a0}s and do not wait: above the rate they spend the tokens, and are then denied.",
        knobs: &[
            load(50),
            patience(0),
            knob("rate", "Rate", "tokens a second", 1..=200, 40),
            knob("burst", "Burst", "tokens", 1..=200, 60),
        ],
        policy: |now| TokenBucket::new(Rate::per_second(now["rate"]), now["burst"]).into(),
        overflow: Overflow::DropOldest,
        tenants: &tenants::ONLY,
        work: Duration::ZERO,
        waves: true,
        leaks: false,
    },
    About {
        name: "database",
        title: "Database pool",
        text: "Connections, each held for about 100\u{a0}ms. A permit that is leaked keeps its place until its TTL has passed.",
        knobs: &[
            load(60),
            patience(1_000),
            knob("places", "Connections", "at once", 1..=40, 8),
            knob("ttl", "TTL of a permit", "s", 1..=30, 8),
        ],
        policy: |now| {
            MaxConcurrency::new(now["places"])
                .ttl(Duration::from_secs(now["ttl"]))
                .into()
        },
        overflow: Overflow::DropOldest,
        tenants: &tenants::ONLY,
        work: Duration::from_millis(100),
        waves: false,
        leaks: true,
    },
    About {
        name: "search",
        title: "Search",
        text: "Two limits that must both admit: so many at once, and so many in any second. Callers that would wait too long are turned away at once.",
        knobs: &[
            load(45),
            patience(500),
            knob("places", "Searches", "at once", 1..=40, 8),
            knob("window", "Searches", "in any second", 1..=200, 40),
        ],
        policy: |now| {
            MaxConcurrency::new(now["places"])
                .and(SlidingWindow::log(now["window"], Duration::from_secs(1)))
        },
        overflow: Overflow::DropOldest,
        tenants: &tenants::ONLY,
        work: Duration::from_millis(120),
        waves: false,
        leaks: false,
    },
    About {
        name: "model",
        title: "Adaptive",
        text: "The limit finds the capacity of a server, which refuses what is above it: one more each round, and at a refusal a third less.",
        knobs: &[
            load(100),
            patience(300),
            knob("capacity", "Server's capacity", "at once", 1..=60, 20),
            knob("ceiling", "Limit's ceiling", "at once", 2..=100, 40),
        ],
        policy: |now| {
            MaxConcurrency::new(10)
                .adapt(Adapt::aimd().between(2, now["ceiling"]).backoff(670))
                .into()
        },
        overflow: Overflow::DropOldest,
        tenants: &tenants::ONLY,
        work: Duration::from_millis(200),
        waves: false,
        leaks: false,
    },
    About {
        name: "tenants",
        title: "Three tenants",
        text: "Ten places that three tenants share, each request for about 100\u{a0}ms. Without flows, who asks most gets most. With a flow for each tenant they get equal shares, times their weight, whatever the flood.",
        knobs: &[
            knob("load", "Load of flood", "a second", 0..=200, 200),
            patience(1_000),
            knob("weight", "Weight of gold", "shares", 1..=9, 3),
            knob("flows", "A flow for each tenant", "", 0..=1, 1),
        ],
        policy: |_| MaxConcurrency::new(10).into(),
        overflow: Overflow::DropLongest,
        tenants: &[
            Tenant {
                name: "flood",
                load: |now| now["load"],
                weight: |_| 1,
            },
            Tenant {
                name: "gold",
                load: |_| 80,
                weight: |now| now["weight"],
            },
            Tenant {
                name: "silver",
                load: |_| 30,
                weight: |_| 1,
            },
        ],
        work: Duration::from_millis(100),
        waves: false,
        leaks: false,
    },
];

/// A limiter, with what the page shows and changes of it.
pub(crate) struct Panel {
    pub(crate) about: &'static About,
    pub(crate) limiter: Limiter,
    settings: Mutex<Settings>,
    pub(crate) seen: Arc<Seen>,
    /// One for each tenant.
    pub(crate) tallies: Vec<Tally>,
}

/// The events of the limiter.
#[derive(Default)]
pub(crate) struct Seen {
    waits: Mutex<Vec<Duration>>,
    pub(crate) leaks: Leaks,
}

impl Seen {
    fn observe(&self, event: &LimiterEvent<'_>) {
        match event.kind {
            EventKind::GrantedAfterWait { waited, .. } => self.waits.lock().unwrap().push(*waited),
            EventKind::Reclaimed { fence, held, .. } => self.leaks.reclaimed(*fence, *held),
            _ => {}
        }
    }

    /// The waits of the requests that were granted after one, since the last call.
    pub(crate) fn take_waits(&self) -> Vec<Duration> {
        std::mem::take(&mut self.waits.lock().unwrap())
    }
}

pub(crate) fn all() -> Result<Vec<Panel>, ConfigError> {
    PANELS.iter().map(Panel::new).collect()
}

impl Panel {
    fn new(about: &'static About) -> Result<Self, ConfigError> {
        let settings: Settings = about
            .knobs
            .iter()
            .map(|knob| (knob.name, knob.start))
            .collect();
        let seen = Arc::new(Seen::default());
        let observed = Arc::clone(&seen);
        let limiter = Limiter::builder((about.policy)(&settings))
            .name(about.name)
            .max_queue(QUEUE)
            .overflow(about.overflow)
            .on_event(move |event| observed.observe(event))
            .build()?;
        Ok(Self {
            about,
            limiter,
            settings: Mutex::new(settings),
            seen,
            tallies: about.tenants.iter().map(|_| Tally::default()).collect(),
        })
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.lock().unwrap().clone()
    }

    /// Changes all these numbers, or none. The limiter refuses numbers that make no valid policy.
    pub(crate) fn change(&self, wanted: &BTreeMap<String, Value>) -> Result<(), String> {
        let mut settings = self.settings.lock().unwrap();
        let mut next = settings.clone();
        for (name, value) in wanted {
            let knob = self.about.knobs.iter().find(|knob| knob.name == name);
            let knob = knob.ok_or_else(|| {
                format!("`{name}` is none of the numbers of `{}`", self.about.name)
            })?;
            let number = value.as_u64().filter(|number| number <= knob.range.end());
            let number = number.ok_or_else(|| knob.refusal(value))?;
            next.insert(knob.name, number);
        }
        let policy = (self.about.policy)(&next);
        if policy != self.limiter.policy() {
            self.limiter
                .set_policy(policy)
                .map_err(|error| chain(&error))?;
        }
        *settings = next;
        Ok(())
    }
}

impl Knob {
    fn refusal(&self, value: &Value) -> String {
        let (least, most) = (self.range.start(), self.range.end());
        format!(
            "{}: give a whole number from {least} to {most}, not {value}",
            self.label
        )
    }
}
