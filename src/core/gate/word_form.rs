//! A gate whose state fits into a word: a plain concurrency, or one rate that is a [line](crate::core::word::packed_rate).

use crate::core::gate::Gate;
use crate::core::gate::limit_state::LimitState;
use crate::core::request::Grant;
use crate::core::word::packed_rate::{MAX_PLACES, WordContents, WordValue};
use crate::core::word::packed_rate_history::PackedRateHistory;
use crate::strategy::Moment;

impl Gate {
    /// Keeps a policy of one rate as a line if it fits, now and after each change of the policy. Then its grants need no record, and
    /// [`Gate::settle`] refunds each by the value that it has reached.
    pub(crate) fn prefer_line(mut self, now: Moment) -> Self {
        self.prefers_line = true;
        self.draw_line(now);
        self
    }

    /// Begins a line where one is preferred and fits; otherwise begins to record grants.
    pub(super) fn draw_line(&mut self, now: Moment) {
        let may_fit = self.prefers_line && self.limits.is_one() && !self.limits.counts_by_unit();
        let parts_per_nano = if may_fit {
            self.limits.first_mut().becomes_line(now)
        } else {
            None
        };
        self.line = parts_per_nano.map(|parts_per_nano| {
            Box::new(PackedRateHistory::new(parts_per_nano, now, self.fence))
        });
        if self.line.is_none() {
            self.limits
                .states_mut()
                .for_each(|state| state.records_grants(now));
        }
        self.note_word_form();
    }

    /// Updates `fits_word` after the limits, the units in flight, or the line may have changed.
    pub(super) fn note_word_form(&mut self) {
        let is_plain_concurrency = self.grants_bare_places() && self.limits.is_one();
        self.fits_word = is_plain_concurrency || self.line.is_some();
    }

    /// Whether the policy fits into a word.
    #[inline(always)]
    pub(crate) fn fits_word(&self) -> bool {
        self.fits_word
    }

    /// Updates the line after units were charged without a grant.
    pub(super) fn note_charge_on_line(&mut self) {
        if let Some(line) = &mut self.line {
            line.charged();
        }
    }

    /// The value that the latest grant has reached, if it was made now by a pace that is a line.
    #[inline(always)]
    pub(super) fn reached_on_line(&mut self, now: Moment) -> Option<u64> {
        let line = self.line.as_deref_mut()?;
        Some(line.reached(now, self.limits.first().state.used_on_line(now)?))
    }

    /// Refunds `cost` of a grant, as far as its line allows. `None` if the policy is no pace that is a line, or did not charge the
    /// grant.
    pub(super) fn refund_on_line(&mut self, now: Moment, grant: Grant, cost: u64) -> Option<()> {
        let line = self.line.as_deref_mut()?;
        if !self.limits.first().has_granted(grant.fence) {
            return None;
        }
        let reached = grant.claim.reached();
        let most = reached.map_or(0, |reached| line.refundable(now, grant.fence, reached));
        line.refund(self.limits.first_mut().refund_on_line(cost, most)?);
        Some(())
    }

    /// Passes places on from their holder to a waiter, if all places are in use: then no count changes. Returns the fence of the
    /// grant.
    #[inline(always)]
    pub(crate) fn pass_on(&mut self) -> Option<u64> {
        match &self.limits.first().state {
            LimitState::Places(places) if places.in_use == places.limit && self.fits_word => {
                self.fence += 1;
                Some(self.fence)
            }
            _ => None,
        }
    }

    /// What a word is to hold, at `now` or later, so that it can decide; `None` if the present numbers do not fit. The policy must
    /// [fit](Gate::fits_word).
    pub(crate) fn opening(&mut self, now: Moment) -> Option<WordContents> {
        if let LimitState::Places(places) = &self.limits.first().state {
            let units = places
                .limit
                .checked_sub(places.in_use)
                .filter(|_| places.limit <= MAX_PLACES)?;
            return Some(WordContents::Places { units });
        }
        let has_legacy = self.legacy().next().is_some();
        let slope = self.limits.first().state.slope(now)?;
        let (line, value) = self.line.as_mut()?.draw(slope, now, self.fence)?;
        // A word of a rate counts no places.
        (!has_legacy).then_some(WordContents::Rate { line, value })
    }

    /// Takes over what a word held since its [opening](Gate::opening).
    #[inline(always)]
    pub(crate) fn take_over(&mut self, content: WordValue, fence: u64) {
        self.fence = fence;
        match content {
            WordValue::Places { units } => {
                if let LimitState::Places(places) = self.limits.first_mut() {
                    places.in_use = places.limit - units;
                }
            }
            WordValue::Rate { value } => {
                if let Some((base, used)) =
                    self.line.as_mut().and_then(|line| line.take_over(value))
                {
                    self.limits.first_mut().set_used(base, used);
                }
            }
        }
    }
}
