//! A request that carries its own call to the store.
//!
//! It found nobody before it, and no call under way. Whoever polls its future polls the call: no task is started for it, and none is
//! woken by the reply but the one that waits for it. If the request is answered otherwise, or given up, a [carrier](super::carrier) goes on
//! with the call.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::answer::TimedGrant;
use super::carried::{Carried, Leader};
use super::lock::{Locked, Manager};
use crate::core::refused::Refused;
use crate::core::schedule::Enqueued;

impl Manager {
    /// Polls the call for a request that leads, and then its answer.
    #[inline(never)]
    pub(super) fn poll_leader(
        self: &Arc<Self>,
        state: Locked<'_>,
        mut leader: Box<Leader>,
        cost: u64,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        drop(state);
        let id = leader.id;
        let Some(Carried { generation, mut call }) = leader.carried.take().or_else(|| self.begin_call(true)) else {
            return self.poll(id, cost, waker, granted);
        };
        match Pin::new(&mut call).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(answer) => {
                self.landed(generation, &answer, false);
                self.poll(id, cost, waker, granted)
            }
            Poll::Pending => {
                let mut state = self.lock();
                if !state.schedule.awaits_reply(generation) {
                    drop(state); // it was given up; the breaker has heard of it, or will
                    self.start_carrier_with(Some(Carried { generation, call }));
                    return self.poll(id, cost, waker, granted);
                }
                leader.carried = Some(Carried { generation, call });
                state.leader = Some(leader);
                self.poll_locked(state, id, cost, waker, granted)
            }
        }
    }

    /// A request that leads has its answer, or was given up.
    #[cold]
    pub(super) fn hand_over(self: &Arc<Self>, leader: Leader) {
        self.start_carrier_with(leader.carried);
    }
}
