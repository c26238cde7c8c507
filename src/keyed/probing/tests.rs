//! Tests of the hash table.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// A key with its hash, and a value.
type Entry = ((u16, u64), u32);

fn hash_of(entry: &Entry) -> u64 {
    entry.0.1
}

impl Probing<Entry> {
    fn slot_of(&self, key: (u16, u64)) -> Option<usize> {
        self.find(key.1, |entry| entry.0 == key)
    }

    fn put(&mut self, key: (u16, u64), value: u32) -> usize {
        self.insert(key.1, (key, value), hash_of)
    }

    fn take(&mut self, key: (u16, u64)) -> Option<u32> {
        let slot = self.slot_of(key)?;
        self.remove(slot, hash_of).map(|entry| entry.1)
    }

    fn check(&self, naive: &HashMap<(u16, u64), u32>) {
        let slots = self.slots();
        assert_eq!(
            (self.len(), self.iter().count()),
            (naive.len(), naive.len())
        );
        assert!(self.len() <= most(slots) && (slots == 0 || most(slots) < slots));
        for (key, value) in naive {
            let slot = self.slot_of(*key).unwrap();
            assert_eq!(self.get(slot), Some(&(*key, *value)));
            let mut at = home(key.1, slots);
            while at != slot {
                assert!(
                    self.get(at).is_some(),
                    "a gap at {at} of {slots}, before {slot}"
                );
                at = next(at, slots);
            }
        }
    }
}

/// The hash whose home is this part of a table, in 65,536ths.
fn hash_at(part: u16) -> u64 {
    u64::from(part) << 16
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Put(u16, u64),
    Take(u16, u64),
    TakeAt(usize),
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    // There are few homes, half of them near the end: clusters form, and wrap around.
    let key = || {
        (
            0..300_u16,
            prop_oneof![0..9_u16, 65_000..=u16::MAX, 65_530..=u16::MAX].prop_map(hash_at),
        )
    };
    prop_oneof![
        6 => key().prop_map(|(name, hash)| Step::Put(name, hash)),
        2 => key().prop_map(|(name, hash)| Step::Take(name, hash)),
        4 => (0..4_096_usize).prop_map(Step::TakeAt),
        1 => Just(Step::Shrink),
    ]
}

proptest! {
    #![proptest_config(crate::replay::cases(300))]

    #[test]
    fn a_table_holds_the_entries_of_a_standard_map(steps in prop::collection::vec(step(), 1..250)) {
        let (mut table, mut naive) = (Probing::new(), HashMap::new());
        for (value, step) in (0..).zip(steps) {
            match step {
                Step::Put(name, hash) => {
                    if let Some(slot) = table.slot_of((name, hash)) {
                        table.get_mut(slot).unwrap().1 = value;
                    } else {
                        let slot = table.put((name, hash), value);
                        let entry = ((name, hash), value);
                        prop_assert_eq!(table.get(slot), Some(&entry));
                    }
                    naive.insert((name, hash), value);
                }
                Step::Take(name, hash) => prop_assert_eq!(table.take((name, hash)), naive.remove(&(name, hash))),
                Step::TakeAt(slot) => {
                    let slot = slot % table.slots().max(1);
                    let there = table.get(slot).copied();
                    prop_assert_eq!(table.remove(slot, hash_of), there);
                    if let Some((key, value)) = there {
                        prop_assert_eq!(naive.remove(&key), Some(value));
                    }
                }
                Step::Shrink => table.shrink(hash_of),
            }
            table.check(&naive);
        }
    }

    /// The removal of keys relies on this property. It visits the slots in descending order and removes entries on the way. So an
    /// entry that moves has just been visited, except for entries next to the slot where the removal began.
    #[test]
    fn a_walk_down_the_slots_that_removes_entries_visits_the_others_in_each_round(
        keys in prop::collection::hash_set((0..300_u16, any::<u16>().prop_map(hash_at)), 1..200),
        start in any::<prop::sample::Index>(),
    ) {
        const ROUNDS: u16 = 4;
        let mut table = Probing::new();
        keys.iter().for_each(|key| _ = table.put(*key, 0));
        let start = start.index(table.slots());
        for round in 0..ROUNDS {
            for slot in (0..start).rev().chain((start..table.slots()).rev()) {
                if let Some(entry) = table.get_mut(slot) {
                    entry.1 += 1;
                    if entry.0.0 % 8 == round {
                        table.remove(slot, hash_of);
                    }
                }
            }
            prop_assert!(table.iter().all(|entry| entry.1 >= round.into()));
        }
    }
}

