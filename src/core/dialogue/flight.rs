//! A call under way, and what it asks for.

use std::sync::Arc;

use crate::core::costs::UnitCosts;
use crate::core::waiter::WaiterId;
use crate::exchange::{Asks, Settlement};
use crate::strategy::Moment;

/// A call under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) sent_at: Moment,
    pub(crate) asked: Vec<WaiterId>,
    pub(crate) runs: Vec<Asks>,
    pub(crate) returns: Vec<(u64, Moment)>,
    pub(crate) settlements: Vec<Settlement>,
    /// How many messages of releases came meanwhile. The store may have decided before them.
    pub(crate) heard: u32,
    /// Whether the limits in the store were made as new meanwhile. The store may have decided before that.
    pub(crate) was_reset: bool,
    /// Whether it replaces the policy in the store.
    pub(crate) replaces: bool,
}

impl Flight {
    /// Whether places came back elsewhere meanwhile. Of its own returns, it hears too.
    pub(crate) fn heard_of_others(&self) -> bool {
        self.heard > u32::from(!self.returns.is_empty())
    }
}

/// Gathers asks into runs of equal ones.
#[derive(Debug, Default)]
pub(crate) struct Runs<'a> {
    pub(super) asked: Vec<WaiterId>,
    pub(super) runs: Vec<Asks>,
    /// What the last ask was made from.
    last: Option<(u64, Option<&'a Arc<UnitCosts>>)>,
}

impl<'a> Runs<'a> {
    pub(crate) fn push(
        &mut self,
        id: WaiterId,
        waits: bool,
        of: (u64, Option<&'a Arc<UnitCosts>>),
        number: u64,
        costs: impl FnOnce() -> Box<[u64]>,
    ) {
        self.asked.push(id);
        let same =
            |(cost, units): (u64, Option<&Arc<UnitCosts>>)| cost == of.0 && units.map(Arc::as_ptr) == of.1.map(Arc::as_ptr);
        match self.runs.last_mut().filter(|run| run.waits == waits && self.last.is_some_and(same)) {
            Some(run) => run.count += 1,
            None => self.runs.push(Asks { first: number, count: 1, costs: costs(), waits }),
        }
        self.last = Some(of);
    }

    pub(crate) fn len(&self) -> u64 {
        self.asked.len() as u64
    }

    /// Asks for units that nobody waits for yet.
    pub(crate) fn push_ahead(&mut self, units: u64, number: u64, costs: Box<[u64]>) {
        self.runs.push(Asks { first: number, count: units, costs, waits: true });
    }

    pub(crate) fn runs(&self) -> &[Asks] {
        &self.runs
    }
}
