//! Leaked permits, until their limiter reports that it has reclaimed them, and a while after.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tollgate::{AcquireError, Limit, Limiter, Policy};

/// How long a caller that leaks its permit waits for one.
const PATIENCE: Duration = Duration::from_secs(1);
/// The number of leaks that are shown.
const SHOWN: usize = 6;

#[derive(Default)]
pub(crate) struct Leaks(Mutex<Vec<Leak>>);

struct Leak {
    /// The number of the permit.
    fence: u64,
    at: Instant,
    /// The time from the grant to the reclaim, if the permit was reclaimed.
    held: Option<Duration>,
}

impl Leaks {
    /// Leaks a permit, and returns its number.
    pub(crate) async fn leak(&self, limiter: &Limiter) -> Result<u64, AcquireError> {
        let permit = limiter.request().timeout(PATIENCE).acquire().await?;
        let (fence, at) = (
            permit.fence(),
            permit.acquired_at().unwrap_or_else(Instant::now),
        );
        let mut leaks = self.0.lock().unwrap();
        while leaks.len() >= SHOWN
            && let Some(oldest) = leaks.iter().position(|leak| leak.held.is_some())
        {
            leaks.remove(oldest);
        }
        leaks.push(Leak {
            fence,
            at,
            held: None,
        });
        drop(leaks);
        permit.forget();
        Ok(fence)
    }

    pub(crate) fn reclaimed(&self, fence: u64, held: Duration) {
        if let Some(leak) = self
            .0
            .lock()
            .unwrap()
            .iter_mut()
            .find(|leak| leak.fence == fence)
        {
            leak.held = Some(held);
        }
    }

    /// For each leak, the latest last: the seconds until its reclaim, or the seconds from its grant to its reclaim.
    pub(crate) fn list(&self, policy: &Policy) -> Vec<Value> {
        // A changed TTL counts from the grant.
        let ttl = policy.limits().iter().find_map(|limit| match limit {
            Limit::MaxConcurrency(places) => places.get_ttl(),
            _ => None,
        });
        let tell = |leak: &Leak| match (leak.held, ttl) {
            (Some(held), _) => json!({ "permit": leak.fence, "held": held.as_secs_f64() }),
            (None, Some(ttl)) => {
                json!({ "permit": leak.fence, "left": ttl.saturating_sub(leak.at.elapsed()).as_secs_f64() })
            }
            (None, None) => json!({ "permit": leak.fence }),
        };
        self.0.lock().unwrap().iter().map(tell).collect()
    }
}
