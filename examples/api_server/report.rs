//! The table that is printed at the end, and the fields that were seen.

use std::sync::Arc;

use common::{Human, say};
use reqwest::StatusCode;
use tollgate::Policy;

use crate::answers;
use crate::claims::most_within;
use crate::load::{Caller, Results};
use crate::options::Options;
use crate::plans::Plan;
use crate::record::{Answer, Record};

/// What all callers of a tier got.
struct Tier<'a> {
    name: &'static str,
    plan: Option<Plan>,
    callers: Vec<&'a (Arc<Caller>, Record)>,
}

impl Tier<'_> {
    fn count(&self, counted: impl Fn(&Answer) -> bool) -> usize {
        self.callers
            .iter()
            .map(|(_, record)| record.count(&counted))
            .sum()
    }

    fn first(&self, is_wanted: impl Fn(&Answer) -> bool) -> Option<&Answer> {
        self.callers
            .iter()
            .flat_map(|(_, record)| &record.answers)
            .filter(|answer| is_wanted(answer))
            .min_by_key(|answer| answer.sent)
    }
}

pub(crate) fn print(results: &Results, options: &Options) {
    let tiers: Vec<_> = Plan::ALL
        .map(Some)
        .into_iter()
        .chain([None])
        .map(|plan| Tier {
            name: plan.map_or("abuser", Plan::name),
            plan,
            callers: results
                .records
                .iter()
                .filter(|(caller, _)| caller.plan == plan)
                .collect(),
        })
        .collect();

    say!(
        "                                         429 by the                                       fullest"
    );
    say!(
        "tier        clients  requests  allowed    plan  search  penalty  401/403     503   at most  minute"
    );
    for tier in &tiers {
        row(tier, options);
    }
    say!("");
    for tier in &tiers {
        samples(tier, options);
    }
    say!("penalties of the first instance at the end of the load (GET /penalties for operators):");
    say!("{}", results.table);
    for (caller, record) in &results.records {
        match record.retried {
            Some((after, true)) => say!(
                "{:<14} waited for its retry-after of {}, and was allowed",
                caller.name,
                Human(after)
            ),
            Some((after, false)) => say!(
                "{:<14} waited for its retry-after of {}, and was denied",
                caller.name,
                Human(after)
            ),
            None if caller.plan.is_some() => {
                say!(
                    "{:<14} was never denied by the plan when it sent one request at a time",
                    caller.name
                );
            }
            None => {}
        }
    }
}

/// Prints the answers within the run, without those to the retries afterwards.
fn row(tier: &Tier<'_>, options: &Options) {
    let count = |counted: &dyn Fn(&Answer) -> bool| {
        tier.count(|answer| answer.received < options.run && counted(answer))
    };
    let (clients, requests, allowed) = (
        tier.callers.len(),
        count(&|_| true),
        count(&Answer::is_allowed),
    );
    let [plan, search, penalty] = [answers::PLAN, answers::SEARCH, answers::PENALTY]
        .map(|denial| count(&|answer| answer.code == denial.code));
    let strangers =
        count(&|answer| [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&answer.status));
    let busy = count(&|answer| answer.status == StatusCode::SERVICE_UNAVAILABLE);
    let (mut at_most, mut fullest) = ("-".to_owned(), "-".to_owned());
    if let Some(of_plan) = tier.plan {
        let (quota, minute) = (of_plan.quota(options.minute()), options.minute());
        at_most = (most_within(quota, options.run) * clients as u64).to_string();
        let most = tier
            .callers
            .iter()
            .map(|(_, record)| record.most_within(minute))
            .max()
            .unwrap_or(0);
        fullest = format!("{most} of {}", most_within(quota, minute));
    }
    let name = tier.name;
    say!(
        "{name:<10} {clients:>8} {requests:>9} {allowed:>8} {plan:>7} {search:>7} {penalty:>8} {strangers:>8} {busy:>7} {at_most:>9}  {fullest}"
    );
}

/// The fields of an answer that was allowed and of each kind of denial, as sent.
fn samples(tier: &Tier<'_>, options: &Options) {
    match tier.plan {
        Some(plan) => say!(
            "{plan}, {} a minute, here {}",
            plan.per_minute(),
            Policy::from(plan.quota(options.minute()))
        ),
        None => say!("{}", tier.name),
    }
    let kinds: [&dyn Fn(&Answer) -> bool; 5] = [
        &|answer| answer.is_allowed() && answer.is_search,
        &|answer| answer.code == answers::PLAN.code,
        &|answer| answer.code == answers::SEARCH.code,
        &|answer| answer.status == StatusCode::UNAUTHORIZED,
        &|answer| answer.code == answers::PENALTY.code,
    ];
    for kind in kinds {
        let Some(answer) = tier.first(kind) else {
            continue;
        };
        let path = if answer.is_search {
            "/search"
        } else {
            "/items"
        };
        say!("  GET {path}: {} {}", answer.status, answer.code);
        for field in &answer.fields {
            say!("    {field}");
        }
    }
}
