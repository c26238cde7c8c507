//! The script of a policy, assembled from one fragment for each kind of limit.

use std::time::Duration;

use super::names::NAME;
use crate::error::StoreError;
use crate::policy::{Limit, Policy};
use crate::strategy::{Align, FixedWindow, Penalty, SlidingMethod, SlidingWindow, Throttle, TokenBucket};

/// The layout of a state. A store of another version finds it damaged.
const VERSION: &str = "\\001";

/// Numbers of a policy are less, so that the sum of two is exact in a double.
const BIG: u128 = 1 << 52;

/// Locals of a script of as many limits stay below the 200 that Lua admits.
pub(super) const MAX_LIMITS: usize = 16;

const TOO_LARGE: &str = "its numbers are too large to be exact in Redis, whose scripts count in doubles";
const NOT_WHOLE: &str = "its times must be whole microseconds, which the clock of Redis has";

const MAIN: &str = include_str!("lua/script.lua");
const LEASES: &str = include_str!("lua/leases.lua");
const PACE: &str = include_str!("lua/pace.lua");
const PACE_STEPS: &str = include_str!("lua/pace_steps.lua");
const WINDOW: &str = include_str!("lua/window.lua");
const COUNTER: &str = include_str!("lua/counter.lua");
const LOG: &str = include_str!("lua/log.lua");
const PENALTY: &str = include_str!("lua/penalty.lua");
const PLACES: &str = include_str!("lua/places.lua");

/// A script, and what its calls have to know of it.
#[derive(Debug)]
pub(super) struct PolicyScript {
    pub(super) text: String,
    /// For each limit, if it counts what is in flight: how much may be.
    pub(super) places: Vec<Option<u64>>,
    pub(super) logs: usize,
}

/// One limit with the values of the names in its fragment.
struct Part {
    fragment: &'static str,
    values: Vec<(&'static str, String)>,
}

impl PolicyScript {
    pub(super) fn new(policy: &Policy) -> Result<Self, StoreError> {
        let limits = policy.limits();
        if let Some(limit) = limits.get(MAX_LIMITS) {
            return Err(unsupported(limit, "a policy has at most 16 limits there"));
        }
        let mut logs = 0;
        let parts = limits.iter().enumerate().map(|(index, limit)| {
            let mut part = part(limit).map_err(|reason| unsupported(limit, reason))?;
            part.values.push(("CAPACITY", limit.capacity().to_string()));
            part.values
                .extend([("CHARGED", (8 * (index + 1)).to_string()), ("ACTUAL", (8 * (index + 1 + limits.len())).to_string())]);
            if part.fragment == LOG {
                logs += 1;
                part.values.push(("LOG", format!("KEYS[{}]", 3 + logs)));
            }
            Ok(part)
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let places = limits.iter().map(|limit| limit.counts_places().then_some(limit.capacity())).collect();
        Ok(Self { text: assemble(policy, &parts), places, logs })
    }

    pub(super) fn holds_places(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }
}

fn unsupported(limit: &Limit, reason: &'static str) -> StoreError {
    StoreError::Unsupported { store: NAME.to_owned(), limit: limit.to_string(), reason }
}

fn part(limit: &Limit) -> Result<Part, &'static str> {
    match limit {
        Limit::Throttle(throttle) => throttle_part(throttle),
        Limit::TokenBucket(bucket) => bucket_part(bucket),
        Limit::FixedWindow(window) => window_part(window),
        Limit::SlidingWindow(window) => sliding_part(window),
        Limit::Penalty(penalty) => penalty_part(penalty),
        Limit::MaxConcurrency(concurrency) => {
            Ok(Part { fragment: PLACES, values: vec![("LIMIT", number(concurrency.get_limit())?)] })
        }
    }
}

fn throttle_part(throttle: &Throttle) -> Result<Part, &'static str> {
    let burst = throttle.get_burst();
    continuous(1, throttle.get_interval().as_nanos(), burst, burst)
}

fn bucket_part(bucket: &TokenBucket) -> Result<Part, &'static str> {
    let (rate, burst) = (bucket.get_rate(), bucket.get_burst());
    let initial = bucket.get_initial().unwrap_or(burst).min(burst);
    if !bucket.get_refill_each_period() {
        return continuous(rate.units(), rate.period().as_nanos(), burst, initial);
    }
    let mut part = pace(1, rate.units().into(), burst, initial)?;
    part.values.extend([("STEPS", "steps$".into()), ("AFTER", "after$".into()), ("STEP", whole_micros(rate.period())?)]);
    Ok(part)
}

