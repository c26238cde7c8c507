//! Suggests a word for one that the parser did not expect.

use strsim::osa_distance;

use crate::strategy::gcd;

/// A word longer than this is not compared with others.
const MAX_LEN: usize = 24;

/// Words that other tools use for words of this grammar.
const SYNONYMS: [(&str, &str); 12] = [
    ("parallel", "concurrent"),
    ("simultaneous", "concurrent"),
    ("inflight", "concurrent"),
    ("in-flight", "concurrent"),
    ("every", "per"),
    ("each", "per"),
    ("+", "and"),
    ("&", "and"),
    ("&&", "and"),
    ("plus", "and"),
    ("expires", "ttl"),
    ("max", "burst"),
];

/// What to write instead of an unexpected word. In `expected`, the words stand in backticks.
pub(super) fn hint(found: &str, expected: &[String]) -> Option<String> {
    let found = found.to_lowercase();
    let expects = |what: &str| expected.iter().any(|expected| expected == what);
    let did_you_mean = |word: &str| format!("did you mean `{word}`?");
    if found.is_empty() || found.len() > MAX_LEN {
        return None;
    }
    match found.as_str() {
        "," => return Some("did you mean `.`, or `_` between thousands?".to_owned()),
        "month" | "months" if expects("`day`") => return Some(did_you_mean("30d")),
        "year" | "years" if expects("`day`") => return Some(did_you_mean("365d")),
        _ => {}
    }
    if let Some(word) = found.strip_suffix([',', ';'])
        && (expects(&format!("`{word}`")) || expects("`and`"))
    {
        return Some("limits are joined with `and`".to_owned());
    }
    if let Some((units, periods)) = whole_units(&found).filter(|_| {
        expected
            .iter()
            .any(|what| what.contains("rate") || what.contains("number"))
    }) {
        return Some(format!(
            "units are whole; did you mean `{units}/{periods}s` for `{found}/s`?"
        ));
    }
    let synonym = SYNONYMS
        .iter()
        .find(|(other, word)| *other == found && expects(&format!("`{word}`")));
    let words = expected
        .iter()
        .filter_map(|expected| expected.strip_prefix('`')?.strip_suffix('`'));
    let near = words
        .map(|word| (osa_distance(&found, word), word))
        .filter(|(distance, word)| distance * 3 <= word.len() && word.len() > 2);
    synonym
        .map(|(_, word)| *word)
        .or_else(|| near.min().map(|(_, word)| word))
        .map(did_you_mean)
}

/// The same rate in whole numbers: `1.5` in one period is 3 in 2 periods.
fn whole_units(decimal: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = decimal.split_once('.')?;
    let periods = 10_u64.checked_pow(fraction.len().try_into().ok()?)?;
    let units = whole
        .parse::<u64>()
        .ok()?
        .checked_mul(periods)?
        .checked_add(fraction.parse().ok()?)?;
    let divisor = gcd(units.into(), periods.into()) as u64; // not more than the periods
    Some((units / divisor, periods / divisor))
}