#[test]
fn a_cluster_wraps_around_and_a_removal_in_it_closes_the_gap() {
    let mut table = Probing::new();
    let key = |name| (name, hash_at(u16::MAX)); // at home in the last slot
    let slots: Vec<usize> = [0, 1, 2]
        .map(|name| table.put(key(name), name.into()))
        .to_vec();
    assert_eq!((table.slots(), slots), (4, vec![3, 0, 1]));
    assert_eq!(table.take(key(0)), Some(0));
    assert_eq!(
        [1, 2].map(|name| table.slot_of(key(name))),
        [Some(3), Some(0)]
    );
    let first = (9, hash_at(0));
    assert_eq!(table.put(first, 9), 1, "slot 0 is taken");
    assert_eq!(table.take(key(1)), Some(1));
    assert_eq!(
        (table.slot_of(key(2)), table.slot_of(first)),
        (Some(3), Some(0))
    );
    assert_eq!(table.take(key(2)), Some(2));
    assert_eq!(table.slot_of(first), Some(0), "it is at home, and stays");
}

#[test]
fn a_table_grows_by_a_third_and_shrinks_when_few_entries_are_left() {
    let mut table = Probing::new();
    assert_eq!((table.slots(), table.slot_of((0, 0))), (0, None));
    let key = |name: u16| (name, u64::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut sizes = vec![];
    for name in 0..2_000 {
        table.put(key(name), 0);
        sizes.push(table.slots());
        assert!(
            name < 20 || table.slots() * 3 / 5 <= table.len() + 1,
            "{} of {}",
            table.len(),
            table.slots()
        );
    }
    sizes.dedup();
    assert_eq!(sizes[..5], [4, 6, 8, 11, 15]);
    let mut slots = table.slots();
    for name in 7..2_000 {
        assert_eq!(table.take(key(name)), Some(0));
        table.shrink(hash_of);
        assert!(
            table.slots() <= 64 || table.slots() <= table.len() * 8 + 7,
            "{} of {}",
            table.len(),
            table.slots()
        );
        if table.slots() < slots {
            assert!(slots > 64 && table.len() < slots / 8, "too soon");
            slots = table.slots();
        }
    }
    table.check(&(0..7).map(|name| (key(name), 0)).collect());
}

#[test]
fn a_table_of_few_slots_keeps_them() {
    let mut table = Probing::new();
    let names = 0..40_u16;
    let key = |name| (name, hash_at(name * 1_000));
    names.clone().for_each(|name| _ = table.put(key(name), 0));
    assert_eq!(table.slots(), Probing::<Entry>::SMALL);
    names.for_each(|name| _ = table.take(key(name)));
    table.shrink(hash_of);
    assert_eq!(table.slots(), Probing::<Entry>::SMALL);
}

/// Bounds the time of one call: the number of entries that it looks at does not double with the size of the table.
#[test]
fn growth_asks_for_each_hash_once_and_a_removal_for_those_of_a_cluster() {
    let calls = std::cell::Cell::new(0);
    let counted = |entry: &Entry| {
        calls.set(calls.get() + 1);
        hash_of(entry)
    };
    let mut table = Probing::new();
    let key = |name: u32| {
        (
            name as u16,
            u64::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32,
        )
    };
    for name in 0..60_000 {
        let len = table.len();
        calls.set(0);
        table.insert(key(name).1, (key(name), 0), counted);
        assert!([0, len].contains(&calls.get()));
    }
    for name in 0..60_000 {
        let slot = table.slot_of(key(name)).unwrap();
        calls.set(0);
        table.remove(slot, counted);
        assert!(calls.get() < 1_000, "{} entries were hashed", calls.get());
    }
}
