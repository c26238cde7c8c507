//! The keys of a shared limiter that are paused. A key that nobody uses is forgotten, and its pause would be so, too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Duration, Instant};

use super::driven::Driven;

/// Keeps the managers until their pauses have ended. They hold the [link](super::store_link) that this is part of: [`end`](Self::end)
/// breaks the circle.
#[derive(Debug)]
pub(crate) struct PausedKeys(Mutex<Option<ByAddr>>);

/// Each manager with the end of its pause.
type ByAddr = HashMap<usize, (Arc<dyn Driven>, Instant)>;

impl PausedKeys {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }

    pub(super) fn keep<D: Driven>(&self, manager: &Arc<D>, duration: Duration) {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
        let now = Instant::now();
        let until = now + duration.min(CENTURY);
        let mut over = Vec::new(); // dropped outside the lock
        if let Some(managers) = self.lock().as_mut() {
            if managers.len() == managers.capacity() {
                over.extend(managers.extract_if(|_, (_, until)| *until <= now)); // before it would grow
            }
            let kept = || (Arc::clone(manager) as Arc<dyn Driven>, until);
            let (_, its_end) = managers.entry(Arc::as_ptr(manager) as usize).or_insert_with(kept);
            *its_end = until.max(*its_end);
        }
    }

    pub(super) fn forget<D: Driven>(&self, manager: &D) {
        let addr = std::ptr::from_ref(manager) as usize;
        let _resumed = self.lock().as_mut().and_then(|managers| managers.remove(&addr));
    }

    /// No handle of the limiter is left that could lead to a key.
    pub(crate) fn end(&self) {
        let _all = self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<ByAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
