//! W11: what a layer that limits each client adds to a request.

use std::time::Duration;

use tollgate::http::RateLimitStyle;
use tollgate::{Policy, Throttle};

use crate::rounds::{median, nanos_each};
use crate::services::{Hello, client, governed, limited};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 10_000;
const MINUTE: Duration = Duration::from_secs(60);
/// More requests than a case sends from any client.
const MANY: u32 = 100_000;

type Client = Box<dyn FnMut() -> u16>;

pub(crate) fn rows() -> Vec<Row> {
    let granting = || Throttle::every(MINUTE).burst(MANY.into());
    let both: Policy = "1000 concurrent and 100000/h".parse().expect("a policy");
    let plain = limited(granting(), RateLimitStyle::None);
    let with_fields = limited(granting(), RateLimitStyle::Draft10);
    let two_limits = limited(both, RateLimitStyle::Draft10);
    let denying = limited(Throttle::every(60 * MINUTE), RateLimitStyle::Draft10);
    vec![
        added("added to a request, without fields", Box::new(plain), Some(governed(MINUTE, MANY, false))),
        added("added to a request, fields of draft-10", Box::new(with_fields), Some(governed(MINUTE, MANY, true))),
        added("the same of a concurrency and a rate", Box::new(two_limits), None),
        added("a denial instead of an answer, fields of draft-10", Box::new(denying), Some(governed(60 * MINUTE, 1, true))),
    ]
}

/// The time of a request less that of one to the service alone, which is measured after each.
fn added(case: &str, mut ours: Client, mut theirs: Option<Client>) -> Row {
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
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        our_times.push(beyond_alone(&mut ours));
        their_times.extend(theirs.as_mut().map(&mut beyond_alone));
    }
    let peer = theirs.is_some().then(|| ("tower_governor", median(their_times)));
    Row::figure(("W11", case), Unit::Nanos, median(our_times), peer, Some(Bar::AtMost(500.0)))
}
