//! The table that is printed for each limit.

use common::{Human, say};
use indicatif::HumanCount;

use crate::load::Run;
use crate::shares::THREE_TENANTS;

/// Prints a line for each tenant: what it got while all three asked, and how long its first request waited.
pub(crate) fn print(before: &Run, after: &Run) {
    let (policy, shared) = (before.policy, before.shared.name());
    say!("{policy}, while all three tenants ask ({THREE_TENANTS:?})");
    say!(
        "{:<8}{:>6}{:>10}{:>8} | {:<24} | {:<16} | first wait",
        "",
        "",
        "",
        "",
        format!("% of the {shared}"),
        "grants"
    );
    say!(
        "tenant  weight  requests    work |  before   after    fair |  before   after |  before   after"
    );
    for tenant in &before.tenants {
        let percent = |share: f64| format!("{:.1}", share * 100.0);
        let fair = percent(after.fair_share(tenant, THREE_TENANTS.start));
        let [(share, grants, wait), (share2, grants2, wait2)] = [before, after].map(|run| {
            let grants = HumanCount(run.grants(tenant, &THREE_TENANTS) as u64).to_string();
            (
                percent(run.share(tenant, &THREE_TENANTS)),
                grants,
                Human(run.first_wait(tenant)),
            )
        });
        say!(
            "{:<8}{:>6}{:>10}{:>8} | {share:>7} {share2:>7} {fair:>7} | {grants:>7} {grants2:>7} | {wait:>7} {wait2:>7}",
            tenant.name,
            tenant.weight,
            tenant.requests,
            Human(tenant.work).to_string()
        );
    }
    say!("");
}
