//! Flows: up to 100,000 requests wait, each of a flow of its own, or all of one flow.

use tokio::runtime::Builder;
use tollgate::{Limiter, MaxConcurrency};

use crate::curve::{Chart, Curve};
use crate::line::Line;

const SIZES: [usize; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
const ONE: &str = "all of one flow";

pub(crate) fn chart() -> Chart {
    // A limiter spawns its driver where a request waits.
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let _in_runtime = runtime.enter();
    let limiter = Limiter::new(MaxConcurrency::new(1)).expect("a sound policy");
    let own = Line::new(|number| limiter.request().flow(number).acquire_owned()).costs(&SIZES);
    let limiter = Limiter::new(MaxConcurrency::new(1)).expect("a sound policy");
    let one = Line::new(|_| limiter.request().flow(0).acquire_owned()).costs(&SIZES);
    Chart {
        title: "requests that wait, each of a new flow",
        promise: "A hand-off: at most 1.3 times as long as with one flow (of flows that come back).",
        unit: "ns",
        curves: vec![
            Curve::new("a hand-off", own.hand_over),
            Curve::new("a request joins", own.join),
            Curve::new("a request gives up, anywhere", own.give_up),
            Curve::of_peer(ONE, "a hand-off", one.hand_over),
            Curve::of_peer(ONE, "a request joins", one.join),
            Curve::of_peer(ONE, "a request gives up, anywhere", one.give_up),
        ],
        bytes: vec![
            Curve::new("a request and its flow, boxed", own.bytes),
            Curve::of_peer(ONE, "a request and its flow, boxed", one.bytes),
        ],
    }
}
