//! The schedule against a naive reference, over random schedules: the [rules] hold for any inputs in any order.
//!
//! The [reference] keeps all grants in a list and all waiters in another. It is exact with two exceptions. The schedule may
//! refund less than the exact amount, and may round up what a new limit takes over: the reference knows the least and the most of
//! such an amount, and accepts any value between. For an adaptive limit, only the bounds are checked.
//!
//! 5,000 schedules are tried. To try more, set the number:
//!
//! ```text
//! PROPTEST_CASES=480000 cargo test --release --lib schedule::model
//! ```

mod costs;
mod flows;
pub(crate) mod fuzzed;
mod harness;
mod inputs;
mod limits;
mod quota;
mod reference;
mod rules;
mod sweeper;

use proptest::test_runner::TestCaseResult;

use self::harness::Harness;

/// Gives a schedule these inputs. The rules hold after each of them.
fn run(setup: &inputs::Setup, steps: impl IntoIterator<Item = inputs::Step>) -> TestCaseResult {
    let mut harness = Harness::new(setup);
    for step in steps {
        harness.step(step)?;
    }
    harness.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{inputs, run};

    const CASES: u32 = 5_000;

    fn config() -> ProptestConfig {
        let cases = std::env::var("PROPTEST_CASES")
            .ok()
            .and_then(|cases| cases.parse().ok());
        crate::replay::cases(cases.unwrap_or(CASES))
    }

    proptest! {
        #![proptest_config(config())]

        /// Invariants 1 (never over), 2 (never lost), 3 (in order), 4 (all or none), 5 (reclaim once) and 7 (exact time).
        #[test]
        fn the_rules_hold_for_every_schedule(setup in inputs::setups(), steps in inputs::steps()) {
            run(&setup, steps)?;
        }
    }
}
