//! Every order of events of two processes and a store: calls, replies, messages of turns, releases, timers, losses and deaths. Any
//! message may be slow, and any timer late: time may pass to any other timer first.
//!
//! The search is depth first. It runs a path of choices to its end, and then goes back to the last choice that it has not tried, by
//! running the path from the start. A state that it has seen before is not tried again. (States are compared by a hash of 64 bits of
//! their debug text, so two states may be taken for one, with a probability of about 10^-8 for a million states.)

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

use super::*;

/// What is tried.
#[derive(Debug)]
pub(super) struct Bounds {
    /// One limit: of places, or of units a second in a sliding log.
    pub(super) policy: &'static str,
    /// The requests of each process.
    pub(super) requests: [usize; 2],
    /// The most messages that are lost.
    pub(super) losses: usize,
    /// The most processes that die.
    pub(super) deaths: usize,
    /// How often time passes, to any timer, before the rest happens in order.
    pub(super) passes: usize,
    /// The most requests that are given up while they wait.
    pub(super) give_ups: usize,
    pub(super) prefetch: Option<PrefetchOptions>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Choice {
    /// This event happens.
    Happen(u64),
    /// This message is lost.
    Lose(u64),
    /// Time passes to this timer, which fires. Timers that were due before are late.
    Pass(u64),
    Die(usize),
    /// The request of this process that has waited longest is given up.
    GiveUp(usize),
}

/// The state of one path, and what of the [`Bounds`] is left.
pub(super) struct World {
    run: Simulation,
    losses: usize,
    deaths: usize,
    passes: usize,
    give_ups: usize,
}

/// How much a search has tried.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    /// Paths to their end, apart from those that met a state that was known.
    paths: usize,
}

impl World {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let mut run = Simulation::new(Setting {
            policy: bounds.policy.parse().unwrap(),
            processes: bounds.requests.len(),
            callers: 0,
            lost: 0,
            faults: false,
            failing: false,
            prefetch: bounds.prefetch,
            until: u64::MAX,
            seed: 1,
        })
        .unwrap();
        run.pending
            .retain(|_, event| !matches!(event, Event::Start(_)));
        for (process, requests) in bounds.requests.into_iter().enumerate() {
            run.processes[process].offset = 0;
            for _ in 0..requests {
                run.at(0, Event::Start(process));
            }
        }
        let Bounds {
            losses,
            deaths,
            passes,
            give_ups,
            ..
        } = *bounds;
        Self {
            run,
            losses,
            deaths,
            passes,
            give_ups,
        }
    }

    /// When this event is due.
    fn due(&self, sequence: u64) -> u64 {
        let mut events = self.run.events.iter();
        let Reverse((at, _)) = events
            .find(|Reverse((_, other))| *other == sequence)
            .expect("it is pending");
        *at
    }

    pub(super) fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        let mut timers = Vec::new();
        let mut asked = [false; 2];
        for (&sequence, event) in &self.run.pending {
            match event {
                // Requests of one process are alike.
                Event::Start(process) => {
                    if !std::mem::replace(&mut asked[*process], true) {
                        choices.push(Choice::Happen(sequence));
                    }
                }
                Event::Release(..) => choices.push(Choice::Happen(sequence)),
                Event::Arrive(..) | Event::Reply(..) | Event::Turn(..) => {
                    choices.push(Choice::Happen(sequence));
                    if self.losses > 0 {
                        choices.push(Choice::Lose(sequence));
                    }
                }
                Event::Wake(_) | Event::GiveUp(..) | Event::Heartbeat(_) | Event::Retry(_) => {
                    timers.push(Choice::Pass(sequence));
                }
                Event::Impatience(_) | Event::Die(_) | Event::Freeze(_) => unreachable!(),
            }
        }
        let is_over = choices.is_empty() && self.run.processes.iter().all(|p| p.waiting.is_empty());
        if self.passes > 0 && !is_over {
            choices.append(&mut timers);
        }
        if self.deaths > 0 {
            let alive = (0..2).filter(|process| self.run.processes[*process].alive);
            choices.extend(alive.map(Choice::Die));
        }
        if self.give_ups > 0 {
            let waits = |process: &usize| {
                let process = &self.run.processes[*process];
                process.alive && !process.waiting.is_empty()
            };
            choices.extend((0..2).filter(waits).map(Choice::GiveUp));
        }
        choices
    }

    pub(super) fn choose(&mut self, choice: Choice) {
        match choice {
            Choice::Happen(sequence) => self.happen(sequence),
            Choice::Lose(sequence) => {
                self.losses -= 1;
                self.run.pending.remove(&sequence);
            }
            Choice::Pass(sequence) => {
                self.passes -= 1;
                self.run.now = self.run.now.max(self.due(sequence));
                self.happen(sequence);
            }
            Choice::Die(process) => {
                self.deaths -= 1;
                self.run.happen(Event::Die(process));
            }
            Choice::GiveUp(process) => {
                self.give_ups -= 1;
                let (now, mut effects) = (self.run.moment(process), Effects::default());
                self.run.give_up(process, now, &mut effects);
                self.run.settle(process, now, effects);
                self.run.check();
            }
        }
        self.forget_what_does_nothing();
    }

    fn happen(&mut self, sequence: u64) {
        let event = self.run.pending.remove(&sequence).expect("it is pending");
        self.run.happen(event);
        self.run.check();
    }

    /// Removes timers that were set again, and events of dead processes.
    fn forget_what_does_nothing(&mut self) {
        let Simulation {
            processes,
            pending,
            events,
            ..
        } = &mut self.run;
        pending.retain(|sequence, event| {
            let Process {
                alive, wakes_at, ..
            } = processes[event.process()];
            match event {
                Event::Arrive(..) => true, // it has left its process
                Event::Wake(_) => {
                    let is_latest = |due: &Reverse<_>| due.0 == (wakes_at, *sequence);
                    alive && events.iter().any(is_latest)
                }
                _ => alive,
            }
        });
    }

    fn fingerprint(&self) -> u64 {
        struct Hashed(DefaultHasher);
        impl Write for Hashed {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.write(text.as_bytes());
                Ok(())
            }
        }
        let mut hashed = Hashed(DefaultHasher::new());
        let Self {
            run,
            losses,
            deaths,
            passes,
            give_ups,
        } = self;
        let now = run.now;
        write!(
            hashed,
            "{now} {losses} {deaths} {passes} {give_ups} {:?}",
            run.ledger
        )
        .unwrap();
        for process in &run.processes {
            let Process {
                schedule,
                alive,
                waiting,
                permits,
                granted,
                wakes_at,
                ..
            } = process;
            write!(
                hashed,
                "{schedule:?} {alive} {waiting:?} {permits:?} {granted} {wakes_at}"
            )
            .unwrap();
        }
        let mut pending: Vec<_> = run
            .pending
            .iter()
            .map(|(sequence, event)| {
                let is_timer = matches!(
                    event,
                    Event::GiveUp(..) | Event::Heartbeat(_) | Event::Retry(_)
                );
                let due = is_timer.then(|| self.due(*sequence));
                format!("{event:?} {due:?}")
            })
            .collect();
        pending.sort_unstable(); // the order in which they came about makes no difference
        write!(hashed, "{pending:?}").unwrap();
        hashed.0.finish()
    }

    /// The rest happens in order, and nothing is lost any more.
    fn finish(&mut self) {
        let until = self.run.now + 120_000 * MS;
        self.run.setting.until = until;
        self.run.run(|_| {});
    }

    /// No more was granted than the limit admits.
    pub(super) fn check(&mut self) {
        let Self { run, .. } = self;
        let limit = run.ledger.plan().limits()[0].capacity();
        if run.ledger.plan().holds_places() {
            assert!(run.most_places <= limit, "places");
            return;
        }
        run.grants.sort_unstable();
        let mut spans = run.grants.windows(limit as usize + 1);
        let is_long = |span: &[u64]| span[limit as usize] - span[0] >= 1_000 * MS;
        assert!(spans.all(is_long), "a rate");
    }

    /// Once the rest has happened, every request of a process that lives was granted, and all units come back.
    pub(super) fn check_end(&mut self) {
        self.finish();
        self.check();
        let processes = &self.run.processes;
        let starving = processes
            .iter()
            .filter(|process| process.alive && !process.waiting.is_empty());
        assert_eq!(starving.count(), 0, "a request is never granted");
        let question = Call::new(
            Scope {
                limiter: "simulated".into(),
                key: Arc::default(),
            },
            self.run.setting.policy.clone(),
            7,
        );
        let (reply, _) = self.run.ledger.call(self.run.store_time(), &question);
        let limit = self.run.ledger.plan().limits()[0].capacity();
        assert_eq!(reply.limits[0].remaining, limit, "a unit is lost");
    }
}

