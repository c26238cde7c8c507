//! Renews the leases of a session in its store.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::at_store::AtStore;
use super::on_drop::OnDrop;
use crate::manager::parts::Manager;
use crate::manager::time::timekeeper;
use crate::store::background::background;

impl AtStore<'_> {
    /// Renews the leases in the background, where no task of the program keeps the thread; on a clock that a test has paused, in its
    /// runtime.
    #[cold]
    pub(super) fn start_heartbeat(self) {
        let here = Handle::try_current().ok();
        let runtime = if timekeeper::clock_is_real() {
            background().or(here)
        } else {
            here
        };
        if let Some(runtime) = runtime {
            runtime.spawn(renew(Arc::downgrade(self.0)));
        }
    }
}

/// Renews all leases of a manager three times within their TTL, until there are none.
async fn renew(manager: Weak<Manager>) {
    // The runtime was shut down, or the store's code panicked. The next grant begins another heartbeat.
    let dropped = OnDrop(|| {
        if let Some(manager) = manager.upgrade() {
            let store = manager.at_store();
            store.note_in_session(|step| step.session.renewals_stopped());
        }
    });
    let ttl = manager.upgrade().map(|manager| {
        let store = manager.at_store();
        store.note_in_session(|step| step.session.lease_ttl())
    });
    let Some(ttl) = ttl.map(Duration::from_nanos) else {
        return;
    };
    let (pause, retry) = (ttl / 3, ttl / 12);
    let mut next = pause;
    loop {
        sleep(next).await;
        let Some(manager) = manager.upgrade() else {
            return;
        };
        let store = manager.at_store();
        let renewals = store.note_in_session(|step| step.session.renewals(step.now));
        if renewals.is_empty() && store.note_in_session(|step| step.session.ends_renewals(step.now))
        {
            std::mem::forget(dropped); // another heartbeat may have begun by now
            return;
        }
        // Spread over half the pause, so that the store serves others between them.
        let between = pause / 2 / u32::try_from(renewals.len()).unwrap_or(u32::MAX).max(1);
        let several = renewals.len() > 1;
        next = if several { pause / 2 } else { pause };
        for renewal in renewals {
            let sent_at = store.note_in_session(|step| step.now);
            // Not longer than a third of the TTL: then there is time for another try.
            match timeout(pause, store.link().call(renewal.call.clone())).await {
                Ok(Ok(reply)) => manager.visit().change(|schedule, now, effects| {
                    schedule.change_session(now, effects, |step| {
                        step.renewed(sent_at, &renewal, &reply);
                    });
                }),
                Ok(Err(failed)) => {
                    store.note_in_session(|step| {
                        step.session.renewals_failed(&renewal.call, &failed.error);
                    });
                    next = retry;
                }
                Err(_) => next = retry,
            }
            if several {
                sleep(between).await;
            }
        }
    }
}
