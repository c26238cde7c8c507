//! The progress bar, and failures printed above it.

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// How many failures are printed. Of the others only the number is printed.
const LINES: usize = 10;

#[derive(Debug, Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    failures: Arc<AtomicUsize>,
}

impl Progress {
    pub(crate) fn new(requests: usize) -> Self {
        let bar = ProgressBar::new(requests as u64);
        let template = "{bar:40.cyan} {human_pos} of {human_len}   {rate}   {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(
                style.with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
                    let _ = write!(out, "{:.0}/s", state.per_sec());
                }),
            );
        }
        Self {
            bar,
            failures: Arc::default(),
        }
    }

    pub(crate) fn done(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn failed(&self, what: impl Display) {
        if self.failures.fetch_add(1, Ordering::Relaxed) < LINES {
            self.bar.suspend(|| eprintln!("failed: {what}"));
        }
        self.done();
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
        let failures = self.failures.load(Ordering::Relaxed);
        if failures > LINES {
            eprintln!("… and {} more", failures - LINES);
        }
    }
}
