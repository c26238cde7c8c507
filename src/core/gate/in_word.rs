//! A gate whose state fits into a word: a plain concurrency, or one rate that is a [line](crate::core::line).

use super::Gate;
use crate::core::limit_state::LimitState;
use crate::core::line::{Content, MAX_PLACES, Opening};
use crate::core::track::Track;
use crate::strategy::Moment;

impl Gate {
    /// Keeps a policy of one rate as a line if it fits, now and after each change of the policy. Then its grants need no record, and
    /// [`Gate::settle`] refunds by what each has reached.
    pub(crate) fn prefer_line(mut self, now: Moment) -> Self {
        self.prefers_line = true;
        self.draw_line(now);
        self
    }

    /// Begins a line where one is preferred and fits; otherwise begins to record grants.
    pub(super) fn draw_line(&mut self, now: Moment) {
        let fits = self.prefers_line && self.rest.is_empty() && !self.counts_by_unit();
        let parts_per_nano = if fits { self.first.becomes_line(now) } else { None };
        self.track = parts_per_nano.map(|parts_per_nano| Box::new(Track::new(parts_per_nano, now, self.fence)));
        self.fits_word |= self.track.is_some();
        if self.track.is_none() {
            self.limit_states_mut().for_each(|state| state.records_grants(now));
        }
    }

    /// The value that the latest grant has reached, if it was made now by a pace that is a line.
    #[inline(always)]
    pub(super) fn reached(&mut self, now: Moment) -> Option<u64> {
        let track = self.track.as_deref_mut()?;
        Some(track.reached(now, self.first.used_on_line(now)?))
    }

    /// Refunds `cost` of the grant that has reached this value, as far as its line allows. `None` if the policy is no pace.
    pub(super) fn refund_on_line(&mut self, now: Moment, fence: u64, reached: Option<u64>, cost: u64) -> Option<()> {
        let track = self.track.as_deref_mut()?;
        let most = reached.map_or(0, |reached| track.refundable(now, fence, reached));
        track.refund(self.first.refund_on_line(cost, most)?);
        Some(())
    }

    /// Passes places on from their holder to a waiter, if all are out: then no unit moves. Returns the fence of the grant.
    #[inline(always)]
    pub(crate) fn pass_on(&mut self) -> Option<u64> {
        let LimitState::Places(rule, state, None) = &self.first else { return None };
        if state.in_use != rule.limit || !self.fits_word {
            return None;
        }
        self.fence += 1;
        Some(self.fence)
    }

    /// Whether the policy fits into a word.
    #[inline(always)]
    pub(crate) fn fits_word(&self) -> bool {
        self.fits_word
    }

    /// What a word is to hold, at `now` or later, so that it can decide; `None` if the present numbers do not fit. The policy must
    /// [fit](Gate::fits_word).
    pub(crate) fn opening(&mut self, now: Moment) -> Option<Opening> {
        if let LimitState::Places(rule, state, _) = &self.first {
            let units = rule.limit.checked_sub(state.in_use).filter(|_| rule.limit <= MAX_PLACES)?;
            return Some(Opening::Places { units });
        }
        let owes_places = self.owed().iter().any(|account| account.units > 0);
        let track = self.track.as_deref_mut()?;
        let slope = self.first.slope(now)?;
        let (line, value) = track.draw(slope, now, self.fence).filter(|_| !owes_places)?;
        Some(Opening::Rate { line, value })
    }

    /// Takes over what a word held since its [opening](Gate::opening).
    #[inline(always)]
    pub(crate) fn take_over(&mut self, content: Content, fence: u64) {
        self.fence = fence;
        match content {
            Content::Places { units } => {
                if let LimitState::Places(rule, state, _) = &mut self.first {
                    state.in_use = rule.limit - units;
                }
            }
            Content::Rate { value } => {
                if let Some((base, used)) = self.track.as_mut().and_then(|track| track.take_over(value)) {
                    self.first.set_used(base, used);
                }
            }
        }
    }
}
