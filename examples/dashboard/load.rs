//! The callers: requests that come at random, at the rate that the page chose. Where the page switches flows on, each tenant is a flow.

use std::f64::consts::TAU;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{Limiter, Outcome, Permit};

use crate::Board;
use crate::panels::{Panel, Settings};
use crate::tenants::Tenant;

/// The longest sleep between requests, so that a new rate soon takes effect.
const STEP: Duration = Duration::from_millis(50);
/// The length of a wave, and by which share of the rate it rises and falls.
const WAVE: (f64, f64) = (20.0, 0.6);
/// How long a server takes to refuse a request.
const REFUSAL: Duration = Duration::from_millis(10);

/// Calls the nth limiter as one of its tenants until the program ends.
pub(crate) async fn call(board: Arc<Board>, nth: usize, tenant: usize) {
    let panel = &board.panels[nth];
    let load = panel.about.tenants[tenant].load;
    let (mut random, start) = (Random((nth + 100 * tenant) as u64), Instant::now());
    let mut next = start;
    loop {
        let settings = panel.settings();
        let wave = if panel.about.waves {
            WAVE.1 * (TAU * start.elapsed().as_secs_f64() / WAVE.0).sin()
        } else {
            0.0
        };
        // The gaps between requests that are independent of each other are exponential. They have no memory, so a long one is drawn
        // again after a step.
        let gap = -random.share().ln() / (load(&settings) as f64 * (1.0 + wave));
        let calls = gap < STEP.as_secs_f64();
        next += if calls {
            Duration::from_secs_f64(gap)
        } else {
            STEP
        };
        // Requests that were due while the computer was asleep are left out.
        next = next.max(Instant::now() - STEP);
        sleep_until(next).await;
        if calls {
            let work = work(panel, &mut random);
            tokio::spawn(request(Arc::clone(&board), nth, tenant, settings, work));
        }
    }
}

/// The duration of a request: from half the mean to one and a half times the mean.
fn work(panel: &Panel, random: &mut Random) -> Duration {
    panel.about.work.mul_f64(0.5 + random.share())
}

async fn request(board: Arc<Board>, nth: usize, tenant: usize, settings: Settings, work: Duration) {
    let panel = &board.panels[nth];
    let (limiter, tally) = (&panel.limiter, &panel.tallies[tenant]);
    tally.queued.fetch_add(1, Relaxed);
    let permit = acquire(limiter, &panel.about.tenants[tenant], &settings).await;
    tally.queued.fetch_sub(1, Relaxed);
    let Some(permit) = permit else { return };
    tally.granted.fetch_add(1, Relaxed);
    tally.in_flight.fetch_add(1, Relaxed);
    let overloaded = settings
        .get("capacity")
        .is_some_and(|capacity| limiter.snapshot().in_flight > *capacity);
    sleep(if overloaded { REFUSAL } else { work }).await;
    tally.in_flight.fetch_sub(1, Relaxed);
    permit.report(if overloaded {
        Outcome::Overloaded
    } else {
        Outcome::Ok
    });
}

async fn acquire(limiter: &Limiter, tenant: &Tenant, settings: &Settings) -> Option<Permit> {
    let mut request = limiter.request();
    if settings.get("flows") == Some(&1) {
        request = request.flow(tenant.name).weight((tenant.weight)(settings));
    }
    match settings["patience"] {
        0 => request.try_acquire().ok(),
        patience => {
            let request = request.timeout(Duration::from_millis(patience));
            request.acquire().await.ok()
        }
    }
}

/// Numbers that look random enough for arrivals (SplitMix64).
struct Random(u64);

impl Random {
    /// A number above 0, and at most 1.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}
