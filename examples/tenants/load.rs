//! The tenants, what they share, and their requests.

use std::error::Error;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{AcquireError, Limiter};

/// When `late` arrives.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(10);
/// Length of a run.
pub(crate) const END: Duration = Duration::from_secs(20);

/// Each tenant always has more requests than its share, so the weights alone decide what is fair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    pub(crate) weight: u64,
    /// Requests that it makes at the same time, each again as soon as its work is done.
    pub(crate) requests: u64,
    /// The mean time for which a request holds its permit.
    pub(crate) work: Duration,
    pub(crate) arrives: Duration,
}

pub(crate) type Tenants = [Tenant; 3];

pub(crate) fn tenants(flood: u64) -> Tenants {
    let tenant = |name, weight, requests, work, arrives| Tenant {
        name,
        weight,
        requests,
        work: Duration::from_millis(work),
        arrives,
    };
    [
        tenant("gold", 3, 30, 50, Duration::ZERO),
        tenant("late", 1, 30, 100, ARRIVAL),
        tenant("flood", 1, flood, 200, Duration::ZERO),
    ]
}

/// What tenants share of a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shared {
    /// The time for which permits are held.
    PlaceTime,
    Grants,
}

impl Shared {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PlaceTime => "place-time",
            Self::Grants => "grants",
        }
    }
}

pub(crate) const LIMITS: [(&str, Shared); 2] = [
    ("20 concurrent", Shared::PlaceTime),
    ("200/s burst 10", Shared::Grants),
];

/// The order of the requests that wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Arrival,
    Flows,
}

/// One permit. Its times are since the start.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) tenant: &'static str,
    pub(crate) granted: Duration,
    pub(crate) released: Duration,
}

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) policy: &'static str,
    pub(crate) shared: Shared,
    pub(crate) tenants: Tenants,
    pub(crate) grants: Vec<Grant>,
}

/// Lets all tenants make their requests.
pub(crate) async fn run(
    (policy, shared): (&'static str, Shared),
    tenants: Tenants,
    order: Order,
) -> Result<Run, Box<dyn Error>> {
    let (limiter, start) = (Limiter::new(policy)?, Instant::now());
    let mut work = JoinSet::new();
    // `flood`, which is the last, asks first.
    for tenant in tenants.into_iter().rev() {
        for nth in 0..tenant.requests {
            work.spawn(request(limiter.clone(), tenant, order, start, nth));
        }
    }
    let mut grants = Vec::new();
    while let Some(of_one) = work.join_next().await {
        grants.extend(of_one??);
    }
    Ok(Run {
        policy,
        shared,
        tenants,
        grants,
    })
}

/// Makes one request after the other.
async fn request(
    limiter: Limiter,
    tenant: Tenant,
    order: Order,
    start: Instant,
    nth: u64,
) -> Result<Vec<Grant>, AcquireError> {
    let mut grants = Vec::new();
    sleep_until(start + tenant.arrives).await;
    while start.elapsed() < END {
        let request = match order {
            Order::Arrival => limiter.request(),
            Order::Flows => limiter.request().flow(tenant.name).weight(tenant.weight),
        };
        let permit = request.acquire().await?;
        let granted = start.elapsed();
        sleep(varied(tenant.work, nth << 32 | grants.len() as u64)).await;
        drop(permit);
        grants.push(Grant {
            tenant: tenant.name,
            granted,
            released: start.elapsed(),
        });
    }
    Ok(grants)
}

/// Up to a quarter more or less than the mean, in an order that looks random.
fn varied(mean: Duration, nth: u64) -> Duration {
    let share = (nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mean.mul_f64(0.75 + 0.5 * share as f64 / f64::from(u32::MAX))
}
