//! What a process owes to the store: returned leases, settlements of permits, and charges without a request.

use crate::exchange::Settlement;
use crate::policy::Limit;
use crate::strategy::Moment;

#[derive(Debug, Default)]
pub(super) struct Debts {
    /// The numbers of returned leases.
    pub(super) returns: Vec<u64>,
    /// Returns that may not have arrived, of leases that may still exist, each with the expiry of its lease.
    pub(super) unconfirmed: Vec<(u64, Moment)>,
    pub(super) settlements: Vec<Settlement>,
    /// The sum of the charges without a request.
    charge: Option<Settlement>,
    /// When settlements first failed; they are sent again and again. `None` once the store has answered.
    pub(super) unsent_since: Option<Moment>,
    /// How many resets are under way.
    resets: u32,
    /// Settlements that are sent only if these resets fail.
    withheld: Vec<Settlement>,
}

impl Debts {
    /// Whether nothing is owed to the store.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_unsent() && self.unconfirmed.is_empty()
    }

    /// Whether there is anything that was never sent.
    pub(super) fn has_unsent(&self) -> bool {
        !self.returns.is_empty() || !self.settlements.is_empty() || self.charge.is_some()
    }

    /// Adds a charge. Charges are one sum, however many come while the store does not answer.
    pub(super) fn add_charge(&mut self, charge: Settlement) {
        match &mut self.charge {
            Some(sum) => sum
                .actual
                .iter_mut()
                .zip(&charge.actual)
                .for_each(|(sum, units)| *sum = sum.saturating_add(*units)),
            none => *none = Some(charge),
        }
    }

    /// Forgets the returns of expired leases, which need no confirmation.
    pub(super) fn forget_expired(&mut self, now: Moment) {
        self.unconfirmed.retain(|(_, expires_at)| now < *expires_at);
    }

    /// Takes the returns out, the earliest first.
    pub(super) fn take_returns(&mut self, max: usize, expires_at: Moment) -> Vec<(u64, Moment)> {
        let mut returns = std::mem::take(&mut self.unconfirmed);
        returns.extend(self.returns.drain(..).map(|number| (number, expires_at)));
        self.unconfirmed = returns.split_off(returns.len().min(max));
        returns
    }

    /// Takes the settlements out, the earliest first, and the charge with them.
    pub(super) fn take_settlements(&mut self, max: usize) -> Vec<Settlement> {
        let charge = self.charge.take();
        let room = max.saturating_sub(usize::from(charge.is_some()));
        let count = self.settlements.len().min(room);
        let rest = self.settlements.split_off(count);
        let mut taken = std::mem::replace(&mut self.settlements, rest);
        taken.extend(charge);
        taken
    }

    /// Puts back settlements that were not sent.
    fn put_back(&mut self, settlements: Vec<Settlement>) {
        let (charges, settlements): (Vec<_>, Vec<_>) =
            settlements.into_iter().partition(Settlement::is_charge);
        self.settlements.splice(0..0, settlements);
        charges
            .into_iter()
            .for_each(|charge| self.add_charge(charge));
    }

    /// Keeps the settlements of a failed call. They are sent again, unless the store may have received them. After two minutes
    /// they are dropped, so that the key can be forgotten.
    pub(super) fn send_again(
        &mut self,
        now: Moment,
        settlements: Vec<Settlement>,
        may_have_run: bool,
    ) {
        /// Nanoseconds since the first failure. Later settlements are dropped with the rest.
        const LONGEST: u64 = 120_000_000_000;
        let since = self.unsent_since.unwrap_or(now);
        let again = !may_have_run && now.since(since) < LONGEST;
        self.unsent_since = again.then_some(since);
        match (again, self.resets) {
            (true, 0) => self.put_back(settlements),
            (true, _) => self.withheld.extend(settlements),
            (false, _) => {}
        }
    }

    /// Makes what is owed for the limits of a former policy owed for those of another one.
    pub(super) fn translate(&mut self, former: &[Limit], limits: &[Limit]) {
        translate(&mut self.settlements, former, limits);
        translate(&mut self.withheld, former, limits);
        translate(self.charge.as_mut_slice(), former, limits);
    }

    /// Begins a reset of the limits in the store: settlements are withheld until it has ended.
    pub(super) fn reset_begins(&mut self) {
        self.resets += 1;
        let unsent = self.take_settlements(usize::MAX);
        self.withheld.extend(unsent);
    }

    /// Drops the withheld settlements after a reset of the limits in the store: they concern the former limits.
    pub(super) fn note_reset(&mut self) {
        self.withheld.clear();
        self.unsent_since = None;
    }

    /// Ends a reset. Settlements that are still withheld are owed again, because all resets have failed.
    pub(super) fn reset_ended(&mut self) {
        self.resets -= 1;
        if self.resets == 0 {
            let withheld = std::mem::take(&mut self.withheld);
            self.put_back(withheld);
        }
    }
}

/// Gives each limit the costs of a former one that counts the same, or none.
pub(super) fn translate(settlements: &mut [Settlement], former: &[Limit], limits: &[Limit]) {
    let counts_same = |limit: &Limit| {
        let same = |former: &Limit| former.counts() == limit.counts();
        former.iter().position(same)
    };
    let from: Vec<_> = limits.iter().map(counts_same).collect();
    for Settlement {
        charged, actual, ..
    } in settlements
    {
        for costs in [charged, actual] {
            let cost = |index: &Option<usize>| index.map_or(0, |index| costs[index]);
            *costs = from.iter().map(cost).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const NOW: Moment = Moment::from_nanos(1_000);

    #[test]
    fn the_return_of_a_lease_is_owed_until_the_lease_expires() {
        let mut debts = Debts {
            unconfirmed: vec![(1, NOW)],
            ..Debts::default()
        };
        debts.forget_expired(NOW.minus(1));
        assert!(!debts.is_empty());
        debts.forget_expired(NOW);
        assert!(debts.is_empty());
    }

    #[test]
    fn settlements_are_sent_again_for_two_minutes() {
        let mut debts = Debts::default();
        let (two_minutes, of) = (120_000_000_000, || vec![Settlement::new(1, [1], [0])]);
        for (at, is_owed) in [(0, true), (two_minutes - 1, true), (two_minutes, false)] {
            debts.send_again(NOW.plus(at), of(), false);
            assert_eq!(
                debts.take_settlements(9).len(),
                usize::from(is_owed),
                "{at}"
            );
        }
        debts.send_again(NOW, of(), true);
        assert!(debts.is_empty(), "they may have arrived");
    }

    #[test]
    fn what_is_owed_under_a_former_policy_is_owed_to_the_limits_that_count_the_same() {
        let limits = |text: &str| text.parse::<Policy>().unwrap().limits().to_vec();
        let former = limits("1000/s and 50 tokens/min and 7 pages/s");
        let mut debts = Debts::default();
        debts.reset_begins();
        debts.send_again(NOW, vec![Settlement::new(1, [1, 2, 3], [4, 5, 6])], false);
        debts.settlements = vec![Settlement::new(2, [1, 2, 3], [7, 8, 9])];
        debts.add_charge(Settlement::charge([1, 2, 3]));
        debts.translate(&former, &limits("30 tokens/min and 5 files/s and 2000/s"));
        debts.reset_ended();
        assert_eq!(
            debts.take_settlements(9),
            [
                Settlement::new(1, [2, 0, 1], [5, 0, 4]),
                Settlement::new(2, [2, 0, 1], [8, 0, 7]),
                Settlement::charge([2, 0, 1]),
            ]
        );
    }
}
