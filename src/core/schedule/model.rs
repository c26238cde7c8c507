//! The schedule against a naive reference, over random schedules: whatever is asked of it in whatever order, the [rules] hold.
//!
//! The [reference] keeps every grant in a list and everybody who waits in another. It is exact but for two things. The schedule
//! may refund less than what is exact, and may round up what a new limit takes over: of such an amount the reference knows the
//! least and the most, and between the two it lets the schedule decide. And a limit that adapts is only held to its bounds.
//!
//! 5,000 schedules are tried. For more, say how many:
//!
//! ```text
//! PROPTEST_CASES=480000 cargo test --release --lib schedule::model
//! ```

mod harness;
mod inputs;
mod limits;
mod reference;
mod rules;
mod sweeper;

use proptest::prelude::*;

use self::harness::Harness;
use super::Options;

const CASES: u32 = 5_000;

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(CASES))
}

proptest! {
    #![proptest_config(config())]

    /// Invariants 1 (never over), 2 (never lost), 3 (in order), 4 (all or none), 5 (reclaim once) and 7 (time is honest).
    #[test]
    fn the_rules_hold_for_every_schedule(setup in inputs::setups(), steps in inputs::steps()) {
        let mut harness = Harness::new(&setup);
        for step in steps {
            harness.step(step)?;
        }
        harness.finish()?;
    }
}
