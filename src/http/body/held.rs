use crate::permit::Permit;
use crate::strategy::Outcome;

/// A permit, and what its limiter is told of the work when it ends.
#[derive(Debug)]
pub(in crate::http) struct Held {
    permit: Option<Permit>,
    outcome: Outcome,
}

impl Held {
    pub(in crate::http) const fn new(permit: Option<Permit>, outcome: Outcome) -> Self {
        Self { permit, outcome }
    }

    /// Whether the limiter waits for the end of the work.
    pub(in crate::http) fn holds(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::may_hold_place)
    }

    /// The work is done.
    pub(in crate::http) fn complete(&mut self) {
        if let Some(permit) = self.permit.take().filter(Permit::may_hold_place) {
            permit.report(self.outcome);
        }
    }

    /// The work was broken off: how long it took tells nothing. An overload does.
    pub(in crate::http) fn give_up(&mut self) {
        if self.outcome == Outcome::Overloaded {
            self.complete();
        }
        self.permit = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_up();
    }
}
