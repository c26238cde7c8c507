//! W13: 100,000 requests that wait, each of a flow of its own, beside as many of one flow: a hand-off, and the heap bytes of a flow.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tollgate::{AcquireOwned, Limiter, MaxConcurrency, Permit};

use crate::heap::bytes_kept_by;
use crate::rounds::{Contest, nanos_each};
use crate::setup::{current_thread, limiter};
use crate::table::{Bar, Row, Unit};

const FLOWS: u32 = 100_000;
/// Hand-offs in a batch: so few that no flow is forgotten before it asks again, and all are served in turn.
const BATCH: u32 = 1_000;
const ROUNDS: usize = 301;

/// The flow of the request of this number, if it has one.
type FlowOf = fn(u32) -> Option<u32>;

const OWN: FlowOf = Some;
const SAME: FlowOf = |_| Some(0);
const NONE: FlowOf = |_| None;

pub(crate) fn waiting() -> Vec<Row> {
    let runtime = current_thread();
    let _in_runtime = runtime.enter();
    let mut rows = hand_off();
    rows.push(bytes_per_flow());
    rows
}

fn hand_off() -> Vec<Row> {
    let alone = |flow_of: FlowOf| {
        let mut line = Line::new(flow_of);
        move || {
            let nanos = nanos_each(BATCH, || line.hand_over());
            line.fill();
            nanos
        }
    };
    let with_next = |flow_of: FlowOf| {
        let mut line = Line::new(flow_of);
        move || {
            nanos_each(BATCH, || {
                line.hand_over();
                line.fill();
            })
        }
    };
    let bar = Some(Bar::AtMost(1.3));
    let what = ("W13", "a hand-off, 100,000 flows wait");
    let rows = Contest::new(what, Unit::Nanos, alone(OWN))
        .against("100,000 requests of one flow", bar, alone(SAME))
        .against("as many without a flow", None, alone(NONE))
        .run(ROUNDS);
    let what = ("W13", "a hand-off, and its flow asks again");
    let with_next = Contest::new(what, Unit::Nanos, with_next(OWN))
        .against("100,000 requests of one flow", None, with_next(SAME))
        .against("as many without a flow", None, with_next(NONE))
        .run(ROUNDS);
    rows.into_iter().chain(with_next).collect()
}

fn bytes_per_flow() -> Row {
    let bytes_each = |flow_of: FlowOf| {
        let (bytes, _line) = bytes_kept_by(|| Line::new(flow_of));
        bytes as f64 / f64::from(FLOWS)
    };
    let (flows, one, none) = (bytes_each(OWN), bytes_each(SAME), bytes_each(NONE));
    let case =
        format!("heap per flow, above {one:.0} B for its request ({none:.0} B without a flow)");
    Row::figure(
        ("W13", &case),
        Unit::Bytes,
        flows - one,
        None,
        Some(Bar::AtMost(250.0)),
    )
}

/// Requests that wait for the only place, in the order of their grants.
struct Line {
    limiter: &'static Limiter,
    flow_of: FlowOf,
    held: Option<Permit>,
    waiting: VecDeque<Pin<Box<AcquireOwned>>>,
    /// The number of the next request to join.
    next: u32,
}

impl Line {
    fn new(flow_of: FlowOf) -> Self {
        let limiter = limiter(MaxConcurrency::new(1));
        let mut line = Self {
            limiter,
            flow_of,
            held: limiter.try_acquire().ok(),
            waiting: VecDeque::with_capacity(FLOWS as usize),
            next: 0,
        };
        line.fill();
        line
    }

    /// Lets requests join, until there are 100,000.
    fn fill(&mut self) {
        while self.waiting.len() < FLOWS as usize {
            let mut request = self.limiter.request();
            if let Some(flow) = (self.flow_of)(self.next) {
                request = request.flow(flow);
            }
            let mut acquire = Box::pin(request.acquire_owned());
            assert!(polled(&mut acquire).is_pending(), "the place is taken");
            self.waiting.push_back(acquire);
            self.next = (self.next + 1) % FLOWS;
        }
    }

    /// Releases the place, and takes the permit of the next request.
    fn hand_over(&mut self) {
        self.held = None;
        let mut next = self.waiting.pop_front().expect("a request that waits");
        match polled(&mut next) {
            Poll::Ready(permit) => self.held = Some(permit.expect("an open limiter")),
            Poll::Pending => panic!("the flows are served in the order of their requests"),
        }
    }
}

fn polled<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}
