//! Requests: how they enter, and how they get their answers.

use super::*;
use crate::core::request::Claim;
use crate::core::word::packed_rate::{WordContents, WordValue};

impl Harness {
    pub(super) fn request(&mut self, newcomer: Waiting, blocking: bool) -> TestCaseResult {
        let Waiting {
            id,
            cost,
            priority,
            deadline,
        } = newcomer;
        self.requests += 1;
        let alarm = Arc::new(Alarm::default());
        let mut waker = Some(Waker::from(Arc::clone(&alarm)));
        let deadline = Moment::from_nanos(deadline);
        let details = cost.details();
        let costs = Costs::new(cost.plain, &details);
        let request = Request {
            costs,
            priority,
            deadline,
            caller: Location::caller(),
            blocking,
        };
        self.advance_if_due();
        let outcome = self.raw_input(|schedule, now, effects| {
            let behind = if schedule.next_wake() > now {
                schedule.enqueue_behind(&request, &mut waker)
            } else {
                None
            };
            behind.map_or_else(
                || schedule.request(now, &request, &mut waker, effects),
                |waiter| Ok(Enqueued::Queued(waiter)),
            )
        });
        let outcome = outcome.map_err(|refused| refused.error);
        let closed = self.reference.closed.then_some(AcquireError::Closed);
        let refusal = closed.or_else(|| self.reference.misfit(cost));
        if let Some(refusal) = refusal {
            prop_assert_eq!(outcome.err(), Some(refusal));
            return Ok(());
        }
        self.decide_what_was_due();
        self.reference.expect(cost.flow);
        if self.reference.is_blocked() {
            self.reference.block();
            self.reference.shed += 1;
            let retry_after = self.reference.overflow.penalty();
            prop_assert_eq!(outcome.err(), Some(AcquireError::Blocked { retry_after }));
            return Ok(());
        }
        let is_granted = matches!(outcome, Ok(Enqueued::Granted(_)));
        rules::a_request_that_can_be_granted_is_granted(&self.reference, newcomer, is_granted)?;
        let timed_out = matches!(outcome, Err(AcquireError::TimedOut { .. }));
        let is_admitted = is_granted
            && self.reference.goes_first(newcomer)
            && self.reference.may_admit(self.reference.now, cost);
        if !is_admitted {
            let may_wait = newcomer.deadline > self.reference.now;
            if may_wait && newcomer.deadline != u64::MAX {
                rules::a_request_is_refused_at_once_if_it_cannot_be_served_in_time(
                    &self.reference,
                    newcomer,
                    timed_out,
                )?;
            }
            let passes_by = !may_wait && self.reference.waiting.len() >= self.reference.max_queue;
            if timed_out
                && (may_wait || passes_by || !self.reference.could_be_served(newcomer, Bound::Most))
            {
                self.reference.timed_out += 1;
                return Ok(());
            }
        }
        if !is_admitted && !self.reference.make_room(newcomer) {
            match self.reference.overflow {
                Overflow::Block { penalty } => {
                    prop_assert_eq!(
                        outcome.err(),
                        Some(AcquireError::Blocked {
                            retry_after: penalty
                        })
                    );
                }
                _ => prop_assert!(
                    matches!(outcome, Err(AcquireError::QueueFull { .. })),
                    "the queue is full"
                ),
            }
            return Ok(());
        }
        self.reference.enter(newcomer);
        match outcome {
            Ok(Enqueued::Queued(waiter)) => {
                let sleeps_until = blocking.then_some(Moment::NEVER);
                alarm.0.store(blocking, Ordering::Relaxed); // the thread checks before it sleeps
                self.tickets.insert(
                    id,
                    Ticket {
                        waiter,
                        cost,
                        alarm,
                        sleeps_until,
                    },
                );
            }
            Ok(Enqueued::Granted(grant)) => {
                self.in_place = Some((id, AnswerKind::Granted));
                self.decide()?;
                self.take(id, grant, cost)?;
            }
            Err(error) => {
                self.in_place = Some((id, AnswerKind::Failed));
                self.decide()?;
                self.fail(id, &error)?;
            }
        }
        Ok(())
    }

    /// The owner of a request receives its permit.
    pub(super) fn take(&mut self, id: usize, grant: Grant, cost: Cost) -> TestCaseResult {
        prop_assert_eq!(self.reference.answers.remove(&id), Some(Ok(grant.fence)));
        self.held.push(Held { grant, cost });
        Ok(())
    }

