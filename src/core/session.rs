//! A process and the store that holds its limits.
//!
//! The queue, the priorities, deadlines and permits are those of any schedule; only the decision on the front comes from the store. One
//! call of a key is in flight at most. Requests that come meanwhile share the next one: the busier a key, the fewer calls a grant
//! takes.
//!
//! Work to be done outside is returned as an [`Errand`](crate::core::effects::Errand). A *carrier* asks for its [next
//! trip](SessionStep::next_trip), takes a call to the store, and brings the [answer](SessionStep::answered).

mod back_off;
mod call;
mod debts;
mod denial;
mod fallback;
mod grants;
mod outlook;
mod permits;
mod prefetch;
mod reply;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::core::queue::Waiters;
use crate::core::request::{Caller, Costs, Grant, Refused, Request};
use crate::error::AcquireError;
use crate::exchange::{OnStoreDown, Scope};
use crate::strategy::Moment;

use back_off::{BackOff, Random};
use call::{Calls, Carrier};
use debts::Debts;
use denial::{Denials, denied};
use fallback::LocalFallback;
use grants::{GrantByStore, StoredGrants};
use prefetch::Prefetch;

#[cfg(any(test, feature = "_simulation"))]
pub(crate) use call::Renewal;
pub(crate) use call::{CallAnswer, CallFailed, Trip};
pub(crate) use denial::Denied;
pub(crate) use prefetch::PrefetchOptions;

/// The most asks, returns, settlements, or renewals of one call. A store serves no other caller meanwhile.
const MAX_CALL: usize = 1_000;

/// The checked options of a session. All times are nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct SessionOptions {
    pub(crate) scope: Scope,
    /// A random number of this process and limiter.
    pub(crate) holder: u64,
    /// The number of the first lease. It is random for each session: a call of an earlier session of the key may reach the store late,
    /// and must not return a lease of a later one.
    pub(crate) first_lease: u64,
    /// The TTL of leases.
    pub(crate) ttl: NonZeroU64,
    /// After how long a permit is reclaimed although its holder is alive.
    pub(crate) max_hold: Option<u64>,
    /// How long a reply is awaited.
    pub(crate) deadline: u64,
    /// How often the store is asked again while a place is awaited, without a message of a release.
    pub(crate) polls_every: u64,
    /// After a failed call, the longest time until the store is asked again.
    pub(crate) longest_back_off: u64,
    pub(crate) on_down: OnStoreDown,
    /// The plan of [`OnStoreDown::Local`].
    pub(crate) fallback: Option<Arc<Plan>>,
    pub(crate) replaces_policy: bool,
    /// The name of the store, for errors.
    pub(crate) store: Arc<str>,
    pub(crate) prefetch: Option<PrefetchOptions>,
}

#[derive(Debug)]
pub(crate) struct StoreSession {
    options: SessionOptions,
    /// The places that the store has granted to this process.
    pub(crate) gate: Gate,
    grants: StoredGrants,
    debts: Debts,
    fallback: LocalFallback,
    calls: Calls,
    back_off: BackOff,
    denials: Denials,
    prefetch: Prefetch,
    /// For each limit, the end of the latest ban that was reported here, by the store's clock.
    bans: BTreeMap<usize, u64>,
    /// The policy, as text, that the store has and the next call replaces.
    replaced: Option<String>,
    carrier: Carrier,
}

/// A session at one instant, with the requests that wait and the effects so far.
#[derive(Debug)]
pub(crate) struct SessionStep<'a> {
    pub(crate) now: Moment,
    pub(crate) session: &'a mut StoreSession,
    waiters: &'a mut Waiters,
    effects: &'a mut Effects,
}

impl StoreSession {
    pub(crate) fn new(plan: Arc<Plan>, now: Moment, options: SessionOptions) -> Self {
        Self {
            gate: Gate::of_store(plan, now, options.ttl),
            grants: StoredGrants::default(),
            debts: Debts::default(),
            fallback: LocalFallback::new(options.fallback.clone()),
            calls: Calls::new(options.first_lease, options.deadline),
            back_off: BackOff::default(),
            denials: Denials::default(),
            prefetch: Prefetch::new(options.prefetch.unwrap_or_default()),
            bans: BTreeMap::new(),
            replaced: None,
            carrier: Carrier {
                due: Moment::START,
                wakes_at: Moment::NEVER,
            },
            options,
        }
    }

