//! All limits, for the tests that enumerate them.

use super::{Limit, Policy};
use crate::strategy::{
    Describe as _, FixedWindow, MaxConcurrency, Penalty, SlidingWindow, Throttle, TokenBucket,
};

/// The name of each limit's type, with its samples.
pub(crate) fn samples() -> Vec<(&'static str, Vec<Limit>)> {
    macro_rules! samples {
        ([$($limit:ident)*]) => {
            vec![$((stringify!($limit), $limit::samples())),*]
        };
    }
    let parsed = |text: &&str| text.parse().unwrap();
    let samples = all_limits!(samples).into_iter();
    samples
        .map(|(name, texts)| (name, texts.iter().map(parsed).collect()))
        .collect()
}

/// The names of the limits that are in none of these policies.
pub(crate) fn lacking(policies: &[&str]) -> Vec<&'static str> {
    let policies = policies.iter().map(|text| text.parse::<Policy>().unwrap());
    let limits: Vec<_> = policies
        .flat_map(|policy| policy.limits().to_vec())
        .collect();
    let mut names: Vec<_> = samples()
        .iter()
        .map(|(_, limits)| limits[0].description().name)
        .collect();
    names.retain(|name| limits.iter().all(|limit| limit.description().name != *name));
    names
}
