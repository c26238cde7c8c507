//! What a process decides by itself while the store does not answer, by a policy of its own: see
//! [`OnStoreDown::Local`](crate::exchange::OnStoreDown::Local).
//!
//! Requests wait in the same queue. No ask is sent meanwhile: a call without asks finds out whether the store answers again,
//! after the pause that each failure makes longer. It is sent while a request waits, or when one comes.

use std::sync::Arc;

use crate::core::gate::Gate;
use crate::core::gate::plan::{BegunBan, Plan};
use crate::core::request::{Caller, Claim, Costs, Grant};
use crate::error::AcquireError;
use crate::strategy::Moment;

#[derive(Debug, Default)]
pub(super) struct LocalFallback {
    /// The plan of its policy. `None`: another rule applies while the store does not answer.
    plan: Option<Arc<Plan>>,
    /// Whether this process decides.
    pub(super) is_active: bool,
    /// Whether it is time to find out whether the store answers again, although no request waits for it.
    pub(super) probes: bool,
    /// The gate. Made when it is first needed, and kept: a store that comes and goes must not reset it each time.
    pub(super) gate: Option<Box<Gate>>,
}

impl LocalFallback {
    pub(super) fn new(plan: Option<Arc<Plan>>) -> Self {
        Self {
            plan,
            ..Self::default()
        }
    }

    /// Begins to decide, because the store does not answer.
    pub(super) fn begin(&mut self, now: Moment) {
        if let Some(plan) = &self.plan {
            self.is_active = true;
            self.gate
                .get_or_insert_with(|| Box::new(Gate::new(Arc::clone(plan), now, true)));
        }
    }

    /// Stops deciding, because the store answers or another rule applies. Returns whether this process decided until now.
    pub(super) fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_active)
    }

    /// The gate, if it decides.
    pub(super) fn deciding(&self) -> Option<&Gate> {
        self.gate.as_deref().filter(|_| self.is_active)
    }

    /// Whether its policy can ever admit the costs.
    pub(super) fn fits(&self, costs: Costs<'_>) -> Result<(), AcquireError> {
        self.gate
            .as_deref()
            .map_or(Ok(()), |gate| gate.limits().fits(costs))
    }

    /// [`Gate::admit`], after the latest fence of the `store`: the fences of its grants and of these are one sequence.
    pub(super) fn admit(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
        store: &mut Gate,
    ) -> Result<Grant, Moment> {
        let gate = self.gate.as_deref_mut().ok_or(Moment::NEVER)?;
        gate.set_granted(store.granted());
        let mut grant = gate.admit(now, costs, caller)?;
        store.set_granted(grant.fence);
        if grant.claim == Claim::PLACE {
            grant.claim = Claim::COUNTED_PLACE; // under the lock, it is released where it was granted
        }
        Ok(grant)
    }

    /// Records that a request that does not wait is denied, if this process decides. Returns the bans that begin with it.
    pub(super) fn note_denial(&mut self, now: Moment, costs: Costs<'_>) -> Vec<BegunBan> {
        match self.gate.as_deref_mut() {
            Some(gate) if self.is_active => gate.limits_mut().note_denial_and_bans(now, costs),
            _ => Vec::new(),
        }
    }

    /// Until when its grants count, if nothing is in flight: a key that is dropped and opened again must not be granted them twice.
    /// [`Moment::NEVER`] if none counts.
    pub(super) fn counts_until(&self, now: Moment) -> Moment {
        self.gate
            .as_deref()
            .map(|gate| gate.limits().reset_at(now))
            .filter(|at| *at > now)
            .unwrap_or(Moment::NEVER)
    }
}
