//! The server. It works on some requests at once, queues some, and refuses the rest. Its limiter is its own: the callers' limiter
//! does not know it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tollgate::{ConfigError, Limiter, MaxConcurrency};

/// Requests that may wait.
pub(crate) const QUEUE: u64 = 40;
/// How long a refusal takes.
const REFUSAL: Duration = Duration::from_millis(5);

/// The capacity of the server during a phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// The number of requests that the server works on at once.
    pub(crate) places: u64,
    /// The mean time of one request, without its time in the queue.
    pub(crate) work: Duration,
}

impl Phase {
    /// Requests a second that it can serve.
    pub(crate) fn throughput(&self) -> f64 {
        self.places as f64 / self.work.as_secs_f64()
    }
}

const WELL: Phase = Phase {
    name: "well",
    places: 40,
    work: Duration::from_millis(20),
};

pub(crate) const PHASES: [Phase; 5] = [
    WELL,
    Phase {
        name: "half the places",
        places: 20,
        ..WELL
    },
    Phase {
        name: "recovered",
        ..WELL
    },
    Phase {
        name: "three times as slow",
        work: Duration::from_millis(60),
        ..WELL
    },
    Phase {
        name: "recovered",
        ..WELL
    },
];

#[derive(Debug)]
pub(crate) struct Server {
    places: Limiter,
    work: Mutex<Duration>,
    calls: AtomicU64,
}

/// The server refused the request because its queue was full.
#[derive(Debug)]
pub(crate) struct Refused;

impl Server {
    pub(crate) fn new() -> Result<Self, ConfigError> {
        let places = Limiter::builder(MaxConcurrency::new(WELL.places))
            .max_queue(QUEUE as usize)
            .build()?;
        Ok(Self {
            places,
            work: Mutex::new(WELL.work),
            calls: AtomicU64::new(0),
        })
    }

    pub(crate) fn enter(&self, phase: Phase) -> Result<(), ConfigError> {
        *self.work.lock().unwrap() = phase.work;
        self.places.set_policy(MaxConcurrency::new(phase.places))
    }

    pub(crate) async fn call(&self) -> Result<(), Refused> {
        let Ok(_place) = self.places.acquire().await else {
            sleep(REFUSAL).await;
            return Err(Refused);
        };
        sleep(self.work()).await;
        Ok(())
    }

    /// Up to a quarter more or less than the mean, in an order that looks random.
    fn work(&self) -> Duration {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let share = (call + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mean = *self.work.lock().unwrap();
        mean.mul_f64(0.75 + 0.5 * share as f64 / f64::from(u32::MAX))
    }
}