fn search(bounds: &Bounds) -> Found {
    let mut found = Found::default();
    let mut seen = HashSet::new();
    let mut paths: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(mut path) = paths.pop() {
        let mut world = World::new(bounds);
        for &choice in &path {
            let choice = world.choices()[usize::from(choice)];
            world.choose(choice);
        }
        loop {
            world.check();
            if !seen.insert(world.fingerprint()) {
                break;
            }
            let choices = world.choices();
            let Some(&first) = choices.first() else {
                found.paths += 1;
                world.check_end();
                break;
            };
            paths.extend((1..choices.len() as u8).map(|other| {
                let mut path = path.clone();
                path.push(other);
                path
            }));
            path.push(0);
            world.choose(first);
        }
    }
    found.states = seen.len();
    found
}

/// One place: each lease takes the turn of the other process.
const PLACE: &str = "1 concurrent ttl 400ms";
/// One unit a second.
const RATE: &str = "sliding log 1/s";

fn try_all(bounds: &[Bounds]) {
    for bounds in bounds {
        let found = search(bounds);
        println!("{bounds:?}: {found:?}");
        assert!(found.paths > 1);
    }
}

#[test]
fn places_and_units_are_never_over_none_is_lost_and_nobody_starves() {
    let bounds = |policy, requests, [losses, deaths, passes]: [usize; 3]| Bounds {
        policy,
        requests,
        losses,
        deaths,
        passes,
        give_ups: 0,
        prefetch: None,
    };
    try_all(&[
        bounds(PLACE, [2, 1], [0, 0, 0]),
        bounds(PLACE, [1, 1], [1, 0, 0]),
        bounds(PLACE, [1, 1], [0, 1, 0]),
        bounds(PLACE, [1, 1], [0, 0, 1]),
        bounds(RATE, [2, 1], [0, 0, 0]),
        bounds(RATE, [1, 1], [1, 1, 0]),
    ]);
}

/// As above, with bounds from `TOLLGATE_SEARCH`: losses, deaths and passes. See `scripts/search`.
#[test]
#[ignore = "takes minutes"]
fn within_wider_bounds() {
    let wanted = std::env::var("TOLLGATE_SEARCH").expect("losses, deaths and passes");
    let mut numbers = wanted.split(' ').map(|number| number.parse().unwrap());
    let [losses, deaths, passes] = std::array::from_fn(|_| numbers.next().unwrap());
    let bounds = |policy| Bounds {
        policy,
        requests: [2, 1],
        losses,
        deaths,
        passes,
        give_ups: 0,
        prefetch: None,
    };
    try_all(&[bounds(PLACE), bounds(RATE)]);
}