/// As many units in `period` nanoseconds, brought in microseconds.
fn continuous(units: u64, period: u128, burst: u64, initial: u64) -> Result<Part, &'static str> {
    let a_microsecond = u128::from(units) * 1_000;
    let shared = gcd(a_microsecond, period);
    let mut part = pace(period / shared, a_microsecond / shared, burst, initial)?;
    part.values.extend([("STEPS", String::new()), ("AFTER", "now + ".into())]);
    Ok(part)
}

fn pace(parts_per_unit: u128, parts_per_step: u128, burst: u64, initial: u64) -> Result<Part, &'static str> {
    let parts = |units: u64| number(u128::from(units).saturating_mul(parts_per_unit));
    let values = vec![
        ("PARTS", number(parts_per_unit)?),
        ("REFILL", number(parts_per_step)?),
        ("FULL", parts(burst)?),
        ("INITIAL", parts(burst - initial)?),
        // Otherwise a bucket that is empty at first would stay so until its first grant.
        ("FRESH", if initial < burst { "dirty = dirty or not raw".into() } else { String::new() }),
    ];
    Ok(Part { fragment: PACE, values })
}

fn window_part(window: &FixedWindow) -> Result<Part, &'static str> {
    let period = whole_micros(window.get_period())?;
    let next = match window.get_align() {
        Align::FirstGrant => "0".to_owned(),
        Align::Creation | Align::WallClock => format!("now - now % {period} + {period}"),
    };
    let values = vec![("LIMIT", number(window.get_limit())?), ("PERIOD", period), ("NEXT", next)];
    Ok(Part { fragment: WINDOW, values })
}

fn sliding_part(window: &SlidingWindow) -> Result<Part, &'static str> {
    let limit = ("LIMIT", number(window.limit())?);
    match window.method() {
        // An entry counts as long as it is younger than the period, and ages are whole microseconds.
        SlidingMethod::Log => {
            let period = window.period().as_nanos().div_ceil(1_000);
            Ok(Part { fragment: LOG, values: vec![limit, ("PERIOD", number(period)?)] })
        }
        // The script multiplies the period by 256 at most.
        SlidingMethod::Counter if window.period().as_micros() >= 1 << 44 => Err("its period must be less than 200 days there"),
        SlidingMethod::Counter => Ok(Part { fragment: COUNTER, values: vec![limit, ("PERIOD", whole_micros(window.period())?)] }),
    }
}

fn penalty_part(penalty: &Penalty) -> Result<Part, &'static str> {
    let threshold = penalty.get_threshold();
    let ceiling = penalty.get_ceiling().unwrap_or(2 * threshold).clamp(threshold, u32::MAX.into());
    let (units, period, steps, fall) = match (penalty.get_fall(), penalty.get_half_life()) {
        (Some(rate), _) => (rate.units().min(u32::MAX.into()), rate.period(), "subtractions", "lowered"),
        (None, half_life) => (0, half_life.unwrap_or_default(), "halvings", "halved"),
    };
    let mut values = vec![
        ("THRESHOLD", number(threshold)?),
        ("CEILING", number(ceiling)?),
        ("UNITS", number(units)?),
        ("PERIOD", whole_micros(period)?),
        ("TO", steps.into()),
        ("FALL", fall.into()),
    ];
    if let Some(first) = penalty.get_ban() {
        let longest = penalty.get_escalate().unwrap_or(first).max(first);
        let forgive = penalty.get_forgive_after().unwrap_or(longest);
        values.extend([("DENY", section(PENALTY, "deny_ban").into()), ("FORGIVE", whole_micros(forgive)?)]);
        values.extend([("FIRST", whole_micros(first)?), ("LONGEST", whole_micros(longest)?)]);
    } else {
        let deny = if penalty.get_ignore_denied() { "" } else { section(PENALTY, "deny_raise") };
        values.extend([("DENY", deny.into()), ("FORGIVE", "0".into())]);
    }
    Ok(Part { fragment: PENALTY, values })
}

