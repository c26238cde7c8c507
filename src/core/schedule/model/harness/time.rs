//! Time: the driver, and the threads that are blocked.

use super::*;

impl Harness {
    /// When a blocked thread wakes, at the latest.
    pub(in super::super) fn next_alarm(&self) -> Moment {
        let waiting = self
            .tickets
            .iter()
            .filter(|(id, _)| !self.reference.answers.contains_key(id));
        waiting
            .filter_map(|(_, ticket)| ticket.sleeps_until)
            .min()
            .unwrap_or(Moment::NEVER)
    }

    /// A blocked thread that was woken and finds no answer does what is due, and sleeps until time matters next to it.
    pub(super) fn blocked_threads_look(&mut self) -> TestCaseResult {
        let woken = |ticket: &Ticket| ticket.sleeps_until.is_some() && ticket.alarm.is_woken();
        while let Some(id) = self
            .tickets
            .iter()
            .find(|(id, ticket)| woken(ticket) && self.answer(**id).is_none())
            .map(|(id, _)| *id)
        {
            self.tickets[&id].alarm.0.store(false, Ordering::Relaxed);
            self.poll(id)?;
            self.raw_input(Schedule::run_due);
            let ticket = self.tickets.get_mut(&id).unwrap();
            ticket.sleeps_until = Some(self.schedule.wake_of(ticket.waiter));
        }
        Ok(())
    }

    /// Time passes, and the driver (or the blocked thread that runs the timer) wakes when it matters next, or some time later.
    pub(super) fn pass(&mut self, nanos: u64, late: u64) -> TestCaseResult {
        let end = self.reference.now + nanos;
        if self.has_runtime && self.is_due() || self.next_alarm() <= self.moment() {
            self.wake_at((self.reference.now + late).min(end))?; // it is still late
        }
        loop {
            let wake = if self.has_runtime {
                self.schedule.next_wake()
            } else {
                self.next_alarm()
            };
            if wake > Moment::from_nanos(end) {
                break;
            }
            rules::the_timer_is_not_late(&self.reference, wake.nanos())?;
            self.reference.done_until = wake.nanos();
            if wake.nanos() + late > end {
                self.reference.now = end; // the next input comes before the timer
                return Ok(());
            }
            self.wake_at(wake.nanos() + late)?;
        }
        if self.has_runtime {
            rules::the_timer_is_not_late(&self.reference, end + 1)?;
        }
        self.reference.now = end;
        Ok(())
    }

    pub(super) fn wake_at(&mut self, now: u64) -> TestCaseResult {
        self.reference.now = now;
        let now = Moment::from_nanos(now);
        for ticket in self
            .tickets
            .values_mut()
            .filter(|ticket| ticket.sleeps_until.is_some_and(|until| until <= now))
        {
            ticket.alarm.0.store(true, Ordering::Relaxed);
        }
        self.run_due()
    }
}
