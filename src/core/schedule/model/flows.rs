//! How flows share, in the reference: from the list of grants and the list of waiters, as naively as it can be written down.

use std::collections::BTreeMap;

use super::reference::Waiting;

/// All weights divide it, so that shares are whole numbers.
pub(super) const WEIGHTS: [u64; 3] = [1, 2, 4];
const WHOLE: u64 = 4;

/// The flow of a request. Each name has a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) name: u8,
    pub(super) weight: u64,
    pub(super) parent: Option<(u8, u64)>,
}

/// One of those that share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Participant {
    /// All requests without a flow.
    Unnamed,
    Flow(u8),
    Parent(u8),
    /// A flow of a parent.
    Within(u8, u8),
}

/// The parent whose flows share, or else all others.
type Group = Option<u8>;

#[derive(Debug, Clone, Copy)]
struct Account {
    weight: u64,
    served: u64,
}

/// A flow that is new, or the requests without one before any flow is known.
const UNKNOWN: Account = Account {
    weight: 1,
    served: 0,
};

#[derive(Debug, Clone, Copy, Default)]
struct Time {
    now: u64,
    most: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct NaiveFlows {
    known: BTreeMap<Participant, Account>,
    times: BTreeMap<Group, Time>,
    /// The requests that are not passed.
    pub(super) reserved: Vec<usize>,
}

impl Participant {
    /// Those that a request counts for, with their weights: first the one that shares with all others.
    pub(super) fn all_of(flow: Option<Flow>) -> Vec<(Self, u64)> {
        match flow {
            None => vec![(Self::Unnamed, 1)],
            Some(Flow {
                name,
                weight,
                parent: None,
            }) => vec![(Self::Flow(name), weight)],
            Some(Flow {
                name,
                weight,
                parent: Some((parent, of_parent)),
            }) => vec![
                (Self::Parent(parent), of_parent),
                (Self::Within(parent, name), weight),
            ],
        }
    }

    pub(super) fn counts(self, flow: Option<Flow>) -> bool {
        Self::all_of(flow).iter().any(|(other, _)| *other == self)
    }

    fn group(self) -> Group {
        match self {
            Self::Within(parent, _) => Some(parent),
            _ => None,
        }
    }
}

impl NaiveFlows {
    pub(super) fn is_empty(&self) -> bool {
        self.known
            .keys()
            .all(|known| *known == Participant::Unnamed)
    }

    /// A request of this flow begins to wait, or is granted without a wait.
    pub(super) fn join(&mut self, flow: Option<Flow>, waiting: &[Waiting]) {
        for (participant, weight) in Participant::all_of(flow) {
            let now = self.times.entry(participant.group()).or_default().now;
            let account = self.known.entry(participant).or_insert(UNKNOWN);
            account.weight = weight;
            if !waiting
                .iter()
                .any(|waiting| participant.counts(waiting.cost.flow))
            {
                account.served = account.served.max(now);
            }
        }
    }

    /// A request is granted.
    pub(super) fn serve(&mut self, flow: Option<Flow>, cost: u64) {
        for (participant, _) in Participant::all_of(flow) {
            let account = self.known.entry(participant).or_insert(UNKNOWN);
            let time = self.times.entry(participant.group()).or_default();
            time.now = time.now.max(account.served);
            account.served += cost * WHOLE / account.weight;
            time.most = time.most.max(account.served);
        }
    }

    /// Nobody has a claim where nobody waits or holds anything, and a flow that has no claim, no request and no permit is forgotten.
    pub(super) fn tidy(
        &mut self,
        waiting: &[Waiting],
        in_flight: u64,
        held: impl Fn(Participant) -> u64,
    ) {
        let waits = |participant: Participant| {
            waiting
                .iter()
                .any(|waiting| participant.counts(waiting.cost.flow))
        };
        for (group, time) in &mut self.times {
            let is_idle = match group {
                None => waiting.is_empty() && in_flight == 0,
                Some(parent) => {
                    let parent = Participant::Parent(*parent);
                    !waits(parent) && held(parent) == 0
                }
            };
            if is_idle {
                time.now = time.most;
            }
        }
        let times = self.times.clone();
        let is_idle = |participant: Participant, account: &Account| {
            let now = times.get(&participant.group()).map_or(0, |time| time.now);
            !waits(participant) && held(participant) == 0 && account.served <= now
        };
        self.known.retain(|participant, account| {
            !matches!(participant, Participant::Within(..)) || !is_idle(*participant, account)
        });
        let within: Vec<Group> = self.known.keys().map(|known| known.group()).collect();
        self.known
            .retain(|participant, account| match *participant {
                Participant::Flow(_) => !is_idle(*participant, account),
                Participant::Parent(parent) => {
                    within.contains(&Some(parent)) || !is_idle(*participant, account)
                }
                _ => true,
            });
        self.times.retain(|group, _| {
            group.is_none_or(|parent| self.known.contains_key(&Participant::Parent(parent)))
        });
        if self.is_empty() {
            self.known.clear();
            self.times.clear();
            self.reserved.clear();
        }
        self.reserved
            .retain(|id| waiting.iter().any(|waiting| waiting.id == *id));
    }

    pub(super) fn weight(&self, participant: Participant) -> u64 {
        self.known
            .get(&participant)
            .map_or(1, |account| account.weight)
    }

    /// How long a participant is with so many requests.
    pub(super) fn length(&self, requests: usize, weight: u64) -> u64 {
        requests as u64 * WHOLE / weight
    }

    /// What a participant has: the least is served first.
    pub(super) fn share(
        &self,
        participant: Participant,
        held: impl Fn(Participant) -> u64,
    ) -> (u64, u64) {
        let account = self.known.get(&participant).copied().unwrap_or(UNKNOWN);
        (held(participant) * WHOLE / account.weight, account.served)
    }
}
