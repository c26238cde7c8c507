//! The script of a policy, assembled from one fragment for each kind of limit.
//!
//! Each policy has a script of its own, with its numbers as literals. One script for all policies, with the numbers as arguments, was
//! measured: a call of 5 µs took the server 2 to 4 µs more, even with only paces and windows in the script.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::names::NAME;
use crate::error::StoreError;
use crate::exchange::Call;
use crate::policy::{Limit, Policy};
use crate::strategy::{
    Align, FixedWindow, Penalty, SlidingMethod, SlidingWindow, TokenBucket, gcd,
};

/// The version of the layout of a state. A store with another version reports the state as damaged.
const VERSION: &str = "\\001";

/// The names of values that are read outside of a script.
pub(super) const WORDS: &str = "WORDS";
pub(super) const LOG_KEY: &str = "LOG_KEY";

/// All numbers of a policy are below this one, so that the sum of two is exact in a double.
const BIG: u128 = 1 << 52;

/// With this many limits, a script stays below the 200 local variables that Lua allows.
pub(super) const MAX_LIMITS: usize = 16;

const TOO_LARGE: &str =
    "its numbers are too large to be exact in Redis, whose scripts count in doubles";
const NOT_WHOLE: &str = "its times must be whole microseconds, which the clock of Redis has";

const MAIN: &str = include_str!("lua/script.lua");
const LINE: &str = include_str!("lua/line.lua");
const PACE: &str = include_str!("lua/pace.lua");
const WINDOW: &str = include_str!("lua/window.lua");
const COUNTER: &str = include_str!("lua/counter.lua");
const LOG: &str = include_str!("lua/log.lua");
const PENALTY: &str = include_str!("lua/penalty.lua");
const PLACES: &str = include_str!("lua/places.lua");

/// The text of a script, and the hash by which the server knows it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// The script of a policy, and the data that its calls need.
#[derive(Debug)]
pub(super) struct PolicyScript {
    pub(super) script: Script,
    /// For each limit that counts what is in flight, how much may be in flight; `None` for the other limits.
    pub(super) places: Vec<Option<u64>>,
    pub(super) logs: usize,
}

/// The values of the names in a fragment: numbers, and the sections of the fragment.
pub(super) type Values = HashMap<&'static str, String>;

impl Script {
    pub(super) fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

impl PolicyScript {
    pub(super) fn new(policy: &Policy, revision: u64) -> Result<Self, StoreError> {
        let parts = parts(policy)?;
        let places = |limit: &Limit| limit.counts_places().then_some(limit.capacity());
        Ok(Self {
            script: Script::new(assemble(&named(policy, revision), &parts)),
            places: policy.limits().iter().map(places).collect(),
            logs: log_count(&parts),
        })
    }

