//! Waiters: up to a million requests wait for the place of one limiter, or of one semaphore of tokio.

use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tollgate::{Limiter, MaxConcurrency};

use crate::curve::{Chart, Curve};
use crate::line::Line;

const SIZES: [usize; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
const PEER: &str = "tokio Semaphore";

pub(crate) fn chart() -> Chart {
    // A limiter spawns its driver where a request waits.
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let _in_runtime = runtime.enter();
    let limiter = Limiter::new(MaxConcurrency::new(1)).expect("a sound policy");
    let ours = Line::new(|_| limiter.acquire()).costs(&SIZES);
    let semaphore = Arc::new(Semaphore::new(1));
    let theirs = Line::new(|_| Arc::clone(&semaphore).acquire_owned()).costs(&SIZES);
    Chart {
        title: "requests that wait for a place",
        promise: "Only the front is decided again; one that leaves moves half a chunk of 64.",
        unit: "ns",
        curves: vec![
            Curve::new("a hand-off", ours.hand_over),
            Curve::new("joining at the end", ours.join),
            Curve::new("giving up, anywhere", ours.give_up),
            Curve::of_peer(PEER, "a hand-off", theirs.hand_over),
            Curve::of_peer(PEER, "joining at the end", theirs.join),
            Curve::of_peer(PEER, "giving up, anywhere", theirs.give_up),
        ],
        bytes: vec![
            Curve::new("a waiter, boxed", ours.bytes),
            Curve::of_peer(PEER, "a waiter, boxed", theirs.bytes),
        ],
    }
}