    /// The session at this instant, to give it an input.
    pub(crate) fn step<'a>(
        &'a mut self,
        now: Moment,
        waiters: &'a mut Waiters,
        effects: &'a mut Effects,
    ) -> SessionStep<'a> {
        SessionStep {
            now,
            session: self,
            waiters,
            effects,
        }
    }

    /// The gate of the local fallback, if it was needed so far.
    pub(crate) fn fallback_gate(&self) -> Option<&Gate> {
        self.fallback.gate.as_deref()
    }

    fn random(&self) -> Random {
        Random(self.options.holder ^ self.calls.generation)
    }

    /// The TTL of leases in the store, in nanoseconds; 0 if the policy has no places.
    pub(crate) fn lease_ttl(&self) -> u64 {
        if self.gate.holds_places() {
            self.options.ttl.get()
        } else {
            0
        }
    }
}

/// Requests.
impl SessionStep<'_> {
    /// Grants what needs no call: from prefetched units, or because this process decides while the store does not answer.
    pub(crate) fn admit(&mut self, costs: Costs<'_>, caller: Caller) -> Option<Grant> {
        let prefetched = self.take_prefetched(costs.plain, caller);
        if prefetched.is_some() || !self.session.fallback.is_active {
            return prefetched;
        }
        let grant = self.admit_by_fallback(costs, caller);
        self.probe_store();
        grant.ok().and_then(Result::ok)
    }

    /// Grants from prefetched units, and asks for more in time.
    fn take_prefetched(&mut self, cost: u64, caller: Caller) -> Option<Grant> {
        let grant = self.grant_prefetched(cost, caller)?;
        if self.session.prefetch.runs_low() {
            self.serve();
        }
        Some(grant)
    }

    /// Grants from prefetched units, which exist only for a policy that counts the plain cost alone. `None` if there are too few.
    fn grant_prefetched(&mut self, cost: u64, caller: Caller) -> Option<Grant> {
        if self.waiters.suspension.is_some() {
            return None;
        }
        let (fence, granted_at) = self.session.prefetch.take(self.now, cost)?;
        let by_store = GrantByStore {
            fence,
            number: 0,
            granted_at,
            sent_at: self.now,
        };
        let costs = Costs::plain(cost);
        Some(self.session.record(self.now, costs, by_store, caller))
    }

    /// Grants while the store does not answer. The outer `Err` means that the policy of the fallback can never grant the request.
    /// The inner one holds the end of the wait.
    fn admit_by_fallback(
        &mut self,
        costs: Costs<'_>,
        caller: Caller,
    ) -> Result<Result<Grant, Moment>, AcquireError> {
        let StoreSession { fallback, gate, .. } = &mut *self.session;
        fallback.fits(costs)?;
        let resumes_at = self.waiters.resumes_at(self.now, costs.plain);
        if resumes_at > self.now {
            return Ok(Err(resumes_at));
        }
        Ok(fallback.admit(self.now, costs, caller, gate))
    }

    /// Called when a request is decided without the store, to find out whether the store answers again.
    fn probe_store(&mut self) {
        if self.session.back_off.asks_from <= self.now && !self.session.calls.is_in_flight() {
            self.session.fallback.probes = true;
        }
        self.serve();
    }

    /// Grants or denies a request without a call. `Ok(None)`: a call decides, so the request is to be queued as a
    /// [try](crate::core::queue::Queue::add_try).
    pub(crate) fn try_acquire(&mut self, request: &Request<'_>) -> Result<Option<Grant>, Refused> {
        let &Request { costs, caller, .. } = request;
        if self.waiters.queue.is_empty()
            && let Some(grant) = self.admit(costs, caller)
        {
            return Ok(Some(grant)); // even if the store has denied requests since it granted the units
        }
        let mut bans = Vec::new();
        let denial = if self.session.fallback.is_active {
            self.session.fallback.fits(costs)?;
            self.probe_store();
            bans = self.session.fallback.note_denial(self.now, costs);
            let ahead = self.waiters.queue.units_ahead();
            self.outlook().known_denial(ahead, costs)
        } else if self.outlook().waits_to_ask() {
            self.outlook().unknown_denial(true)
        } else if self.outlook().is_known_denied(costs) {
            self.outlook().latest_denial(costs)
        } else {
            return Ok(None);
        };
        self.waiters
            .note_denial(costs.plain, &denial.0, caller, self.effects);
        self.waiters.tell_bans(bans, caller, self.effects);
        Err(denied(denial))
    }
}
