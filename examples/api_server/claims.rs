//! The claims of the server, checked against the answers that its clients got.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use crate::answers;
use crate::load::{Caller, Results};
use crate::options::Options;
use crate::plans::SEARCHES;
use crate::record::{Answer, Record};
use common::Human;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use tollgate::layers::{UpstreamFamily, UpstreamReader};
use tollgate::{Policy, SlidingMethod, SlidingWindow};

/// The fields about limits.
const FIELDS: [&str; 3] = ["ratelimit-policy", "ratelimit", "retry-after"];

/// Reads one answer, and checks the claims about every answer.
pub(crate) fn examine(
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
    time: Range<Duration>,
    is_search: bool,
) -> Answer {
    let said =
        UpstreamReader::new(UpstreamFamily::Draft10).read(status, headers, SystemTime::now());
    let spent = said
        .quotas()
        .iter()
        .filter(|quota| quota.remaining == Some(0))
        .filter_map(|quota| quota.reset_after)
        .max();
    let code = body
        .split_once("\"code\":\"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map_or("", |(code, _)| code);
    let is_problem = headers
        .get("content-type")
        .is_some_and(|content| content == "application/problem+json");
    let has_limits = |names: &[&str]| {
        names
            .iter()
            .all(|name| said.quotas().iter().any(|quota| quota.name == Some(name)))
    };
    let fault = match (status, said.retry_after(), spent) {
        _ if !said.malformed().is_empty() => Some(format!(
            "has a malformed field: {}",
            said.malformed().join(", ")
        )),
        _ if !FIELDS[..2].iter().all(|name| headers.contains_key(*name)) => {
            Some("has no RateLimit fields".to_owned())
        }
        (StatusCode::OK, ..) => {
            let has_all =
                has_limits(&["plan", "client"]) && (!is_search || has_limits(&["search"]));
            (!has_all).then(|| "does not tell of all limits".to_owned())
        }
        _ if !is_problem || code.is_empty() => Some("is no problem with an error code".to_owned()),
        (StatusCode::TOO_MANY_REQUESTS, None, _) => Some("has no Retry-After".to_owned()),
        (StatusCode::TOO_MANY_REQUESTS, _, None) => {
            Some("says of no limit that it is spent".to_owned())
        }
        (StatusCode::TOO_MANY_REQUESTS, Some(after), Some(spent)) if after < spent => {
            Some(format!(
                "says to retry after {}, and that there is more after {}",
                Human(after),
                Human(spent)
            ))
        }
        _ => None,
    };
    let lines = |name: &'static str| {
        headers
            .get_all(name)
            .iter()
            .map(move |value| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
    };
    Answer {
        sent: time.start,
        received: time.end,
        is_search,
        status,
        code: code.to_owned(),
        retry_after: said.retry_after(),
        fields: FIELDS.into_iter().flat_map(lines).collect(),
        fault: fault.map(|what| format!("an answer with status {status} {what}")),
    }
}

/// The most that a quota allows within this time. A log is exact in any minute; a counter is so in those of its grid.
pub(crate) fn most_within(quota: SlidingWindow, time: Duration) -> u64 {
    let minutes = time.as_nanos().div_ceil(quota.period().as_nanos()) as u64;
    match quota.method() {
        SlidingMethod::Log => minutes * quota.limit(),
        _ => (minutes + 1) * quota.limit() - 1,
    }
}

/// The claims that do not hold.
pub(crate) fn broken(results: &Results, options: &Options) -> Vec<String> {
    let mut broken: Vec<_> = results
        .records
        .iter()
        .flat_map(|(caller, record)| of_caller(caller, record, options))
        .collect();
    let abuser = results
        .records
        .iter()
        .find(|(caller, _)| caller.plan.is_none());
    if abuser
        .is_none_or(|(_, record)| record.count(|answer| answer.code == answers::PENALTY.code) == 0)
    {
        broken.push("the penalty did not deny the abuser".to_owned());
    }
    if !results.abuser_was_seen {
        broken.push("no table of penalties showed that the abuser is locked out".to_owned());
    }
    broken
}

fn of_caller(caller: &Caller, record: &Record, options: &Options) -> Vec<String> {
    let name = &caller.name;
    let faults = record
        .answers
        .iter()
        .filter_map(|answer| answer.fault.as_ref());
    let mut broken: Vec<_> = faults
        .take(1)
        .map(|fault| format!("{name}: {fault}"))
        .collect();
    let Some(plan) = caller.plan else {
        if record.allowed().next().is_some() {
            broken.push(format!("{name} was let in"));
        }
        return broken;
    };

    if record.allowed().next().is_none() {
        broken.push(format!("{name} was allowed nothing"));
    }
    let quota = plan.quota(options.minute());
    for span in [quota.period(), options.run] {
        // The clocks of this process and of the store may differ by this time.
        let (most, allowed) = (
            most_within(quota, span),
            record.most_within(span.mul_f64(0.999)) as u64,
        );
        if allowed > most {
            let policy = Policy::from(quota);
            broken.push(format!(
                "{name} was allowed {allowed} requests within {}; `{policy}` allows {most}",
                Human(span)
            ));
        }
    }
    let searches = record.count(|answer| answer.is_search && answer.is_allowed()) as f64;
    let span = record
        .answers
        .iter()
        .map(|answer| answer.received)
        .max()
        .unwrap_or_default();
    let rate = SEARCHES.get_rate();
    let most = SEARCHES.get_burst() as f64
        + rate.units() as f64 * span.as_secs_f64() / rate.period().as_secs_f64();
    if searches > most {
        broken.push(format!(
            "{name} was allowed {searches} searches, and `{}` allows {most:.0}",
            Policy::from(SEARCHES)
        ));
    }
    if let Some(answer) = record
        .answers
        .iter()
        .find(|answer| answer.status.is_client_error() && !is_of_user(answer))
    {
        broken.push(format!(
            "{name} was refused with {} ({})",
            answer.status, answer.code
        ));
    }
    if let Some((after, false)) = record.retried {
        broken.push(format!(
            "{name} waited for its retry-after of {}, and was denied again",
            Human(after)
        ));
    }
    broken
}

/// Whether a user may get such a denial.
fn is_of_user(answer: &Answer) -> bool {
    answer.code == answers::PLAN.code || answer.code == answers::SEARCH.code && answer.is_search
}