/// What the fragments of limits say for a slot of the main script.
struct Slots<'a> {
    parts: &'a [Part],
    holds_places: bool,
}

fn assemble(policy: &Policy, parts: &[Part]) -> String {
    let places: Vec<_> = (1..=parts.len()).filter(|index| parts[index - 1].fragment == PLACES).collect();
    let each =
        |separator: &str, of: &dyn Fn(usize) -> String| places.iter().map(|index| of(*index)).collect::<Vec<_>>().join(separator);
    let of_lease = |sign: &str| {
        let costs = format!("local {} = decode('@DOUBLES', costs)\n", each(", ", &|index| format!("costs{index}")));
        let sums = each("\n", &|index| format!("odd{index} = odd{index} {sign} costs{index}"));
        if places.is_empty() { String::new() } else { costs + &sums }
    };
    let mut words: String = (1..).zip(parts).map(|(index, part)| format!(", {}", part.section("words", index))).collect();
    if !places.is_empty() {
        words += ", unequal";
    }
    let text = policy.to_string();
    let (head_size, words_kept) = (text.len() + 2, 4 + words.matches(',').count());
    let reading = |(index, part): (usize, &Part)| {
        format!(", {}, available{index}, {}", part.section("remaining", index), part.section("reset", index))
    };
    let values = [
        ("VERSION", VERSION.to_owned()),
        ("HEAD", format!("{VERSION}{}\\000", escaped(&text))),
        ("HEAD_SIZE", head_size.to_string()),
        ("SIZE", (head_size + 8 * words_kept).to_string()),
        ("FORMAT", doubles(words_kept)),
        ("SUM", words.replace(',', " +")),
        ("WORDS", words),
        ("RUN", (8 * (2 + parts.len())).to_string()),
        ("SETTLEMENT", (8 * (1 + 2 * parts.len())).to_string()),
        ("COSTS", (1..=parts.len()).map(|index| format!(", cost{index}")).collect()),
        ("ASK", doubles(2 + parts.len())),
        ("REPLY", doubles(7 + 3 * parts.len())),
        ("REPORT", (1..).zip(parts).map(reading).collect()),
        ("ANY_PLACE", each(" + ", &|index| format!("cost{index}")) + " > 0"),
        ("ONE_EACH", each(" and ", &|index| format!("cost{index} == 1"))),
        ("ODD_COSTS", each("", &|index| format!(", cost{index} - 1"))),
        ("MOST_LEASES", each("", &|index| format!(", floor({} / cost{index})", parts[index - 1].value("LIMIT")))),
        ("DOUBLES", doubles(places.len())),
        ("FORGET", of_lease("-")),
        ("REMEMBER", of_lease("+")),
        ("NONE", each("\n", &|index| format!("odd{index} = 0"))),
    ];
    let slots = Slots { parts, holds_places: !places.is_empty() };
    let mut script = String::new();
    for line in MAIN.lines().map(str::trim_start) {
        match line.strip_prefix("--@") {
            Some(slot) => script += &slots.fill(slot),
            None if line.starts_with("--") => {}
            None => script = script + line + "\n",
        }
    }
    expand(&script, 0, &values)
}

