//! Tests of the chunked log against one list of entries.

use proptest::prelude::*;

use super::*;

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

/// The model of the grants: one list, in which each entry has its own units.
#[derive(Debug, Default)]
struct List(Vec<(Moment, u64)>);

impl List {
    fn push(&mut self, now: Moment, units: u64) {
        match self.0.last_mut() {
            Some(latest) if latest.0 >= now => latest.1 += units,
            _ => self.0.push((now, units)),
        }
    }

    fn take_back(&mut self, at: Moment, units: u64) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.0 == at) {
            entry.1 = entry.1.saturating_sub(units);
        }
        self.0.retain(|entry| entry.1 > 0);
    }

    fn take_back_latest(&mut self, mut units: u64) {
        for entry in self.0.iter_mut().rev() {
            let back = units.min(entry.1);
            (entry.1, units) = (entry.1 - back, units - back);
        }
        self.0.retain(|entry| entry.1 > 0);
    }

    fn join_oldest(&mut self) {
        let oldest = self.0.remove(0);
        self.0[0].1 += oldest.1;
    }

    fn units_until(&self, last: Moment) -> u64 {
        self.0
            .iter()
            .filter(|entry| entry.0 <= last)
            .map(|entry| entry.1)
            .sum()
    }

    fn granted_at(&self, nth: u64) -> Option<Moment> {
        let mut units = 0;
        let reached = |entry: &&(Moment, u64)| {
            units += entry.1;
            units >= nth
        };
        self.0.iter().find(reached).map(|entry| entry.0)
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Push(u64, u64),
    Drop(u64),
    Join(u64),
    /// Refunds entries at a part of the list, and leaves one entry of so many.
    Refund(u64, u64, u64),
    RefundLatest(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let chunk = CHUNK as u64;
    let step = prop_oneof![
        4 => (1..3 * chunk, 1_u64..4).prop_map(|(entries, units)| Step::Push(entries, units)),
        2 => (0..2 * chunk).prop_map(Step::Drop),
        1 => (0..2 * chunk).prop_map(Step::Join),
        3 => (1_u64..700, 0_u64..1_000, 0..3 * chunk).prop_map(|(one_of, from, entries)| Step::Refund(one_of, from, entries)),
        1 => (0..3 * chunk).prop_map(Step::RefundLatest),
    ];
    prop::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(crate::replay::cases(200))]

    /// The grants agree with the model over many chunks, in any order of filling, emptying and joining. Their memory is in
    /// proportion to the entries.
    #[test]
    fn chunks_agree_with_a_list(steps in steps(), start in prop_oneof![Just(0), Just(u64::MAX - 1_000)]) {
        let mut grants = Grants { start, end: start, ..Grants::default() };
        let (mut list, mut now) = (List::default(), 0);
        for step in steps {
            match step {
                Step::Push(entries, units) => for number in 0..entries {
                    now += number % 3 + u64::from(number % 7 > 0); // some in the same instant
                    grants.push(at(now), units);
                    list.push(at(now), units);
                },
                Step::Drop(entries) => {
                    let last = list.0.get(entries as usize).or(list.0.last()).map_or(Moment::START, |entry| entry.0);
                    while grants.first() <= last {
                        let before = grants.len();
                        grants.drop_some(last);
                        prop_assert!((1..=CHUNK).contains(&(before - grants.len())));
                    }
                    list.0.retain(|entry| entry.0 > last);
                }
                Step::Join(entries) => for _ in 0..entries.min((list.0.len() as u64).saturating_sub(1)) {
                    grants.join_oldest();
                    list.join_oldest();
                },
                Step::Refund(one_of, from, entries) => {
                    let from = list.0.len() * from as usize / 1_000;
                    let refunded: Vec<_> = list.0[from..].iter().take(entries as usize).copied().collect();
                    for (number, (granted, units)) in refunded.into_iter().enumerate() {
                        let units = if (number as u64).is_multiple_of(one_of) { units / 2 } else { units + 1 };
                        grants.take_back(granted, units);
                        list.take_back(granted, units);
                    }
                }
                Step::RefundLatest(units) => {
                    grants.take_back_latest(units);
                    list.take_back_latest(units);
                }
            }
            prop_assert_eq!(&grants.to_vec(), &list.0);
            prop_assert_eq!(grants.len(), list.0.len());
            let used = grants.used();
            prop_assert_eq!(used, list.units_until(Moment::LAST));
            prop_assert_eq!(grants.first(), list.0.first().map_or(Moment::NEVER, |entry| entry.0));
            prop_assert_eq!(grants.last(), list.0.last().map(|entry| entry.0));
            for part in 0..=20 {
                let last = at(now * part / 20);
                prop_assert_eq!(grants.units_until(last), list.units_until(last));
                let nth = used * part / 20 + 1;
                prop_assert_eq!(grants.granted_at(nth), list.granted_at(nth));
            }
            prop_assert!(grants.memory() <= 4 * grants.len() + 4 * CHUNK, "{} for {}", grants.memory(), grants.len());
            prop_assert!(grants.closed.as_ref().is_none_or(|closed| !closed.chunks.is_empty()));
        }
    }
}

/// A refund in one of two neighbouring chunks must not leave one entry in as much memory as before.
#[test]
fn chunks_that_refunds_have_left_sparse_are_joined() {
    let mut grants = Grants::default();
    let number = 100 * CHUNK as u64;
    (0..number).for_each(|nanos| grants.push(at(nanos), 1));
    (0..number)
        .filter(|nanos| nanos % 100 > 0)
        .for_each(|nanos| grants.take_back(at(nanos), 1));
    assert_eq!(grants.len(), CHUNK);
    assert!(grants.memory() <= 4 * CHUNK, "{}", grants.memory());
}
