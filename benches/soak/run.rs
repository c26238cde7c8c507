//! One run: how long it lasts, when it stops, and which servers were killed when.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) began: Instant,
    pub(crate) lasts: Duration,
    stopped: watch::Sender<bool>,
    /// The times of the kills, in seconds since the start, each with its part.
    kills: Mutex<Vec<(f64, &'static str)>>,
}

impl Run {
    pub(crate) fn begin(lasts: Duration) -> Self {
        Self {
            began: Instant::now(),
            lasts,
            stopped: watch::Sender::new(false),
            kills: Mutex::default(),
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub(crate) fn goes_on(&self) -> bool {
        !*self.stopped.borrow()
    }

    /// Waits, and returns whether the run goes on. It returns at once when the run stops.
    pub(crate) async fn pause(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.subscribe();
        timeout(time, stopped.wait_for(|stopped| *stopped))
            .await
            .is_err()
    }

    pub(crate) fn left(&self) -> Duration {
        self.lasts.saturating_sub(self.began.elapsed())
    }

    pub(crate) fn killed(&self, part: &'static str) {
        self.kills
            .lock()
            .unwrap()
            .push((self.began.elapsed().as_secs_f64(), part));
    }

    pub(crate) fn kills(&self) -> Vec<(f64, &'static str)> {
        self.kills.lock().unwrap().clone()
    }
}
