//! W11: what a layer that limits each client adds to a request.

use std::num::NonZeroU32;
use std::time::Duration;

use tollgate::layers::RateLimitStyle;
use tollgate::{Policy, Throttle};

use crate::rounds::{median, nanos_each};
use crate::services::{Hello, client, governed, governed_by_axum, limited};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 10_000;
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// More requests than a case sends from any client.
pub(crate) const MANY: u32 = 100_000;

type Client = Box<dyn FnMut() -> u16>;

pub(crate) fn rows() -> Vec<Row> {
    let granting = || Throttle::every(MINUTE).burst(MANY.into());
    let both: Policy = "1000 concurrent and 100000/h".parse().expect("a policy");
    let plain = limited(granting(), RateLimitStyle::None);
    let with_fields = limited(granting(), RateLimitStyle::Draft10);
    let two_limits = limited(both, RateLimitStyle::Draft10);
    let denying = limited(Throttle::every(60 * MINUTE), RateLimitStyle::Draft10);
    let of_tower = |interval, burst, with_fields| {
        Some(("tower_governor", governed(interval, burst, with_fields)))
    };
    let of_axum = |interval, burst| {
        let burst = NonZeroU32::new(burst).expect("not 0");
        Some(("axum-governor", governed_by_axum(interval, burst)))
    };
    let with_fields_again = limited(granting(), RateLimitStyle::Draft10);
    let denying_again = limited(Throttle::every(60 * MINUTE), RateLimitStyle::Draft10);
    vec![
        added(
            "added to a request, without fields",
            Box::new(plain),
            of_tower(MINUTE, MANY, false),
        ),
        added(
            "added to a request, fields of draft-10",
            Box::new(with_fields),
            of_tower(MINUTE, MANY, true),
        ),
        added(
            "added to a request, fields of draft-10",
            Box::new(with_fields_again),
            of_axum(MINUTE, MANY),
        ),
        added(
            "the same of a concurrency and a rate",
            Box::new(two_limits),
            None,
        ),
        added(
            "a denial instead of an answer, fields of draft-10",
            Box::new(denying),
            of_tower(60 * MINUTE, 1, true),
        ),
        added(
            "a denial instead of an answer, fields of draft-10",
            Box::new(denying_again),
            of_axum(60 * MINUTE, 1),
        ),
    ]
}

/// The time of a request minus the time of a request to the service alone, which is measured after each batch.
pub(crate) fn added(case: &str, mut ours: Client, theirs: Option<(&'static str, Client)>) -> Row {
    eprintln!("  {case}");
    let mut alone = client(Hello);
    let mut beyond_alone = |layered: &mut Client| {
        let with = nanos_each(BATCH, || {
            layered();
        });
        with - nanos_each(BATCH, || {
            alone();
        })
    };
    let (name, mut theirs) = theirs.unzip();
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        our_times.push(beyond_alone(&mut ours));
        their_times.extend(theirs.as_mut().map(&mut beyond_alone));
    }
    let peer = name.map(|name| (name, median(their_times)));
    Row::figure(
        ("W11", case),
        Unit::Nanos,
        median(our_times),
        peer,
        Some(Bar::AtMost(500.0)),
    )
}
