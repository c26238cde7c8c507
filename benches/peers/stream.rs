//! W8: one item of a stream through a limiter that never makes it wait.

use std::future::Future;
use std::hint::black_box;

use futures_util::stream::{self, Stream, StreamExt as _};
use governor::state::StreamRateLimitExt as _;
use tollgate::StreamLimitExt as _;

use crate::rounds::Contest;
use crate::setup::{
    current_thread, governor, limiter, nanos_each_in_task, never_waiting, never_waiting_quota,
};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 50_000;

pub(crate) fn per_item() -> Vec<Row> {
    let runtime = &current_thread();
    let limiter = limiter(never_waiting());
    let governor = governor(never_waiting_quota());
    let items = || stream::repeat(1_u64).take(BATCH as usize);
    Contest::new(("W8", "stream.throttled(), per item"), Unit::Nanos, || {
        nanos_each_in_task(runtime, BATCH, drain(items().throttled(limiter)))
    })
    .against(
        "governor ratelimit_stream(), same clock",
        Some(Bar::AtMost(0.75)),
        || {
            let governor = governor.clone();
            nanos_each_in_task(runtime, BATCH, async move {
                drain(items().ratelimit_stream(&governor)).await;
            })
        },
    )
    .run(ROUNDS)
}

fn drain<S: Stream<Item = u64> + Send>(items: S) -> impl Future<Output = ()> + Send {
    items.for_each(async |item| {
        black_box(item);
    })
}
