//! What each tenant got, and what is fair.

use std::ops::Range;
use std::time::Duration;

use crate::load::{ARRIVAL, END, Grant, Run, Shared, Tenant};

/// A permit is not taken back. So shares are measured from a second after an arrival, when all permits from before it are released.
const SETTLED: Duration = Duration::from_secs(1);
/// The span in which `late` is absent.
const TWO_TENANTS: Range<Duration> = SETTLED..ARRIVAL;
pub(crate) const THREE_TENANTS: Range<Duration> = ARRIVAL.saturating_add(SETTLED)..END;
/// How far a share may be from the fair share, in proportion to it.
const TOLERANCE: f64 = 0.03;

impl Run {
    fn of(&self, tenant: &Tenant) -> impl Iterator<Item = &Grant> {
        let name = tenant.name;
        self.grants.iter().filter(move |grant| grant.tenant == name)
    }

    pub(crate) fn grants(&self, tenant: &Tenant, span: &Range<Duration>) -> usize {
        let grants = self.of(tenant);
        grants.filter(|grant| span.contains(&grant.granted)).count()
    }

    /// How long the tenant's permits were held.
    fn place_time(&self, tenant: &Tenant, span: &Range<Duration>) -> Duration {
        let held = self.of(tenant).map(|grant| {
            let (from, to) = (grant.granted.max(span.start), grant.released.min(span.end));
            to.saturating_sub(from)
        });
        held.sum()
    }

    /// The tenant's share of what all tenants got, from 0 to 1.
    pub(crate) fn share(&self, tenant: &Tenant, span: &Range<Duration>) -> f64 {
        let got = |tenant| match self.shared {
            Shared::PlaceTime => self.place_time(tenant, span).as_secs_f64(),
            Shared::Grants => self.grants(tenant, span) as f64,
        };
        got(tenant) / self.tenants.iter().map(got).sum::<f64>()
    }

    /// The tenant's share by weight among those that have arrived. It is the max-min share, because each of them wants more.
    pub(crate) fn fair_share(&self, tenant: &Tenant, at: Duration) -> f64 {
        let weight = |tenant: &Tenant| (u64::from(tenant.arrives <= at) * tenant.weight) as f64;
        weight(tenant) / self.tenants.iter().map(weight).sum::<f64>()
    }

    /// How long the tenant waited for its first permit.
    pub(crate) fn first_wait(&self, tenant: &Tenant) -> Duration {
        let first = self.of(tenant).map(|grant| grant.granted).min();
        first.unwrap_or(Duration::MAX) - tenant.arrives
    }

    /// Says whose share is not fair, if one is not.
    pub(crate) fn unfair(&self) -> Option<String> {
        let spans = [TWO_TENANTS, THREE_TENANTS].into_iter();
        let mut each = spans.flat_map(|span| self.tenants.map(|tenant| (span.clone(), tenant)));
        each.find_map(|(span, tenant)| {
            let (got, fair) = (
                self.share(&tenant, &span),
                self.fair_share(&tenant, span.start),
            );
            let (name, policy, percent) = (tenant.name, self.policy, got * 100.0);
            ((got - fair).abs() > TOLERANCE * fair).then(|| {
                format!(
                    "{name} got {percent:.1} % of {policy} in {span:?}, not {:.1} %",
                    fair * 100.0
                )
            })
        })
    }
}
