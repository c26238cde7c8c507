//! One task with one timer, in each runtime, for the managers of many keys.
//!
//! A manager that serves one limiter has a [driver](super::driver) of its own. Those of a keyed limiter, of which there may be as
//! many as there are keys that somebody waits for, share a rota: in each runtime one task takes their turns when they are due.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::Manager;

/// Turns between two looks at whether others want the runtime's worker.
const BATCH: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Rota {
    shifts: Mutex<Vec<Shift>>,
}

/// What one runtime's task has to do.
#[derive(Debug)]
struct Shift {
    runtime: runtime::Id,
    bell: Arc<Notify>,
    members: HashMap<Member, (Weak<Manager>, Option<Due>)>,
    /// Who has a turn to come; each once, as with his membership.
    timeline: BTreeSet<(Due, Member)>,
    /// How many calls there were.
    calls: u64,
}

/// When a turn is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Now: the caller's clock may be another one than that of the runtime. First come, first served.
    Called(u64),
    At(Instant),
}

/// A manager, by its address: nobody else has it as long as a `Weak` to it is kept.
type Member = usize;

impl Rota {
    /// Has the runtime's task take the manager's turns; the first one is due.
    pub(crate) fn enlist(self: &Arc<Self>, manager: &Arc<Manager>, runtime: &Handle) {
        let member = Arc::as_ptr(manager) as Member;
        let mut shifts = self.lock();
        let found = shifts.iter().position(|shift| shift.runtime == runtime.id());
        let index = found.unwrap_or_else(|| {
            shifts.push(Shift {
                runtime: runtime.id(),
                bell: Arc::default(),
                members: HashMap::new(),
                timeline: BTreeSet::new(),
                calls: 0,
            });
            shifts.len() - 1
        });
        let shift = &mut shifts[index];
        shift.members.entry(member).or_insert_with(|| (Arc::downgrade(manager), None));
        shift.call(member);
        let bell = Arc::clone(&shift.bell);
        drop(shifts);
        if found.is_none() {
            // Outside the lock: a runtime that is shutting down drops the task, and with it its post, at once.
            let post = Post { rota: Arc::downgrade(self), runtime: runtime.id() };
            runtime.spawn(keep(post, bell));
        } else {
            bell.notify_waiters();
        }
    }

    /// Time matters sooner to the manager: its turn comes now, wherever its turns are taken.
    pub(crate) fn call(&self, manager: &Manager) {
        let member = std::ptr::from_ref(manager) as Member;
        for shift in self.lock().iter_mut() {
            if shift.call(member) {
                shift.bell.notify_waiters();
            }
        }
    }

    /// The manager is gone.
    pub(crate) fn dismiss(&self, manager: &Manager) {
        let member = std::ptr::from_ref(manager) as Member;
        for shift in self.lock().iter_mut() {
            if let Some((_, Some(due))) = shift.members.remove(&member) {
                shift.timeline.remove(&(due, member));
            }
        }
    }

    /// The next whose turn it is; or else when the next one's comes.
    fn next(&self, runtime: runtime::Id) -> Result<Arc<Manager>, Option<Instant>> {
        let mut shifts = self.lock();
        let Some(shift) = shifts.iter_mut().find(|shift| shift.runtime == runtime) else { return Err(None) };
        loop {
            match shift.timeline.first() {
                None => return Err(None),
                Some(&(Due::At(at), _)) if at > Instant::now() => return Err(Some(at)),
                Some(_) => {}
            }
            let Some((_, member)) = shift.timeline.pop_first() else { return Err(None) };
            let Entry::Occupied(mut found) = shift.members.entry(member) else { continue };
            let (manager, due) = found.get_mut();
            *due = None;
            match manager.upgrade() {
                Some(manager) => return Ok(manager),
                None => drop(found.remove()),
            }
        }
    }

    /// The manager's next turn comes then, unless it was called since its last one.
    fn plan(&self, runtime: runtime::Id, manager: &Arc<Manager>, at: Option<Instant>) {
        let member = Arc::as_ptr(manager) as Member;
        let mut shifts = self.lock();
        let Some(shift) = shifts.iter_mut().find(|shift| shift.runtime == runtime) else { return };
        if let (Some((_, due @ None)), Some(at)) = (shift.members.get_mut(&member), at) {
            *due = Some(Due::At(at));
            shift.timeline.insert((Due::At(at), member));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Shift>> {
        self.shifts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shift {
    /// It is the member's turn now. Tells whether it is one.
    fn call(&mut self, member: Member) -> bool {
        let Some((_, due)) = self.members.get_mut(&member) else { return false };
        if !matches!(due, Some(Due::Called(_))) {
            self.calls += 1;
            let called = Due::Called(self.calls);
            if let Some(planned) = due.replace(called) {
                self.timeline.remove(&(planned, member));
            }
            self.timeline.insert((called, member));
        }
        true
    }
}

impl Drop for Rota {
    fn drop(&mut self) {
        self.lock().iter().for_each(|shift| shift.bell.notify_waiters()); // the tasks find it gone
    }
}

async fn keep(post: Post, bell: Arc<Notify>) {
    loop {
        // Before the turns: a bell that is rung between the last one and the sleep would be missed.
        let rung = bell.notified();
        let mut turns = 0;
        let sleep_until = loop {
            let Some(rota) = post.rota.upgrade() else { return };
            let manager = match rota.next(post.runtime) {
                Ok(manager) => manager,
                Err(at) => break at,
            };
            // A waker that panics is its owner's affair; the others are served by the next turn.
            match catch_unwind(AssertUnwindSafe(|| manager.turn())) {
                Ok(at) => rota.plan(post.runtime, &manager, at),
                Err(panic) => {
                    std::mem::forget(panic); // whose drop may panic in turn
                    rota.plan(post.runtime, &manager, Some(Instant::now())); // after those who are late
                    turns = BATCH; // were there no end of panics, the runtime's worker would never come free
                }
            }
            drop((manager, rota));
            turns += 1;
            if turns >= BATCH {
                turns = 0;
                yield_now().await;
            }
        };
        match sleep_until {
            Some(at) => drop(timeout_at(at, rung).await),
            None => rung.await,
        }
    }
}

/// Says that a runtime's task is gone, however it went.
struct Post {
    rota: Weak<Rota>,
    runtime: runtime::Id,
}

impl Drop for Post {
    fn drop(&mut self) {
        let Some(rota) = self.rota.upgrade() else { return };
        let mut shifts = rota.lock();
        let Some(index) = shifts.iter().position(|shift| shift.runtime == self.runtime) else { return };
        let shift = shifts.swap_remove(index);
        drop(shifts);
        for manager in shift.members.values().filter_map(|(manager, _)| manager.upgrade()) {
            manager.driver_gone(self.runtime);
        }
    }
}
