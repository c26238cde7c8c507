//! The answers that are in no [slot](crate::core::answers): they are taken out under the lock.

use std::collections::{BTreeMap, VecDeque};

use crate::core::grant::Grant;
use crate::core::waiter::WaiterId;
use crate::error::AcquireError;

pub(crate) type Answer = Result<Grant, AcquireError>;

/// How many answers are searched one by one: what a tick of the timer grants at ten thousand a second, and more. They are taken out
/// in about the order in which they were given, so the first one is mostly the right one.
const IN_TURN: usize = if cfg!(test) { 3 } else { 32 };

#[derive(Debug, Default)]
pub(crate) struct Kept {
    in_turn: VecDeque<(WaiterId, Answer)>,
    /// Those beyond. A tree: growing a large table would delay all waiters.
    others: BTreeMap<WaiterId, Answer>,
}

impl Kept {
    pub(crate) fn insert(&mut self, id: WaiterId, answer: Answer) {
        if self.in_turn.len() < IN_TURN {
            self.in_turn.push_back((id, answer));
        } else {
            self.others.insert(id, answer);
        }
    }

    pub(crate) fn take(&mut self, id: WaiterId) -> Option<Answer> {
        if self.in_turn.front().is_some_and(|(kept, _)| *kept == id) {
            return self.in_turn.pop_front().map(|(_, answer)| answer);
        }
        match self.in_turn.iter().position(|(kept, _)| *kept == id) {
            Some(nth) => self.in_turn.remove(nth).map(|(_, answer)| answer),
            None => self.others.remove(&id),
        }
    }

    #[cfg(test)]
    pub(crate) fn get(&self, id: WaiterId) -> Option<&Answer> {
        let in_turn = self.in_turn.iter().find(|(kept, _)| *kept == id).map(|(_, answer)| answer);
        in_turn.or_else(|| self.others.get(&id))
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
