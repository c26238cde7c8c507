//! Limiters, and callers that keep them busy.

use std::time::Duration;

use common::store::AnyStore;
use tokio::time::{interval, sleep};
use tollgate::telemetry::MetricsObserver;
use tollgate::{
    Adapt, ConfigError, KeyedLimiter, Limiter, MaxConcurrency, Outcome, Overflow, Policy,
    SharedLimiter,
};

pub(crate) struct Limiters {
    pub(crate) search: Limiter,
    pub(crate) model: Limiter,
    pub(crate) users: KeyedLimiter<u64>,
    pub(crate) payments: SharedLimiter,
    /// The store of `payments`.
    store: AnyStore,
}

impl Limiters {
    pub(crate) fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let metrics = MetricsObserver::new();
        let store = AnyStore::open("memory")?;
        let named = |name: &str, policy: Policy| -> Result<Limiter, ConfigError> {
            let builder = Limiter::builder(policy)
                .name(name)
                .max_queue(18)
                .overflow(Overflow::DropOldest);
            builder.observer(metrics.clone()).build()
        };
        Ok(Self {
            search: named(
                "search",
                "4 concurrent ttl 100ms and 100/s burst 20".parse()?,
            )?,
            model: named(
                "model",
                MaxConcurrency::new(8)
                    .adapt(Adapt::aimd().between(2, 32))
                    .into(),
            )?,
            users: KeyedLimiter::builder("10/s burst 5")
                .name("users")
                .max_keys(20)
                .observer(metrics.clone())
                .build()?,
            payments: SharedLimiter::builder(store.clone(), "payments", "50/s burst 10")
                .observer(metrics.clone())
                .build()?,
            store,
        })
    }

    /// Starts the callers, which run until the program ends.
    pub(crate) fn use_all(&self) {
        for nth in 0..24 {
            tokio::spawn(search(self.search.clone(), nth));
            tokio::spawn(model(self.model.clone(), nth));
        }
        tokio::spawn(users(self.users.clone()));
        for _ in 0..4 {
            tokio::spawn(payments(self.payments.clone()));
        }
        tokio::spawn(outages(self.store.clone()));
    }
}

/// Every fiftieth search takes longer than the TTL of its permit.
async fn search(limiter: Limiter, nth: u64) {
    for round in nth.. {
        if let Ok(permit) = limiter
            .request()
            .timeout(Duration::from_millis(60))
            .acquire()
            .await
        {
            sleep(Duration::from_millis(if round % 50 == 0 {
                150
            } else {
                20 + round % 30
            }))
            .await;
            drop(permit);
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// A server that is overloaded by more than 12 calls at once.
async fn model(limiter: Limiter, nth: u64) {
    for round in nth.. {
        let Ok(permit) = limiter.acquire().await else {
            continue;
        };
        sleep(Duration::from_millis(10 + round % 10)).await;
        let overloaded = limiter.snapshot().in_flight > 12;
        permit.report(if overloaded {
            Outcome::Overloaded
        } else {
            Outcome::Ok
        });
    }
}

/// Some users call much more often than others. There are more users than `max_keys`.
async fn users(limiter: KeyedLimiter<u64>) {
    let mut every = interval(Duration::from_millis(2));
    for call in 0_u64.. {
        every.tick().await;
        let user = (call * call) % 1_009 % (1 + call % 90);
        drop(limiter.try_acquire(&user));
    }
}

async fn payments(limiter: SharedLimiter) {
    loop {
        if limiter.acquire().await.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn outages(store: AnyStore) {
    loop {
        sleep(Duration::from_secs(9)).await;
        store.cut(true);
        sleep(Duration::from_secs(1)).await;
        store.cut(false);
    }
}
