//! The turns to come, if no other request came.

use std::iter::Peekable;

use super::Queue;
use crate::core::arena::Index;
use crate::core::queue::flows::FairTurns;
use crate::core::queue::waiter::{Waiter, WaiterId};
use crate::core::request::{Costs, Request};
use crate::priority::Priority;
use crate::strategy::Moment;

/// The waiters in the order of their turns. Each is either granted or leaves, and what follows depends on that.
pub(crate) struct QueueTurns<'a> {
    queue: &'a Queue,
    /// The waiters of this priority are next, then those of the lower ones.
    level: usize,
    /// Those without a flow.
    line: Peekable<Line<'a>>,
    /// If any flow is known.
    fair: Option<FairTurns<'a>>,
    /// The waiters that are not passed.
    reserved: Vec<WaiterId>,
    /// The level of a newcomer, and whether it is without a flow.
    newcomer: Option<(usize, bool)>,
}

type Line<'a> = Box<dyn Iterator<Item = (&'a Waiter, Moment)> + 'a>;

/// The turn of a waiter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueTurn<'a> {
    pub(crate) id: WaiterId,
    pub(crate) costs: Costs<'a>,
    pub(crate) deadline: Moment,
    flow: Option<Index>,
}

/// What is next at one priority.
enum NextTurn<'a> {
    Waiter(QueueTurn<'a>),
    Newcomer,
}

impl Queue {
    /// The turns of all waiters; of a newcomer, those until its own turn.
    pub(crate) fn turns(&self, newcomer: Option<&Request<'_>>) -> QueueTurns<'_> {
        let newcomer = newcomer.map(|request| {
            let level = usize::from(request.priority.level());
            (level, request.costs.flow())
        });
        let in_flow = newcomer.and_then(|(level, flow)| Some((flow?, level, self.next_arrival())));
        let is_unnamed = newcomer.is_some_and(|(_, flow)| flow.is_none());
        let mut fair = self.flows().map(|flows| FairTurns::new(flows, in_flow));
        if let Some(fair) = &mut fair
            && is_unnamed
            && !self.has_unnamed_waiters()
        {
            fair.unnamed_begins();
        }
        QueueTurns {
            queue: self,
            level: Priority::LEVELS,
            line: QueueTurns::line(std::iter::empty()),
            fair,
            reserved: self
                .flows()
                .map_or_else(Vec::new, |flows| flows.all_reserved().to_vec()),
            newcomer: newcomer.map(|(level, flow)| (level, flow.is_none())),
        }
    }
}

impl<'a> QueueTurns<'a> {
    fn line(waiters: impl Iterator<Item = (&'a Waiter, Moment)> + 'a) -> Peekable<Line<'a>> {
        let line: Line<'a> = Box::new(waiters);
        line.peekable()
    }

    /// The waiter that is next, until its turn [was granted](Self::granted) or [it left](Self::left). `None`: the newcomer is, or no
    /// waiter is left.
    pub(crate) fn next(&mut self) -> Option<QueueTurn<'a>> {
        loop {
            match self.next_at_level() {
                Some(NextTurn::Waiter(turn)) => return Some(turn),
                Some(NextTurn::Newcomer) => return None,
                None => {
                    self.level = self.level.checked_sub(1)?;
                    self.enter_level();
                }
            }
        }
    }

    fn enter_level(&mut self) {
        let newest_first = self.queue.newest_first;
        if let Some(line) = self.queue.levels.get(self.level) {
            self.line = if newest_first {
                Self::line(line.iter().rev())
            } else {
                Self::line(line.iter())
            };
        } else {
            self.line = Self::line(std::iter::empty());
        }
        if let Some(fair) = &mut self.fair {
            fair.enter_level(self.level);
        }
    }

    fn next_at_level(&mut self) -> Option<NextTurn<'a>> {
        if self.level == Priority::LEVELS {
            return None;
        }
        let in_line = self.next_in_line();
        let Some(fair) = &mut self.fair else {
            return in_line;
        };
        let mut reserved = self.reserved.iter();
        if let Some(id) = reserved.find(|id| id.level() == self.level) {
            return self.turn_of(*id).map(NextTurn::Waiter);
        }
        let arrival = |next: &NextTurn<'_>| match next {
            NextTurn::Waiter(turn) => turn.id.arrival(self.queue.arrivals),
            NextTurn::Newcomer => self.queue.next_arrival(),
        };
        let Some((share, flow)) = fair.next() else {
            return in_line;
        };
        let goes_first = |next: &NextTurn<'a>| fair.unnamed_share(arrival(next)) < share;
        if let Some(next) = in_line.filter(goes_first) {
            return Some(next);
        }
        let Some(waiter) = fair.waiter_of(flow) else {
            return Some(NextTurn::Newcomer);
        };
        self.turn_of(waiter).map(NextTurn::Waiter)
    }

    fn next_in_line(&mut self) -> Option<NextTurn<'a>> {
        let is_awaited = self.newcomer == Some((self.level, true));
        if is_awaited && self.queue.newest_first {
            return Some(NextTurn::Newcomer);
        }
        match self.line.peek() {
            Some((waiter, deadline)) => Some(NextTurn::Waiter(QueueTurn {
                id: waiter.id,
                costs: self.queue.costs(waiter),
                deadline: *deadline,
                flow: None,
            })),
            None => is_awaited.then_some(NextTurn::Newcomer),
        }
    }

    fn turn_of(&self, id: WaiterId) -> Option<QueueTurn<'a>> {
        let (waiter, deadline, _) = self.queue.find(id)?;
        Some(QueueTurn {
            id,
            costs: self.queue.costs(waiter),
            deadline,
            flow: self
                .queue
                .flows()
                .and_then(|flows| flows.waiters().flow_of(id)),
        })
    }

    /// The waiter is granted, and holds so many units from then on.
    pub(crate) fn granted(&mut self, turn: &QueueTurn<'_>, units: u64) {
        self.end(turn, Some(units));
    }

    /// The waiter leaves without a grant.
    pub(crate) fn left(&mut self, turn: &QueueTurn<'_>) {
        self.end(turn, None);
    }

    fn end(&mut self, turn: &QueueTurn<'_>, units: Option<u64>) {
        self.reserved.retain(|id| *id != turn.id);
        let granted = units.map(|units| (turn.costs.plain, units));
        match (turn.flow, &mut self.fair) {
            (Some(flow), Some(fair)) => fair.advance(flow, granted),
            (None, Some(fair)) => {
                self.line.next();
                if let Some((cost, units)) = granted {
                    fair.serve_unnamed(cost, units);
                }
            }
            (_, None) => {
                self.line.next();
            }
        }
    }

    /// The waiter that is next is not passed any more.
    pub(crate) fn reserve(&mut self, turn: &QueueTurn<'_>) {
        if self.fair.is_some() && !self.queue.newest_first {
            self.reserved.push(turn.id);
        }
    }

    /// The permit of this fence, which held so many units, is released.
    pub(crate) fn release(&mut self, fence: u64, units: u64) {
        if let Some(fair) = &mut self.fair {
            fair.release(fence, units);
        }
    }

    /// Whether a waiter is surely before the newcomer, if it stays: it has a higher priority, or the newcomer is in its flow.
    pub(crate) fn is_surely_before_newcomer(&self, turn: &QueueTurn<'_>) -> bool {
        let Some((level, is_unnamed)) = self.newcomer else {
            return true;
        };
        match (turn.flow, &self.fair) {
            _ if turn.id.level() > level => true,
            (Some(flow), Some(fair)) => fair.newcomer_is_in(flow),
            _ => is_unnamed,
        }
    }
}
