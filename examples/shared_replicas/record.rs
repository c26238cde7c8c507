//! The record of what the processes reported. All times are since the start of the run, by the clock of this machine.

use std::collections::HashMap;
use std::time::Duration;

use crate::message::Message;

#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) fence: u64,
    /// When the holder got the permit, which is after the store granted it.
    pub(crate) at: Duration,
    pub(crate) waited: Duration,
    /// When its holder was about to release it, which is before the store has it back. `None`: the process still holds it, or held
    /// it when it was killed.
    pub(crate) ended: Option<Duration>,
    /// Whether its lease was reclaimed, at an unknown instant.
    pub(crate) lost: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) grants: Vec<Grant>,
    /// The index of each grant that has not ended, by its fence.
    open: HashMap<u64, usize>,
}

impl Process {
    pub(crate) fn held(&self) -> usize {
        self.open.len()
    }
}

#[derive(Debug)]
pub(crate) struct Killed {
    pub(crate) process: usize,
    /// An instant just before the kill.
    pub(crate) at: Duration,
}

#[derive(Debug)]
pub(crate) struct Run {
    start: Duration,
    pub(crate) processes: Vec<Process>,
    pub(crate) killed: Option<Killed>,
    /// When the run was over, or the last permit was released if that was later.
    pub(crate) end: Duration,
}

impl Run {
    pub(crate) fn new(start: Duration, processes: u16) -> Self {
        let processes = (0..processes).map(|_| Process::default()).collect();
        Self {
            start,
            processes,
            killed: None,
            end: Duration::ZERO,
        }
    }

    pub(crate) fn record(&mut self, index: usize, message: Message) {
        let process = &mut self.processes[index];
        match message {
            Message::Granted { fence, at, waited } => {
                let at = at.saturating_sub(self.start);
                process.open.insert(fence, process.grants.len());
                process.grants.push(Grant {
                    fence,
                    at,
                    waited,
                    ended: None,
                    lost: false,
                });
            }
            Message::Released { fence, at } => {
                if let Some(index) = process.open.remove(&fence) {
                    process.grants[index].ended = Some(at.saturating_sub(self.start));
                }
            }
            Message::Lost { fence } => {
                if let Some(index) = process.open.remove(&fence) {
                    process.grants[index].lost = true;
                }
            }
            Message::Ready | Message::Failed(_) => {}
        }
    }

    pub(crate) fn finish(&mut self, length: Duration) {
        self.end = self
            .grants()
            .filter_map(|(_, grant)| grant.ended)
            .fold(length, Duration::max);
    }

    /// Whether a process may end: it was killed, or holds no permit.
    pub(crate) fn may_end(&self, index: usize) -> bool {
        self.processes[index].held() == 0
            || self
                .killed
                .as_ref()
                .is_some_and(|killed| killed.process == index)
    }

    /// The process that holds the most permits, if any does.
    pub(crate) fn holds_most(&self) -> Option<usize> {
        let holders = (0..self.processes.len()).filter(|index| self.processes[*index].held() > 0);
        holders.max_by_key(|index| self.processes[*index].held())
    }

    /// All grants with the process of each.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (usize, &Grant)> {
        self.processes
            .iter()
            .enumerate()
            .flat_map(|(index, process)| process.grants.iter().map(move |grant| (index, grant)))
    }

    /// The end of the time in which the holder surely had the permit. If its lease was lost, that time is empty.
    pub(crate) fn held_until(&self, process: usize, grant: &Grant) -> Duration {
        if grant.lost {
            return grant.at;
        }
        let killed = self
            .killed
            .as_ref()
            .filter(|killed| killed.process == process);
        [grant.ended, killed.map(|killed| killed.at)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.end)
    }

    /// Each change of the number of permits that a process holds.
    pub(crate) fn changes(&self) -> Vec<(Duration, usize, i64)> {
        let mut changes = Vec::new();
        for (process, grant) in self.grants() {
            let end = self.held_until(process, grant);
            if grant.at < end {
                changes.extend([(grant.at, process, 1), (end, process, -1)]);
            }
        }
        changes.sort_unstable_by_key(|&(at, _, change)| (at, change)); // ends before beginnings
        changes
    }
}