    pub(super) fn holds_places(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }
}

/// The policy as it is in a state: its text, and its revision unless that is 0.
pub(super) fn named(policy: &Policy, revision: u64) -> String {
    match revision {
        0 => policy.to_string(),
        _ => format!("{policy}#{revision}"),
    }
}

/// Reads what [`named`] has written.
pub(super) fn read_named(named: &str) -> (&str, u64) {
    let parts = named.rsplit_once('#');
    let read = parts.and_then(|(text, revision)| Some((text, revision.parse().ok()?)));
    read.unwrap_or((named, 0))
}

/// The fragment of each limit, with the values of its names.
pub(super) fn parts(policy: &Policy) -> Result<Vec<(&'static str, Values)>, StoreError> {
    let limits = policy.limits();
    if let Some(limit) = limits.get(MAX_LIMITS) {
        return Err(unsupported(limit, "a policy has at most 16 limits there"));
    }
    let (mut parts, mut places, mut logs) = (Vec::new(), 0, 0);
    for (number, limit) in (1..).zip(limits) {
        let (fragment, own) = part(limit).map_err(|reason| unsupported(limit, reason))?;
        logs += usize::from(fragment == LOG);
        places += usize::from(fragment == PLACES);
        let general = [
            ("$", number),
            ("CHARGED", 8 * number),
            ("ACTUAL", 8 * (number + limits.len())),
            ("LOG_KEY", 3 + logs),
            ("PLACE", places),
        ];
        let mut values: Values = sections(fragment).collect();
        values.extend(general.map(|(name, value)| (name, value.to_string())));
        values.insert("CAPACITY", limit.capacity().to_string());
        values.insert("MOST", BIG.to_string());
        values.insert("ROUND", (limit.round_nanos() / 1_000).to_string());
        let counts_rounds = matches!(limit, Limit::SlidingWindow(_) | Limit::Penalty(_));
        let rounds = if counts_rounds { ROUNDS } else { "" };
        values.insert("ROUNDS", rounds.into());
        values.extend(own);
        parts.push((fragment, values));
    }
    Ok(parts)
}

/// How many limits keep a log.
pub(super) fn log_count(parts: &[(&'static str, Values)]) -> usize {
    parts
        .iter()
        .filter(|(fragment, _)| *fragment == LOG)
        .count()
}

/// How many times the capacity of a limit is waited for, and the units of the last time.
const ROUNDS: &str = "rounds = floor((cost$ - 1) / @CAPACITY) cost$ = cost$ - rounds * @CAPACITY";

fn unsupported(limit: &Limit, reason: &'static str) -> StoreError {
    StoreError::Unsupported {
        store: NAME.to_owned(),
        limit: limit.to_string(),
        reason,
    }
}

/// A fragment and the values of its names, or the reason why Redis cannot keep the limit.
type Part = Result<(&'static str, Vec<(&'static str, String)>), &'static str>;

fn part(limit: &Limit) -> Part {
    match limit {
        Limit::Throttle(throttle) => {
            let burst = throttle.get_burst();
            continuous(1, throttle.get_interval().as_nanos(), burst, burst)
        }
        Limit::TokenBucket(bucket) => bucket_part(bucket),
        Limit::FixedWindow(window) => window_part(window),
        Limit::SlidingWindow(window) => sliding_part(window),
        Limit::Penalty(penalty) => penalty_part(penalty),
        Limit::MaxConcurrency(concurrency) => {
            let limit = number(concurrency.get_limit())?;
            Ok((PLACES, vec![("LIMIT", limit)]))
        }
    }
}

fn bucket_part(bucket: &TokenBucket) -> Part {
    let (rate, burst) = (bucket.get_rate(), bucket.get_burst());
    let initial = bucket.get_initial().unwrap_or(burst).min(burst);
    if !bucket.get_refill_each_period() {
        return continuous(rate.units(), rate.period().as_nanos(), burst, initial);
    }
    let steps = [
        ("STEP", whole_micros(rate.period())?),
        ("DECLARE_STEPS", "@STEP_FUNCTIONS".into()),
        ("STEPS", "steps$".into()),
        ("AFTER", "after$".into()),
    ];
    pace(1, rate.units().into(), burst, initial, &steps)
}

/// A rate of this many units in `period` nanoseconds, which is refilled each microsecond.
fn continuous(units: u64, period: u128, burst: u64, initial: u64) -> Part {
    let a_microsecond = u128::from(units) * 1_000;
    let shared = gcd(a_microsecond, period);
    let (parts, refill) = (period / shared, a_microsecond / shared);
    let steps = [("STEPS", String::new()), ("AFTER", "now + ".into())];
    pace(parts, refill, burst, initial, &steps)
}

fn pace(
    parts_per_unit: u128,
    parts_per_step: u128,
    burst: u64,
    initial: u64,
    steps: &[(&'static str, String)],
) -> Part {
    let parts = |units: u64| number(u128::from(units).saturating_mul(parts_per_unit));
    let values = [
        ("PARTS", number(parts_per_unit)?),
        ("MOST", (BIG / parts_per_unit).to_string()),
        ("REFILL", number(parts_per_step)?),
        ("FULL", parts(burst)?),
        ("INITIAL", parts(burst - initial)?),
    ];
    Ok((PACE, [&values, steps].concat()))
}

fn window_part(window: &FixedWindow) -> Part {
    let next = match window.get_align() {
        Align::FirstGrant => "0",
        Align::Creation | Align::WallClock => "now - now % @PERIOD + @PERIOD",
    };
    let values = vec![
        ("LIMIT", number(window.get_limit())?),
        ("PERIOD", whole_micros(window.get_period())?),
        ("NEXT", next.into()),
    ];
    Ok((WINDOW, values))
}

fn sliding_part(window: &SlidingWindow) -> Part {
    let limit = ("LIMIT", number(window.limit())?);
    match window.method() {
        // An entry counts while it is younger than the period, and ages are whole microseconds.
        SlidingMethod::Log => {
            let period = number(window.period().as_nanos().div_ceil(1_000))?;
            Ok((LOG, vec![limit, ("PERIOD", period)]))
        }
        // The script multiplies the period by 256 at most.
        SlidingMethod::Counter if window.period().as_micros() >= 1 << 44 => {
            Err("its period must be less than 200 days there")
        }
        SlidingMethod::Counter => {
            let period = whole_micros(window.period())?;
            Ok((COUNTER, vec![limit, ("PERIOD", period)]))
        }
    }
}

fn penalty_part(penalty: &Penalty) -> Part {
    let threshold = penalty.get_threshold();
    let ceiling = penalty
        .get_ceiling()
        .unwrap_or(2 * threshold)
        .clamp(threshold, u32::MAX.into());
    let (units, period, steps, fall) = match (penalty.get_fall(), penalty.get_half_life()) {
        (Some(rate), _) => {
            let units = rate.units().min(u32::MAX.into());
            (units, rate.period(), "subtractions", "lowered")
        }
        (None, half_life) => (0, half_life.unwrap_or_default(), "halvings", "halved"),
    };
    let (mut longest, mut forgive) = (Duration::ZERO, Duration::ZERO);
    if let Some(first) = penalty.get_ban() {
        longest = penalty.get_escalate().unwrap_or(first).max(first);
        forgive = penalty.get_forgive_after().unwrap_or(longest);
    }
    let values = vec![
        ("THRESHOLD", number(threshold)?),
        ("CEILING", number(ceiling)?),
        ("UNITS", number(units)?),
        ("PERIOD", whole_micros(period)?),
        ("TO", steps.into()),
        ("FALL", fall.into()),
        ("BANS", penalty.get_ban().is_some().to_string()),
        ("RAISES", (!penalty.get_ignore_denied()).to_string()),
        (
            "FIRST",
            whole_micros(penalty.get_ban().unwrap_or_default())?,
        ),
        ("LONGEST", whole_micros(longest)?),
        ("FORGIVE", whole_micros(forgive)?),
    ];
    Ok((PENALTY, values))
}

/// The script of the policy with this text, from the fragment and the values of each limit.
fn assemble(text: &str, parts: &[(&'static str, Values)]) -> String {
    let limits: Vec<_> = parts.iter().map(|(_, values)| values).collect();
    let places: Vec<_> = parts
        .iter()
        .filter(|(fragment, _)| *fragment == PLACES)
        .map(|(_, values)| values)
        .collect();
    let each = |limits: &[&Values], template: &str| -> String {
        limits
            .iter()
            .map(|values| expand(template, values))
            .collect()
    };
    let count = limits.len();
    let main = MAIN.replace("@LINE", LINE);
    let mut words = each(&limits, ", @WORDS");
    if !places.is_empty() {
        words += ", unequal";
    }
    let word_count = 4 + words.matches(',').count();
    let values = Values::from([
        ("VERSION", VERSION.to_owned()),
        ("HEAD", head(text)),
        ("HEAD_SIZE", head_size(text).to_string()),
        ("SIZE", (head_size(text) + 8 * word_count).to_string()),
        ("FORMAT", doubles(word_count)),
        ("SUM", words.replace(',', " +")),
        ("ALL_WORDS", words),
        ("RUN", (8 * (2 + count)).to_string()),
        ("SETTLEMENT", (8 * (1 + 2 * count)).to_string()),
        ("COSTS", each(&limits, ", cost$")),
        ("ASK", doubles(2 + count)),
        ("REPLY", doubles(7 + 3 * count)),
        ("REPORT", each(&limits, ", @REMAINING, available$, @RESET")),
        ("HAS_PLACES", (!places.is_empty()).to_string()),
        ("PLACE_COSTS", each(&places, " + cost$")),
        ("ONE_EACH", each(&places, " and cost$ == 1")),
        ("ODD_COSTS", each(&places, ", cost$ - 1")),
        ("MOST_LEASES", each(&places, ", floor(@LIMIT / cost$)")),
        ("PLACE_DOUBLES", doubles(places.len())),
        ("PLACE_COUNT", places.len().to_string()),
        ("COUNT", count.to_string()),
        ("KEEPS", (Call::KEEPS_POLICY_FOR / 1_000).to_string()),
        ("LEFT", each(&limits, ", @REMAINING")),
        ("TICKET", (56 + 8 * count).to_string()),
        ("TICKET_COSTS", doubles(count)),
        ("TICKET_FORMAT", doubles(6 + count).replacen('<', "<c8", 1)),
        ("ZEROS", "0, ".repeat(count)),
    ]);
    let blocks = |list: &str, template: &str| match list {
        "KINDS" => one_of_each_kind(parts, template),
        "PLACES" => each(&places, template),
        _ => each(&limits, template),
    };
    assemble_from(&main, &values, blocks)
}

/// A template for one limit of each kind.
pub(super) fn one_of_each_kind(parts: &[(&'static str, Values)], template: &str) -> String {
    let kinds: BTreeMap<_, _> = parts
        .iter()
        .map(|(fragment, values)| (fragment, values))
        .collect();
    kinds
        .values()
        .map(|values| expand(template, values))
        .collect()
}

/// The head of a state of this [policy](named), as in a Lua literal for any bytes.
pub(super) fn head(policy: &str) -> String {
    let escaped: String = policy.bytes().map(|byte| format!("\\{byte:03}")).collect();
    format!("{VERSION}{escaped}\\000")
}

pub(super) fn head_size(policy: &str) -> usize {
    policy.len() + 2
}

/// A script from its frame: `blocks` repeats the template of a block for a list.
pub(super) fn assemble_from(
    frame: &str,
    values: &Values,
    blocks: impl Fn(&str, &str) -> String,
) -> String {
    let mut script = String::new();
    for block in frame.split("--@for ") {
        let (repeated, once) = block.split_once("--@end\n").unwrap_or(("", block));
        let (list, template) = repeated.split_once('\n').unwrap_or_default();
        script += &blocks(list, template);
        script += once;
    }
    let script = expand(&script, values);
    // A line that still begins with `@` is a section that the fragment of the limit does not have.
    let lines = script.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("--") && !line.starts_with('@'))
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// The sections of a fragment by name.
fn sections(fragment: &'static str) -> impl Iterator<Item = (&'static str, String)> {
    let sections = fragment.split("--@").skip(1);
    sections
        .filter_map(|section| section.split_once('\n'))
        .map(|(name, text)| (name, text.trim().to_owned()))
}

/// Replaces `@NAME` and `$` by their values, in values too. Names without a value stay.
pub(super) fn expand(text: &str, values: &Values) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '@']) {
        let (before, mark) = rest.split_at(at);
        let is_name = |char: char| char.is_ascii_uppercase() || char == '_';
        let end = match mark.strip_prefix('@') {
            Some(rest) => 1 + rest.find(|char| !is_name(char)).unwrap_or(rest.len()),
            None => 1,
        };
        let name = mark[..end].trim_start_matches('@');
        expanded += before;
        match values.get(name) {
            Some(value) => expanded += &expand(value, values),
            None => expanded += &mark[..end],
        }
        rest = &mark[end..];
    }
    expanded + rest
}

/// The format that packs this many numbers.
pub(super) fn doubles(count: usize) -> String {
    format!("<{}", "d".repeat(count))
}

/// An integer that is exact in a script.
fn number(number: impl Into<u128>) -> Result<String, &'static str> {
    let number = number.into();
    if number < BIG {
        Ok(number.to_string())
    } else {
        Err(TOO_LARGE)
    }
}

fn whole_micros(time: Duration) -> Result<String, &'static str> {
    if time.subsec_nanos().is_multiple_of(1_000) {
        number(time.as_micros())
    } else {
        Err(NOT_WHOLE)
    }
}
