//! The tenants of a limiter, and counts of their requests. The callers count, because a limiter counts by tenant only with flows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::panels::Settings;

pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    /// Requests a second.
    pub(crate) load: fn(&Settings) -> u64,
    pub(crate) weight: fn(&Settings) -> u64,
}

/// The only caller of a limiter.
pub(crate) static ONLY: [Tenant; 1] = [Tenant {
    name: "only",
    load: |now| now["load"],
    weight: |_| 1,
}];

/// The requests of a tenant.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) queued: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    pub(crate) granted: AtomicU64,
}

#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) queued: u64,
    pub(crate) in_flight: u64,
    pub(crate) granted: u64,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            queued: self.queued.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            granted: self.granted.load(Relaxed),
        }
    }
}
