//! Sequences of inputs that a fuzzer chooses.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::inputs::{Step, setups, step};
use super::run;

/// The value that a property test draws from this seed. A fuzzer that chose the bytes of the generator instead would find few values: each
/// choice among strategies halves the bytes that are left.
fn drawn<T>(strategy: &impl Strategy<Value = T>, seed: &[u8]) -> T {
    let mut bytes = [0; 32];
    bytes[..seed.len()].copy_from_slice(seed);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    strategy.new_tree(&mut runner).unwrap().current()
}

/// The model of the schedule: its rules hold after each input.
///
/// The first four bytes of an input are the seed of the setup. Then each two bytes are the seed of a step, or close the limiter.
pub(crate) fn schedule(bytes: &[u8]) {
    const LONGEST: usize = 80;
    let Some((seed, seeds)) = bytes.split_at_checked(4) else {
        return;
    };
    let (setup, any_step) = (drawn(&setups(), seed), step());
    let steps = seeds.chunks_exact(2).take(LONGEST).map(|seed| match seed {
        [0xff, 0xff] => Step::Close,
        [0xff, 0xfe] => Step::CloseToNew,
        seed => drawn(&any_step, seed),
    });
    let steps: Vec<_> = steps.collect();
    if let Err(failed) = run(&setup, steps.iter().cloned()) {
        panic!("{failed}: {setup:?}: {steps:#?}");
    }
}

#[cfg(test)]
mod tests {
    use crate::corpus::replay;

    #[test]
    fn the_rules_hold_for_sequences_that_were_found() {
        replay(
            include_str!("../../../../tests/integration/fuzzed/schedule.txt"),
            super::schedule,
        );
    }
}
