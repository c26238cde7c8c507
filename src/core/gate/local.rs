//! What this process decides alone while the store of its limits does not answer, by another policy.
//!
//! The gate of the store has this gate beside its holdings. Permits come back to the one that they were granted by.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{BegunBan, Gate};
use crate::core::costs::Costs;
use crate::core::grant::{Claim, Grant};
use crate::core::plan::Plan;
use crate::core::request::Caller;
use crate::strategy::Moment;

/// A gate of this process alone.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) gate: Gate,
    /// The fences of its permits that come back.
    held: BTreeSet<u64>,
}

impl Gate {
    /// The gate of this process alone, which is made when it is first needed. It is kept: a store that comes and goes must not make it
    /// new each time.
    pub(crate) fn local(&mut self, now: Moment, plan: &Arc<Plan>) -> Option<&Self> {
        let new = || Box::new(Local { gate: Self::new(Arc::clone(plan), now, true), held: BTreeSet::new() });
        Some(&self.holdings()?.local.get_or_insert_with(new).gate)
    }

    /// [`Gate::local`], if it was made.
    pub(crate) fn known_local(&self) -> Option<&Self> {
        Some(&self.past.as_ref()?.holdings.as_ref()?.local.as_ref()?.gate)
    }

    /// [`Gate::admit`] by this process alone. The fences of both gates are one sequence.
    pub(crate) fn admit_locally(&mut self, now: Moment, costs: Costs<'_>, caller: Caller) -> Result<Grant, Moment> {
        let fence = self.fence;
        let Some(local) = self.local_mut() else { return Err(Moment::NEVER) };
        local.gate.fence = fence;
        let grant = local.gate.admit(now, costs, caller)?;
        // Under the lock, it comes back to where it was granted.
        let claim = if grant.claim == Claim::PLACE { Claim::COUNTED_PLACE } else { grant.claim };
        if claim.holds() {
            local.held.insert(grant.fence);
        }
        self.fence = grant.fence;
        Ok(Grant { claim, ..grant })
    }

    /// Records that a request that does not wait was denied by this process alone. Returns the bans that begin with it.
    pub(crate) fn note_local_denial(&mut self, now: Moment, costs: Costs<'_>) -> Vec<BegunBan> {
        self.local_mut().map(|local| local.gate.note_denial_and_bans(now, costs)).unwrap_or_default()
    }

    /// The gate that granted the permit of this fence, which comes back, if that is the one of this process alone.
    #[cold]
    pub(super) fn take_held_locally(&mut self, fence: u64) -> Option<&mut Self> {
        let local = self.local_mut()?;
        local.held.remove(&fence).then_some(&mut local.gate)
    }

    /// The same for a permit that may hold nothing. The permits of rates that a store has granted know when.
    pub(super) fn take_granted_locally(&mut self, grant: Grant) -> Option<&mut Self> {
        if grant.claim == Claim::NONE {
            self.local_mut().map(|local| &mut local.gate)
        } else {
            self.take_held_locally(grant.fence)
        }
    }

    fn local_mut(&mut self) -> Option<&mut Local> {
        self.holdings()?.local.as_deref_mut()
    }
}
