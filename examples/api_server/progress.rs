//! The progress bar. Without a terminal it prints nothing.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use common::Human;
use indicatif::{ProgressBar, ProgressStyle};

use crate::record::Answer;

pub(crate) struct Progress {
    bar: ProgressBar,
    answers: AtomicUsize,
    allowed: AtomicUsize,
}

impl Progress {
    pub(crate) fn new(run: Duration) -> Self {
        let bar = ProgressBar::new(run.as_millis() as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:40.cyan} {msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            answers: AtomicUsize::new(0),
            allowed: AtomicUsize::new(0),
        }
    }

    pub(crate) fn count(&self, answer: &Answer) {
        self.answers.fetch_add(1, Relaxed);
        self.allowed.fetch_add(answer.is_allowed().into(), Relaxed);
    }

    pub(crate) fn show(&self, at: Duration) {
        self.bar.set_position(at.as_millis() as u64);
        let (answers, allowed) = (self.answers.load(Relaxed), self.allowed.load(Relaxed));
        self.bar.set_message(format!(
            "{}   {answers} requests, {allowed} allowed",
            Human(at)
        ));
    }

    /// Shows that the load is over.
    pub(crate) fn wait(&self) {
        self.bar
            .set_message("denied clients wait for the retry-after, and try again");
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
