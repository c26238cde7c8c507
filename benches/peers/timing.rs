//! The time of an operation, and the median of several.

use std::time::Instant;

/// Nanoseconds for each operation. The operations do not wait.
pub(crate) fn nanos_each(operations: u32, mut operation: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..operations {
        operation();
    }
    since(start, operations)
}

pub(crate) fn since(start: Instant, operations: u32) -> f64 {
    start.elapsed().as_nanos() as f64 / f64::from(operations)
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
