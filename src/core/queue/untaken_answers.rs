//! The answers that their owners have not taken yet.
//!
//! A granted place is one number, which goes into the waiter's [slot](crate::core::queue::answers). Any other answer is kept here,
//! under the lock, and so is the explanation of a grant.

use std::collections::{BTreeMap, VecDeque};

use crate::core::queue::answers::Slots;
use crate::core::queue::waiter::WaiterId;
use crate::core::request::{Grant, Refused};
use crate::snapshot::LimitStatus;

#[cfg(any(test, fuzzing))]
pub(crate) use for_model::AnswerKind;

pub(crate) type Answer = Result<Grant, Refused>;

#[derive(Debug, Default)]
pub(crate) struct UntakenAnswers {
    /// Where granted places are taken out without the lock.
    pub(crate) slots: Slots,
    /// Allocated when it is used: each of a million keys may have a queue.
    locked: Option<Box<UnderLock>>,
}

#[derive(Debug, Default)]
struct UnderLock {
    /// The answers that are in no slot.
    answers: LockedAnswers,
    /// The grants among them that hold no place. Those that hold one are counted in flight, unless they were reclaimed.
    placeless: u32,
    /// The status of each limit at the grants of these fences.
    explanations: BTreeMap<u64, Vec<LimitStatus>>,
}

fn is_placeless(answer: &Answer) -> bool {
    matches!(answer, Ok(grant) if !grant.claim.holds_place())
}

impl UntakenAnswers {
    /// Frees the slot of this id: its owner will take no answer out of it.
    pub(crate) fn free_slot(&self, id: WaiterId) {
        if let Some(slot) = id.slot() {
            self.slots.free(slot);
        }
    }

    #[inline(always)]
    pub(crate) fn grant(&mut self, id: WaiterId, grant: Grant) {
        match id.slot() {
            Some(slot) if grant == Grant::of_place(grant.fence) => {
                self.slots.grant(slot, grant.fence);
            }
            _ => self.keep(id, Ok(grant)),
        }
    }

    /// Keeps an answer that is in no slot.
    pub(super) fn keep(&mut self, id: WaiterId, answer: Answer) {
        let locked = self.locked.get_or_insert_default();
        locked.placeless += u32::from(is_placeless(&answer));
        locked.answers.insert(id, answer);
    }

    /// Takes the answer out, if there is one. The id is invalid after that.
    pub(crate) fn take(&mut self, id: WaiterId) -> Option<Answer> {
        if let Some(fence) = id.slot().and_then(|slot| self.slots.take(slot)) {
            return Some(Ok(Grant::of_place(fence)));
        }
        let locked = self.locked.as_mut()?;
        let answer = locked.answers.take(id)?;
        locked.placeless -= u32::from(is_placeless(&answer));
        self.free_slot(id);
        Some(answer)
    }

    /// Whether a grant that holds no place waits to be taken.
    pub(crate) fn has_placeless_grant(&self) -> bool {
        let locked = self.locked.as_ref();
        locked.is_some_and(|locked| locked.placeless > 0)
    }

    /// Keeps the status of each limit at a grant until [it is taken](Self::take_explanation).
    pub(crate) fn explain(&mut self, fence: u64, limits: Vec<LimitStatus>) {
        let locked = self.locked.get_or_insert_default();
        locked.explanations.insert(fence, limits);
    }

    pub(crate) fn take_explanation(&mut self, fence: u64) -> Option<Vec<LimitStatus>> {
        self.locked.as_mut()?.explanations.remove(&fence)
    }
}

/// How many answers are kept in the order of their waiters, in which they are mostly taken out. That many are granted by a call to a
/// store, or by a tick of the timer at a million a second.
const IN_TURN: usize = if cfg!(test) { 3 } else { 1_024 };

/// Memory for this many answers is kept.
const FEW: usize = 64;

/// Answers by waiter.
#[derive(Debug, Default)]
struct LockedAnswers {
    /// In the order of the waiters. The first one has its answer; some of the others were taken.
    in_turn: VecDeque<(WaiterId, Option<Answer>)>,
    /// The answers beyond these, and those out of order. A tree: growing a large table would delay all waiters.
    others: BTreeMap<WaiterId, Answer>,
}

impl LockedAnswers {
    fn insert(&mut self, id: WaiterId, answer: Answer) {
        if self.in_turn.len() < IN_TURN && self.in_turn.back().is_none_or(|(last, _)| *last < id) {
            self.in_turn.push_back((id, Some(answer)));
        } else {
            self.others.insert(id, answer);
        }
    }

