//! Tests of the [answers](super::answers): they are in their own file, because a model checker includes the other one without
//! them.

use std::sync::Arc;

use super::answers::{Answers, Slots};

/// Through all buckets: no slot is given out twice, and none is when all are in use.
#[test]
fn each_waiter_has_a_slot_of_its_own_while_there_are_any() {
    let mut slots = Slots::default();
    assert_eq!(slots.claim(0), None, "one waiter needs none");
    let claimed: Vec<_> = std::iter::from_fn(|| slots.claim(1)).collect();
    assert_eq!(claimed, (0..Answers::CAPACITY).collect::<Vec<_>>());
    let answers = Arc::clone(slots.answers.as_ref().unwrap());
    for slot in claimed {
        assert_eq!(answers.take(slot), None);
        slots.grant(slot, 7 + u64::from(slot));
        assert_eq!(answers.take(slot), Some(7 + u64::from(slot)));
        assert_eq!(answers.take(slot), None, "it is taken once");
    }
    assert!(slots.claim(0).is_some(), "they are free again");
    assert!(answers.take(Answers::CAPACITY).is_none());
}

/// A queue that goes on does not use more slots than it has waiters, but for a few.
#[test]
fn slots_are_used_again_in_turn() {
    let mut slots = Slots::default();
    let mut waiting: std::collections::VecDeque<_> =
        (0..63).filter_map(|_| slots.claim(1)).collect();
    for _ in 0..1_000 {
        slots.free(waiting.pop_front().unwrap());
        waiting.push_back(slots.claim(62).unwrap());
    }
    assert!(slots.used <= 64, "{}", slots.used);
}
