//! Requests that wait for the only place of a limiter, in the order of their grants. They are polled here, without tasks, so that
//! only the limiter's work is measured.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use crate::curve::Points;
use crate::heap::bytes_kept_by;
use crate::scatter::scatter;
use crate::timing::{median, nanos_each};

/// Waiters that join in all rounds of one size, where that is not fewer than [`LEAST_ROUNDS`].
const JOINED: usize = 1_000_000;
const LEAST_ROUNDS: usize = 5;
const MOST_ROUNDS: usize = 2_001;
/// The bytes of fewer waiters are mostly those of the limiter itself.
const MANY: usize = 100;

/// Nanoseconds and bytes for each operation, at each size.
#[derive(Default)]
pub(crate) struct Costs {
    /// Joining at the end, while the line grows up to the size.
    pub(crate) join: Points,
    /// Releasing the place, and taking the permit of the next waiter, for the first quarter of the line.
    pub(crate) hand_over: Points,
    /// Dropping a waiter, for a quarter of the line in random order.
    pub(crate) give_up: Points,
    pub(crate) bytes: Points,
}

/// A limiter with one place: its `request` of a number waits while the place is taken.
pub(crate) struct Line<F: Future, R> {
    request: R,
    held: Option<F::Output>,
    waiting: VecDeque<Option<Pin<Box<F>>>>,
    /// The number of the next request.
    next: u32,
}

impl<F: Future, R: Fn(u32) -> F> Line<F, R> {
    pub(crate) fn new(request: R) -> Self {
        let mut first = Box::pin(request(0));
        let Poll::Ready(held) = polled(&mut first) else {
            panic!("the place is free")
        };
        Self {
            request,
            held: Some(held),
            waiting: VecDeque::new(),
            next: 1,
        }
    }

    /// Measures lines of each size.
    pub(crate) fn costs(mut self, sizes: &[usize]) -> Costs {
        let mut costs = Costs::default();
        for &size in sizes {
            eprintln!("  {size}");
            self.waiting.reserve(size);
            let part = size.div_ceil(4);
            let mut samples = [const { Vec::new() }; 3];
            for _ in 0..(JOINED / size).clamp(LEAST_ROUNDS, MOST_ROUNDS) {
                let [join, hand_over, give_up] = &mut samples;
                join.push(nanos_each_of_few(size, || self.join()));
                hand_over.push(nanos_each_of_few(part, || self.hand_over()));
                self.join_up_to(size);
                let mut chosen = self.choose(part).into_iter();
                give_up.push(nanos_each_of_few(part, || drop(chosen.next())));
                self.waiting.clear();
            }
            let [join, hand_over, give_up] = samples.map(median);
            costs.join.push((size, join));
            costs.hand_over.push((size, hand_over));
            costs.give_up.push((size, give_up));
            if size >= MANY {
                let (bytes, ()) = bytes_kept_by(|| self.join_up_to(size));
                costs.bytes.push((size, bytes as f64 / size as f64));
                self.waiting.clear();
            }
        }
        costs
    }

    fn join(&mut self) {
        let mut waiter = Box::pin((self.request)(self.next));
        assert!(polled(&mut waiter).is_pending(), "the place is taken");
        self.waiting.push_back(Some(waiter));
        self.next = self.next.wrapping_add(1);
    }

    fn join_up_to(&mut self, size: usize) {
        while self.waiting.len() < size {
            self.join();
        }
    }

    /// Releases the place, and takes the permit of the next waiter.
    fn hand_over(&mut self) {
        self.held = None;
        let next = self.waiting.pop_front().flatten();
        match polled(&mut next.expect("a request that waits")) {
            Poll::Ready(permit) => self.held = Some(permit),
            Poll::Pending => panic!("requests are served in the order of their arrival"),
        }
    }

    /// Takes waiters from anywhere in the line, in random order. They give up when they are dropped.
    fn choose(&mut self, count: usize) -> Vec<Option<Pin<Box<F>>>> {
        let mut places: Vec<usize> = (0..self.waiting.len()).collect();
        for nth in 0..count {
            let other =
                nth + scatter(u64::from(self.next) + nth as u64) as usize % (places.len() - nth);
            places.swap(nth, other);
        }
        let chosen = places[..count]
            .iter()
            .map(|&place| self.waiting[place].take())
            .collect();
        self.waiting.retain(Option::is_some);
        chosen
    }
}

/// Nanoseconds for each of so few operations that reading the clock must not count.
fn nanos_each_of_few(operations: usize, operation: impl FnMut()) -> f64 {
    static OF_THE_CLOCK: LazyLock<f64> =
        LazyLock::new(|| median((0..10_001).map(|_| nanos_each(1, || ())).collect()));
    nanos_each(operations as u32, operation) - *OF_THE_CLOCK / operations as f64
}

fn polled<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}