impl Slots<'_> {
    fn fill(&self, slot: &str) -> String {
        let leases = |wanted: bool, name: &str| if wanted { section(LEASES, name) } else { "" };
        match slot {
            "helpers" => self.helpers(),
            "stop" => self.each(stop),
            "available" => self.each(available),
            "declare" => {
                let own = leases(self.holds_places, "declare_places");
                leases(true, slot).to_owned() + own + &self.each(|index, part| part.declare(index))
            }
            "leases" | "renew" | "publish" => leases(true, slot).to_owned(),
            "open" => leases(self.holds_places, slot).to_owned(),
            "write" => self.each(|index, part| part.block(slot, index)) + leases(self.holds_places, slot),
            _ => self.each(|index, part| part.block(slot, index)),
        }
    }

    fn each(&self, of: impl Fn(usize, &Part) -> String) -> String {
        (1..).zip(self.parts).map(|(index, part)| of(index, part)).collect()
    }

    /// What fragments share, once for each kind.
    fn helpers(&self) -> String {
        let fragments = [COUNTER, PENALTY, LOG].into_iter();
        let used = fragments.filter(|fragment| self.parts.iter().any(|part| part.fragment == *fragment));
        used.map(|fragment| section(fragment, "helpers")).collect()
    }
}

impl Part {
    fn section(&self, name: &str, index: usize) -> String {
        expand(section(self.fragment, name).trim_end(), index, &self.values)
    }

    fn value(&self, name: &str) -> &str {
        self.values.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    fn declare(&self, index: usize) -> String {
        let steps = if self.values.iter().any(|(name, _)| *name == "STEP") { section(PACE_STEPS, "declare") } else { "" };
        expand(steps, index, &self.values) + &self.section("declare", index) + "\n"
    }

    /// A section with locals of its own.
    fn block(&self, name: &str, index: usize) -> String {
        let section = self.section(name, index);
        if section.is_empty() { section } else { format!("do\n{section}\nend\n") }
    }
}

/// Keeps the limit that stops longest, the first of several. One whose capacity is less than the cost stops for ever.
fn stop(index: usize, part: &Part) -> String {
    let (when, capacity) = (part.section("when", index), part.value("CAPACITY"));
    format!(
        "if cost{index} > 0 then\nlocal t\n{when}\nif t and (cost{index} > {capacity} or t >= NEVER) then t = huge end\n\
         if t and t > rank then rank, stop = t, {index} end\nend\n"
    )
}

/// When a limit with nothing left admits a unit. That of a concurrency is unknown.
fn available(index: usize, part: &Part) -> String {
    let when = if part.fragment == PLACES { String::new() } else { part.section("when", index) };
    let remaining = part.section("remaining", index);
    format!(
        "local available{index} = now\nif ({remaining}) == 0 then\nlocal t, cost{index} = now, 1\n{when}\n\
         available{index} = min(t or now, NEVER)\nend\n"
    )
}

/// The lines of this name.
fn section(fragment: &'static str, name: &str) -> &'static str {
    let begins = format!("--@{name}\n");
    let Some(at) = fragment.find(&begins) else { return "" };
    let rest = &fragment[at + begins.len()..];
    rest.find("--@").map_or(rest, |end| &rest[..end])
}

/// Replaces `$` by the index and `@NAME` by its value, in values too. Names without a value stay.
fn expand(text: &str, index: usize, values: &[(&str, String)]) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '@']) {
        expanded += &rest[..at];
        let mark = &rest[at..];
        let end = mark[1..].find(|char: char| !(char.is_ascii_uppercase() || char == '_')).map_or(mark.len(), |end| end + 1);
        match values.iter().find(|(name, _)| *name == &mark[1..end]) {
            _ if mark.starts_with('$') => {
                expanded += &index.to_string();
                rest = &mark[1..];
                continue;
            }
            Some((_, value)) => expanded += &expand(value, index, values),
            None => expanded += &mark[..end],
        }
        rest = &mark[end..];
    }
    expanded + rest
}

/// How as many numbers are packed.
fn doubles(count: usize) -> String {
    format!("<{}", "d".repeat(count))
}

/// As within a literal of Lua, whatever bytes.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("\\{byte:03}")).collect()
}

/// An integer that is exact in a script.
fn number(number: impl Into<u128>) -> Result<String, &'static str> {
    let number = number.into();
    if number < BIG { Ok(number.to_string()) } else { Err(TOO_LARGE) }
}

fn whole_micros(time: Duration) -> Result<String, &'static str> {
    if time.subsec_nanos().is_multiple_of(1_000) { number(time.as_micros()) } else { Err(NOT_WHOLE) }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
