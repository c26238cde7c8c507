//! The answers that are in no [slot](crate::core::answers): they are taken out under the lock.

use std::collections::{BTreeMap, VecDeque};

use crate::core::grant::Grant;
use crate::core::refused::Refused;
use crate::core::waiter::WaiterId;

pub(crate) type Answer = Result<Grant, Refused>;

/// How many answers are kept in the order of their waiters, in which they are mostly taken out. That many are granted by a call to a
/// store, or by a tick of the timer at a million a second.
const IN_TURN: usize = if cfg!(test) { 3 } else { 1_024 };

/// The memory for as many stays.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Each waiter is after the one before it. The first one has its answer; of the others, some were taken.
    in_turn: VecDeque<(WaiterId, Option<Answer>)>,
    /// Those beyond, and out of order. A tree: growing a large table would delay all waiters.
    others: BTreeMap<WaiterId, Answer>,
}

impl Kept {
    pub(crate) fn insert(&mut self, id: WaiterId, answer: Answer) {
        if self.in_turn.len() < IN_TURN && self.in_turn.back().is_none_or(|(last, _)| *last < id) {
            self.in_turn.push_back((id, Some(answer)));
        } else {
            self.others.insert(id, answer);
        }
    }

    pub(crate) fn take(&mut self, id: WaiterId) -> Option<Answer> {
        let nth = match self.in_turn.front() {
            Some((first, _)) if *first == id => 0,
            _ => match self.in_turn.binary_search_by_key(&id, |(kept, _)| *kept) {
                Ok(nth) => nth,
                Err(_) => return self.others.remove(&id),
            },
        };
        let answer = self.in_turn[nth].1.take();
        while self.in_turn.front().is_some_and(|(_, answer)| answer.is_none()) {
            self.in_turn.pop_front();
        }
        if self.in_turn.is_empty() && self.in_turn.capacity() > FEW {
            self.in_turn = VecDeque::new(); // a million keys may each have had many
        }
        answer
    }

    #[cfg(test)]
    pub(crate) fn get(&self, id: WaiterId) -> Option<&Answer> {
        let in_turn = self.in_turn.iter().find(|(kept, _)| *kept == id);
        in_turn.and_then(|(_, answer)| answer.as_ref()).or_else(|| self.others.get(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority::Priority;

    #[test]
    fn each_answer_is_taken_once_in_any_order() {
        let ids = [1, 2, 3, 4, 5, 6].map(|arrival| WaiterId::new(arrival, Priority::NORMAL, false, false, None));
        let mut kept = Kept::default();
        for (id, fence) in ids.into_iter().zip(1..) {
            kept.insert(id, Ok(Grant::of_place(fence)));
        }
        for nth in [3, 0, 5, 2, 1, 4] {
            let answer = Ok(Grant::of_place(nth as u64 + 1));
            assert_eq!(kept.get(ids[nth]), Some(&answer));
            assert_eq!(kept.take(ids[nth]), Some(answer));
            assert_eq!(kept.take(ids[nth]), None);
        }
    }
}
