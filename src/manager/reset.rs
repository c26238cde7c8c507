//! The limits of a key in a store are made as new.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::lock::Manager;
use crate::core::schedule::Schedule;
use crate::error::StoreError;
use crate::exchange::Scope;

impl Manager {
    /// What this process has charged before arrives before the reset, or never.
    pub(crate) async fn reset_in_store(self: &Arc<Self>, scope: Scope) -> Result<(), StoreError> {
        const OFTEN: Duration = Duration::from_millis(1);
        let Some(link) = self.store_link() else { unreachable!("only limits in a store are reset there") };
        let _ends = Reset(self);
        if let Some(generation) = self.with_schedule(|schedule, _, _| schedule.reset_begins()) {
            let arrives = async {
                while self.lock().schedule.awaits_reply(generation) {
                    sleep(OFTEN).await;
                }
            };
            let _given_up = timeout(link.deadline, arrives).await; // its carrier may be in a runtime that nothing polls
        }
        link.within_deadline(|| link.store.reset(scope), |()| Ok(())).await.map_err(|failed| failed.error)?;
        self.was_reset();
        Ok(())
    }
}

/// A reset under way. Where it ends without success, also because its future is dropped, what was withheld for it is owed again.
struct Reset<'a>(&'a Arc<Manager>);

impl Drop for Reset<'_> {
    fn drop(&mut self) {
        self.0.with_schedule(Schedule::reset_ended);
    }
}
