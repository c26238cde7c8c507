//! The events that pages get: the numbers of the last minute at once, and then new ones each quarter of a second.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::broadcast;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate::{Limit, LimiterSnapshot};

use crate::Board;
use crate::panels::Panel;
use crate::tenants::{Counts, Tally};

const READING: Duration = Duration::from_millis(50);
/// Readings between two ticks: a quarter of a second.
const TICK: usize = 5;
/// Readings in the last second. All numbers are of that time: rates, quantiles of waits, and means.
const WINDOW: usize = 20;
/// A minute.
const HISTORY: usize = 240;
/// The number of ticks that a page may be late. A page that is later is disconnected, and connects again.
const BACKLOG: usize = 40;

pub(crate) struct Feed {
    recent: Mutex<Recent>,
    pages: broadcast::Sender<Arc<str>>,
}

#[derive(Default)]
struct Recent {
    /// The numbers of each tick, without those that only the latest tick has.
    history: VecDeque<Value>,
    latest: Value,
}

impl Feed {
    pub(crate) fn new() -> Self {
        Self {
            recent: Mutex::default(),
            pages: broadcast::channel(BACKLOG).0,
        }
    }

    /// The first event of a new page, and the ticks after it.
    pub(crate) fn join(&self) -> (Value, broadcast::Receiver<Arc<str>>) {
        let recent = self.recent.lock().unwrap();
        (
            json!({ "history": recent.history, "tick": recent.latest }),
            self.pages.subscribe(),
        )
    }

    pub(crate) fn latest(&self) -> Value {
        self.recent.lock().unwrap().latest.clone()
    }

    fn tell(&self, numbers: Value, tick: Value) {
        let text: Arc<str> = tick.to_string().into();
        let mut recent = self.recent.lock().unwrap();
        recent.history.push_back(numbers);
        if recent.history.len() > HISTORY {
            recent.history.pop_front();
        }
        recent.latest = tick;
        let _ = self.pages.send(text); // there may be no page
    }
}

/// Samples the limiters.
pub(crate) struct Sampler {
    board: Arc<Board>,
    start: Instant,
    /// One for each panel.
    windows: Vec<Window>,
}

impl Sampler {
    /// Makes a first tick, so that there is one for the first page.
    pub(crate) fn new(board: Arc<Board>) -> Self {
        let windows = board.panels.iter().map(|_| Window::default()).collect();
        let mut sampler = Self {
            board,
            start: Instant::now(),
            windows,
        };
        sampler.read();
        sampler.tick();
        sampler
    }

    /// Samples and sends ticks until the program ends.
    pub(crate) async fn run(mut self) {
        let mut readings = interval(READING);
        readings.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            for _ in 0..TICK {
                readings.tick().await;
                self.read();
            }
            self.tick();
        }
    }

    fn read(&mut self) {
        for (panel, window) in self.board.panels.iter().zip(&mut self.windows) {
            window.read(panel);
        }
    }

    fn tick(&self) {
        let (mut numbers, mut state) = (Map::new(), Map::new());
        for (panel, window) in self.board.panels.iter().zip(&self.windows) {
            let policy = panel.limiter.policy();
            let mut now = json!({ "policy": policy.to_string(), "settings": panel.settings() });
            if panel.about.leaks {
                now["leaks"] = panel.seen.leaks.list(&policy).into();
            }
            numbers.insert(panel.about.name.into(), window.numbers(panel));
            state.insert(panel.about.name.into(), now);
        }
        let feed = &self.board.feed;
        let numbers = json!({ "at": round(self.start.elapsed().as_secs_f64()), "panels": numbers });
        let tick =
            json!({ "numbers": numbers, "panels": state, "pages": feed.pages.receiver_count() });
        feed.tell(numbers, tick);
    }
}

/// The readings of the last second.
#[derive(Default)]
struct Window(VecDeque<Reading>);

struct Reading {
    at: Instant,
    counts: LimiterSnapshot,
    /// The units left in a bucket.
    tokens: Option<u64>,
    /// One for each tenant.
    tenants: Vec<Counts>,
    /// How long each request waited that was granted after a wait, since the reading before.
    waits: Vec<Duration>,
}

impl Window {
    fn read(&mut self, panel: &Panel) {
        let tokens = panel
            .limiter
            .limits()
            .into_iter()
            .find(|status| matches!(status.limit, Limit::TokenBucket(_)));
        self.0.push_back(Reading {
            at: Instant::now(),
            counts: panel.limiter.snapshot(),
            tokens: tokens.map(|status| status.remaining),
            tenants: panel.tallies.iter().map(Tally::counts).collect(),
            waits: panel.seen.take_waits(),
        });
        if self.0.len() > WINDOW + 1 {
            self.0.pop_front();
        }
    }

    /// Rates are per second, waits in milliseconds, the others means.
    fn numbers(&self, panel: &Panel) -> Value {
        let (first, last) = (&self.0[0], &self.0[self.0.len() - 1]);
        let seconds = (last.at - first.at).as_secs_f64();
        let granted = last.counts.granted - first.counts.granted;
        let denials = |counts: &LimiterSnapshot| counts.denied + counts.timed_out + counts.shed;
        let denied = denials(&last.counts) - denials(&first.counts);
        let rate = |count: u64| {
            if seconds > 0.0 {
                round(count as f64 / seconds)
            } else {
                0.0
            }
        };
        let mut waits: Vec<_> = self
            .0
            .iter()
            .skip(1)
            .flat_map(|reading| &reading.waits)
            .copied()
            .collect();
        waits.sort_unstable();
        let wait = |share: f64| {
            quantile(&waits, granted, share).map(|wait| round(wait.as_secs_f64() * 1e3))
        };
        let mean = |number: &dyn Fn(&Reading) -> Option<u64>| {
            let sum = self.0.iter().map(number).sum::<Option<u64>>()?;
            Some(round(sum as f64 / self.0.len() as f64))
        };
        let mut numbers = json!({
            "granted": rate(granted),
            "denied": rate(denied),
            "in_flight": mean(&|reading| Some(reading.counts.in_flight)),
            "queued": mean(&|reading| Some(reading.counts.queued)),
            "places": mean(&|reading| reading.counts.concurrency),
            "tokens": mean(&|reading| reading.tokens),
            "median": wait(0.5),
            "late": wait(0.95),
        });
        let tenants = panel.about.tenants;
        // The numbers of an only tenant are those above.
        for (nth, tenant) in tenants.iter().enumerate().filter(|_| tenants.len() > 1) {
            let granted = last.tenants[nth].granted - first.tenants[nth].granted;
            let of = |number: &str| format!("{}_{number}", tenant.name);
            numbers[of("granted")] = rate(granted).into();
            numbers[of("in_flight")] = mean(&|reading| Some(reading.tenants[nth].in_flight)).into();
            numbers[of("queued")] = mean(&|reading| Some(reading.tenants[nth].queued)).into();
        }
        numbers
    }
}

/// The wait that this share of all granted requests did not exceed. Those that are not among `waits`, in order, did not wait.
fn quantile(waits: &[Duration], granted: u64, share: f64) -> Option<Duration> {
    let granted = (granted as usize).max(waits.len());
    let nth = ((granted as f64 * share).ceil() as usize).checked_sub(1)?;
    Some(
        nth.checked_sub(granted - waits.len())
            .map_or(Duration::ZERO, |nth| waits[nth]),
    )
}

/// Rounds to hundredths, the precision of the charts.
fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