    /// The owner of a request receives its refusal.
    pub(super) fn fail(&mut self, id: usize, error: &AcquireError) -> TestCaseResult {
        let expected = self.reference.answers.remove(&id);
        let is_expected = matches!(&expected, Some(Err(kind)) if std::mem::discriminant(kind) == std::mem::discriminant(error));
        prop_assert!(
            is_expected,
            "request {} failed with {:?}, not {:?}",
            id,
            error,
            expected
        );
        Ok(())
    }

    pub(super) fn try_acquire(&mut self, cost: Cost) -> TestCaseResult {
        self.advance_if_due();
        let details = cost.details();
        let costs = Costs::new(cost.plain, &details);
        let checked = self.schedule.outlook().check(self.moment(), costs);
        let answer = self.raw_input(|schedule, now, effects| {
            let in_place = match details {
                None => schedule.admit_in_place(now, cost.plain, Location::caller()),
                Some(_) => None,
            };
            match in_place {
                Some(Ok(grant)) => Ok(grant),
                Some(Err(_)) => Err(schedule.deny_in_place(now, cost.plain)),
                None => schedule.try_acquire(now, costs, Location::caller(), effects),
            }
        });
        prop_assert!(
            checked.is_allowed() == answer.is_ok(),
            "{:?}, but {:?}",
            checked,
            answer
        );
        let is_denied = self.denied(
            cost,
            answer.as_ref().err(),
            false,
            Some(checked.remaining()),
        )?;
        if !is_denied && let Ok(grant) = answer {
            prop_assert!(self.reference.waiting.is_empty(), "it overtook the waiters");
            rules::never_over(&self.reference, cost)?;
            prop_assert_eq!(self.reference.grant_at_once(cost), grant.fence);
            self.held.push(Held { grant, cost });
        }
        Ok(())
    }

    /// If the state fits a word, the word decides. It is given up before a request that must wait.
    pub(super) fn in_word(&mut self, requests: &[(u64, u64)]) -> TestCaseResult {
        if !self.schedule.fits_word() {
            return Ok(());
        }
        let Some((opening, mut fence)) = self.schedule.opening(self.moment()) else {
            return Ok(());
        };
        prop_assert!(!self.is_due() && self.reference.waiting.is_empty() && !self.reference.closed);
        let mut content = match opening {
            WordContents::Places { units } => WordValue::Places { units },
            WordContents::Rate { value, .. } => WordValue::Rate { value },
        };
        for &(units_asked, nanos) in requests {
            let cost = Cost::plain(units_asked);
            self.reference.now += nanos;
            let now = self.moment();
            let (taken, claim) = match (opening, content) {
                (_, WordValue::Places { units }) => (
                    units
                        .checked_sub(cost.plain)
                        .filter(|_| cost.plain > 0)
                        .map(|units| WordValue::Places { units }),
                    Claim::PLACE,
                ),
                (WordContents::Rate { line, .. }, WordValue::Rate { value }) => {
                    let taken = line.take(value, now.nanos(), cost.plain);
                    (
                        taken.map(|value| WordValue::Rate { value }),
                        Claim::of_rate(taken.unwrap_or(0)),
                    )
                }
                _ => unreachable!("the content is that of the opening"),
            };
            let holds = !matches!(opening, WordContents::Rate { line, .. } if now.nanos() > line.base + line.max_age);
            match taken {
                Some(taken) => {
                    rules::never_over(&self.reference, cost)?;
                    content = taken;
                    fence += 1;
                    prop_assert_eq!(self.reference.grant_at_once(cost), fence);
                    let at = if let WordContents::Rate { .. } = opening {
                        now
                    } else {
                        Moment::NEVER
                    };
                    self.held.push(Held {
                        grant: Grant { fence, claim, at },
                        cost,
                    });
                }
                None => {
                    prop_assert!(
                        cost.plain == 0 || !holds || !self.reference.must_admit(now.nanos(), cost),
                        "denied {cost:?}"
                    );
                    self.schedule.take_over(content, fence);
                    let denial = self.schedule.deny_behind_word(now, cost.plain);
                    prop_assert!(
                        denial.is_some()
                            || cost.plain == 0
                            || !holds
                            || cost.plain > self.reference.max_cost(),
                        "not denied {cost:?}"
                    );
                    if denial.is_some() {
                        self.denied(cost, denial.as_ref(), false, None)?;
                    }
                }
            }
        }
        self.schedule.take_over(content, fence);
        self.catch_up()
    }