    fn take(&mut self, id: WaiterId) -> Option<Answer> {
        let nth = match self.in_turn.front() {
            Some((first, _)) if *first == id => 0,
            _ => match self.in_turn.binary_search_by_key(&id, |(kept, _)| *kept) {
                Ok(nth) => nth,
                Err(_) => return self.others.remove(&id),
            },
        };
        let answer = self.in_turn[nth].1.take();
        while let Some((_, None)) = self.in_turn.front() {
            self.in_turn.pop_front();
        }
        if self.in_turn.is_empty() && self.in_turn.capacity() > FEW {
            self.in_turn = VecDeque::new(); // a million keys may each have had many
        }
        answer
    }
}

/// The model of the schedule must not take what it looks at.
#[cfg(any(test, fuzzing))]
mod for_model {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum AnswerKind {
        Granted,
        Failed,
    }

    impl LockedAnswers {
        fn get(&self, id: WaiterId) -> Option<&Answer> {
            let in_turn = self.in_turn.iter().find(|(kept, _)| *kept == id);
            in_turn
                .and_then(|(_, answer)| answer.as_ref())
                .or_else(|| self.others.get(&id))
        }
    }

    impl UntakenAnswers {
        /// The answer to a request; `None` while it waits.
        pub(crate) fn peek(&self, id: WaiterId) -> Option<AnswerKind> {
            let is_in_slot = id
                .slot()
                .zip(self.slots.answers.as_ref())
                .is_some_and(|(slot, answers)| answers.is_granted(slot));
            if is_in_slot {
                return Some(AnswerKind::Granted);
            }
            match self.locked.as_ref()?.answers.get(id)? {
                Ok(_) => Some(AnswerKind::Granted),
                Err(_) => Some(AnswerKind::Failed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority::Priority;

    fn ids<const LEN: usize>() -> [WaiterId; LEN] {
        let id = |nth| WaiterId::new(nth as u64, Priority::NORMAL, false, None, None);
        std::array::from_fn(id)
    }

    fn answer(nth: usize) -> Answer {
        Ok(Grant::of_place(nth as u64))
    }

    #[test]
    fn each_answer_is_taken_once_in_any_order() {
        let ids = ids::<6>();
        for order in [[0, 1, 2, 3, 4, 5], [4, 1, 5, 0, 3, 2], [5, 4, 3, 2, 1, 0]] {
            let mut untaken = UntakenAnswers::default();
            for nth in order {
                untaken.keep(ids[nth], answer(nth));
            }
            for nth in [3, 0, 5, 2, 1, 4] {
                assert_eq!(untaken.peek(ids[nth]), Some(AnswerKind::Granted));
                assert_eq!(untaken.take(ids[nth]), Some(answer(nth)));
                assert_eq!(untaken.take(ids[nth]), None);
            }
            let answers = untaken.locked.unwrap().answers;
            assert!(answers.in_turn.is_empty() && answers.others.is_empty());
        }
    }

    #[test]
    fn answers_are_kept_in_their_order_with_the_memory_of_a_few() {
        let (ids, mut kept) = (ids::<4>(), LockedAnswers::default());
        for (nth, id) in ids.into_iter().enumerate() {
            kept.insert(id, answer(nth));
        }
        assert_eq!((kept.in_turn.len(), kept.others.len()), (IN_TURN, 1));
        kept = LockedAnswers::default();
        for (room, left) in [(FEW, FEW), (FEW + 1, 0)] {
            kept.in_turn.reserve_exact(room);
            kept.insert(ids[0], answer(0));
            assert_eq!(kept.take(ids[0]), Some(answer(0)));
            assert_eq!(kept.in_turn.capacity(), left);
        }
    }

    #[test]
    fn the_slot_of_an_answer_that_is_kept_elsewhere_is_used_again() {
        let mut untaken = UntakenAnswers::default();
        let slot = untaken.slots.claim(1);
        assert!(slot.is_some());
        let id = WaiterId::new(1, Priority::NORMAL, false, None, slot);
        untaken.keep(id, answer(1));
        assert_ne!(untaken.slots.claim(1), slot);
        assert_eq!(untaken.take(id), Some(answer(1)));
        assert_eq!(untaken.slots.claim(1), slot);
    }
}
