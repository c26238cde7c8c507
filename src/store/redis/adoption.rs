//! The script that replaces the policy of a key by one of a later revision.
//!
//! A limit whose state means the same under the new policy keeps it. Otherwise the units that were used of its counterpart, rounded up,
//! are charged at once. So the new limit is never fuller than the former one, and a window may start anew with them.

use super::script::{
    self, Script, Values, assemble_from, doubles, expand, head, head_size, log_count, named,
    one_of_each_kind, parts,
};
use crate::core::gate::limit_state::{counterparts, place_counterpart};
use crate::error::StoreError;
use crate::policy::{Limit, Policy};
use crate::store::{plan, read_policy};
use crate::strategy::{Penalty, SlidingMethod};

const FRAME: &str = include_str!("lua/adopt.lua");

/// Replaces the policy of keys.
#[derive(Debug)]
pub(super) struct Adoption {
    pub(super) script: Script,
    /// How many logs it reads or writes.
    pub(super) logs: usize,
}

impl Adoption {
    /// From the policy of a state, which may be none that a limiter accepts.
    pub(super) fn from_stored(
        (stored, revision): (&str, u64),
        new: (&Policy, u64),
    ) -> Result<Self, StoreError> {
        let former = read_policy(stored)?;
        plan(&former)?;
        Self::new((&former, revision), new)
    }

    /// From a former policy and its revision to a new one.
    pub(super) fn new(
        (former, former_revision): (&Policy, u64),
        (policy, revision): (&Policy, u64),
    ) -> Result<Self, StoreError> {
        let (former_parts, new_parts) = (parts(former)?, parts(policy)?);
        let logs = (log_count(&former_parts), log_count(&new_parts));
        let (former_name, new_name) = (named(former, former_revision), named(policy, revision));
        let (former, limits) = (former.limits(), policy.limits());
        let is_timed = |limit: &Limit| !limit.counts_places();

        let mut former_blocks = Vec::new();
        let mut stored_words = 4; // the first four are of the key
        for (limit, (_, values)) in former.iter().zip(&former_parts) {
            let first = stored_words + 1;
            stored_words += word_count(values);
            if is_timed(limit) {
                let stored: Vec<_> = (first..=stored_words)
                    .map(|at| format!("words[{at}]"))
                    .collect();
                let own = [("STORED_WORDS", stored.join(", "))];
                former_blocks.push(with(values, own));
            }
        }
        let had_places = !former.iter().all(is_timed);

        let mut new_blocks = Vec::new();
        let counterparts = counterparts(former, limits);
        for (index, (limit, (_, values))) in limits.iter().zip(&new_parts).enumerate() {
            let (mut continued, mut taken) = (String::new(), "0".to_owned());
            match counterparts[index] {
                _ if !is_timed(limit) => continued = "@WORDS = odd[@PLACE]".into(), // nothing is charged
                Some(from) if continues(&former_parts[from].1, &former[from], values, limit) => {
                    continued = format!("@WORDS = unpack(states[{}])", from + 1);
                }
                Some(from) => {
                    continued = "@WORDS = 0, 0, 0".into(); // a bucket may start low
                    taken = format!("min(used[{}], @MOST)", from + 1);
                }
                None => {}
            }
            let word_doubles = doubles(word_count(values));
            let own = [
                ("PLACE_COSTS", String::new()),
                ("CONTINUE", continued),
                ("TAKEN", taken),
                ("WORD_DOUBLES", word_doubles),
            ];
            new_blocks.push(with(values, own));
        }

        let places: Vec<_> = limits
            .iter()
            .filter(|limit| limit.counts_places())
            .collect();
        let place_number = |index: usize| {
            former[..=index]
                .iter()
                .filter(|limit| limit.counts_places())
                .count()
        };
        let from = |limit: &&&Limit| {
            let former = place_counterpart(former, limit).map(place_number);
            former.map_or("0".to_owned(), |number| format!("own[{number}]"))
        };
        let from: Vec<_> = places.iter().map(|limit| from(&limit)).collect();
        let former_words = stored_words + usize::from(had_places);
        let size = head_size(&former_name) + 8 * former_words;
        let former_places = doubles(former.iter().filter(|limit| limit.counts_places()).count());
        let values = Values::from([
            ("FORMER_HEAD", head(&former_name)),
            ("FORMER_HEAD_SIZE", head_size(&former_name).to_string()),
            ("FORMER_SIZE", size.to_string()),
            ("FORMER_FORMAT", doubles(former_words)),
            ("FORMER_PLACES", former_places),
            ("HEAD", head(&new_name)),
            ("HAD_PLACES", had_places.to_string()),
            ("HAS_PLACES", (!places.is_empty()).to_string()),
            ("PLACES_FROM", from.join(", ")),
            ("ODD_ZEROS", vec!["0"; places.len()].join(", ")),
            ("PLACE_DOUBLES", doubles(places.len())),
            ("LOGS", logs.1.to_string()),
            ("ALL_LOGS", logs.0.max(logs.1).to_string()),
        ]);
        let each = |blocks: &[Values], template: &str| -> String {
            blocks
                .iter()
                .map(|values| expand(template, values))
                .collect()
        };
        let all_parts = [former_parts.clone(), new_parts.clone()].concat();
        let blocks = |list: &str, template: &str| match list {
            "KINDS" => one_of_each_kind(&all_parts, template),
            "FORMER" => each(&former_blocks, template),
            _ => each(&new_blocks, template),
        };
        Ok(Self {
            script: Script::new(assemble_from(FRAME, &values, blocks)),
            logs: logs.0.max(logs.1),
        })
    }
}

fn with<const N: usize>(values: &Values, own: [(&'static str, String); N]) -> Values {
    let mut values = values.clone();
    values.extend(own);
    values
}

/// How many words the state of a limit has.
fn word_count(values: &Values) -> usize {
    values[script::WORDS].split(',').count()
}

/// Whether the words of a former limit mean the same in the state of a new one.
fn continues(former_values: &Values, former: &Limit, values: &Values, limit: &Limit) -> bool {
    match (former, limit) {
        (Limit::FixedWindow(former), Limit::FixedWindow(window)) => {
            former.get_period() == window.get_period() && former.get_align() == window.get_align()
        }
        (Limit::SlidingWindow(former), Limit::SlidingWindow(window)) => {
            let is_log = window.method() == SlidingMethod::Log;
            former.method() == window.method()
                && former.period() == window.period()
                && (!is_log || former_values[script::LOG_KEY] == values[script::LOG_KEY])
        }
        (Limit::Penalty(former), Limit::Penalty(penalty)) => {
            let period = |penalty: &Penalty| penalty.get_fall().map(|rate| rate.period());
            period(former) == period(penalty) && former.get_half_life() == penalty.get_half_life()
        }
        _ => former == limit,
    }
}