    pub(super) fn ask(&mut self, cost: Cost, waits: bool) -> TestCaseResult {
        self.advance_if_due();
        let details = cost.details();
        let costs = Costs::new(cost.plain, &details);
        let answer = self.raw_input(|schedule, now, effects| {
            schedule.would_acquire(now, costs, waits, Location::caller(), effects)
        });
        if !self.denied(cost, answer.as_ref().err(), waits, None)? {
            prop_assert!(self.reference.waiting.is_empty() && answer.is_ok());
            rules::never_over(&self.reference, cost)?;
        }
        Ok(())
    }

    /// Checks a denial of a request that does not wait. Returns whether it is expected.
    fn denied(
        &mut self,
        cost: Cost,
        error: Option<&TryAcquireError>,
        waits: bool,
        remaining: Option<u64>,
    ) -> Result<bool, TestCaseError> {
        let closed = self.reference.closed.then_some(AcquireError::Closed);
        let refusal = closed.or_else(|| self.reference.misfit(cost));
        let refusal = refusal.map(TryAcquireError::without_decision);
        if refusal.is_some() {
            prop_assert_eq!(error, refusal.as_ref());
            return Ok(true);
        }
        self.decide_what_was_due();
        let (now, is_blocked) = (self.reference.now, self.reference.is_blocked());
        if is_blocked {
            self.reference.block();
        }
        let is_alone = self.reference.waiting.is_empty();
        let Some(error) = error else {
            prop_assert!(!is_blocked);
            return Ok(false);
        };
        prop_assert!(
            !(is_alone && self.reference.must_admit(now, cost)),
            "{:?}, although it is admitted",
            error
        );
        let TryAcquireError::Denied(decision) = error else {
            prop_assert!(false, "{:?}", error);
            return Ok(true);
        };
        if !waits {
            self.reference.denied += 1;
            if !is_blocked {
                self.reference.note_denial(cost);
            }
        }
        rules::all_or_none(self, cost, decision, remaining)?;
        if is_alone {
            rules::retry_after_is_exact(&self.reference, cost, decision.retry_after())?;
            rules::what_remains_would_be_admitted(&self.reference, decision)?;
        } else {
            rules::retry_after_is_exact_behind_others(
                &self.reference,
                cost,
                decision.retry_after(),
            )?;
            rules::nothing_remains_while_a_request_waits(decision.remaining())?;
        }
        Ok(true)
    }

    pub(super) fn poll(&mut self, id: usize) -> TestCaseResult {
        let ticket = &self.tickets[&id];
        let waker = Waker::from(Arc::clone(&ticket.alarm));
        let (waiter, cost) = (ticket.waiter, ticket.cost);
        // As in the manager, the owner reads its slot first; or it looks only under the lock, as if the answer came between the
        // two.
        let looks = id.is_multiple_of(2);
        let place = self
            .schedule
            .waiters
            .untaken
            .slots
            .answers
            .as_ref()
            .filter(|_| looks)
            .and_then(|answers| answers.take(waiter.slot()?));
        let answer = match place {
            Some(fence) => Ok(Ok(Grant::of_place(fence))),
            None => self.schedule.waiters.poll(waiter, &waker),
        };
        match answer {
            Err(was_woken) => {
                if was_woken {
                    drop(self.schedule.waiters.queue.replace_waker(waiter, waker));
                }
                prop_assert!(
                    !self.reference.answers.contains_key(&id),
                    "request {} has an answer",
                    id
                );
            }
            Ok(answer) => {
                self.tickets.remove(&id);
                match answer {
                    Ok(grant) => self.take(id, grant, cost)?,
                    Err(refused) => self.fail(id, &refused.error)?,
                }
            }
        }
        Ok(())
    }

    pub(super) fn abandon(&mut self, id: usize) {
        if self.is_due() {
            self.raw_input(Schedule::run_due); // otherwise the answer could not be matched to the request
            self.decide_what_was_due();
        }
        let Ticket { waiter, cost, .. } = self.tickets.remove(&id).unwrap();
        self.raw_input(|schedule, now, effects| schedule.abandon(now, waiter, cost.plain, effects));
        if let Some(Ok(fence)) = self.reference.answers.remove(&id) {
            self.reference.settle(fence, Settled::Nothing);
        }
        self.reference.leave(id);
    }
}
