//! The progress bar.

use std::time::Duration;

use common::Human;
use indicatif::{ProgressBar, ProgressStyle};
use tollgate::Policy;

use crate::check::places;
use crate::record::{Process, Run};

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new(run: Duration) -> Self {
        let bar = ProgressBar::new(run.as_millis() as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:40.cyan} {msg}") {
            bar.set_style(style);
        }
        Self { bar }
    }

    pub(crate) fn show(&self, at: Duration, run: &Run, policy: &Policy) {
        self.bar.set_position(at.as_millis() as u64);
        let held: usize = run.processes.iter().map(Process::held).sum();
        let places = places(policy)
            .map(|limit| format!(", {held} of {limit} places held"))
            .unwrap_or_default();
        self.bar.set_message(format!(
            "{}   {} grants{places}",
            Human(at),
            run.grants().count()
        ));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
