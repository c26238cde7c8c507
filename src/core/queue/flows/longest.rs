//! The longest flow, of which a full queue may drop a request.

use super::Flows;
use super::shares::{LengthEntry, ROOT, scaled};
use crate::core::arena::Index;
use crate::core::queue::waiter::WaiterId;
use crate::core::request::{FlowPath, FlowShare};

impl Flows {
    /// The request that a new one of this flow replaces in a full queue: the newest one of the longest flow. `unnamed`: how many
    /// requests without a flow wait, and the one of them that would be dropped. `None` if the flow of the new request is the longest.
    pub(crate) fn victim(
        &self,
        path: Option<FlowPath>,
        (unnamed_len, unnamed): (usize, Option<WaiterId>),
        arrivals: u64,
    ) -> Option<WaiterId> {
        let unnamed = unnamed.map(|id| {
            let length = scaled(unnamed_len as u64, 1);
            (length, id.arrival(arrivals), id)
        });
        let longest = self.longest_in(ROOT);
        let is_unnamed = unnamed.is_some_and(|(length, newest, _)| {
            longest.is_none_or(|longest| (length, newest) > (longest.length, longest.newest))
        });
        let length = match (unnamed, longest) {
            (Some((length, ..)), _) if is_unnamed => length,
            (_, Some(longest)) => longest.length,
            _ => return None,
        };
        let own = path.map(|path| path.parent.unwrap_or(path.flow));
        let own_length = match own {
            Some(share) => self.length_with_one_more(share),
            None => scaled(unnamed_len as u64 + 1, 1),
        };
        if own_length >= length {
            let FlowPath { flow, parent } = path?;
            let longest = self.longest_in(*self.by_id.get(&parent?.id)?)?;
            let is_longer = longest.length > self.length_with_one_more(flow);
            return is_longer.then(|| self.newest_of(longest.flow)).flatten();
        }
        if is_unnamed {
            return unnamed.map(|(.., id)| id);
        }
        let longest = longest?;
        let within = self.longest_in(longest.flow).unwrap_or(longest);
        self.newest_of(within.flow)
    }

    fn length_with_one_more(&self, share: FlowShare) -> u128 {
        let flow = self.by_id.get(&share.id);
        let flow = flow.and_then(|flow| self.flows.get(*flow));
        let len = flow.map_or(0, |flow| u64::from(flow.len));
        scaled(len + 1, share.weight.get())
    }

    /// The longest of the flows of one parent.
    fn longest_in(&self, parent: Index) -> Option<LengthEntry> {
        let bound = |flow, length, newest| LengthEntry {
            parent,
            length,
            newest,
            flow: Index::new(flow),
        };
        let all = bound(0, 0, 0)..=bound(u32::MAX, u128::MAX, u64::MAX);
        self.lengths.as_ref()?.range(all).next_back().copied()
    }

    /// The request of a flow that is dropped first.
    fn newest_of(&self, flow: Index) -> Option<WaiterId> {
        let lowest = self.flows.get(flow)?.lowest_line()?;
        Some(self.waiters.at(lowest.waiters.back()?)?.waiter.id)
    }

    /// Where a flow is among the flows of its parent, if it has a request and the longest flow is to be found.
    pub(super) fn length(&self, index: Index) -> Option<LengthEntry> {
        self.lengths.as_ref()?;
        let flow = self.flows.get(index)?;
        let newest = if flow.is_parent() {
            self.longest_in(index)?.newest
        } else {
            let lowest = flow.lowest_line()?;
            self.waiters.at(lowest.waiters.back()?)?.arrival
        };
        Some(LengthEntry {
            parent: flow.parent,
            length: flow.charge(flow.len.into()),
            newest,
            flow: index,
        })
    }
}
