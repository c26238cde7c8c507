//! A gate whose state fits into a word: a plain concurrency, or one rate that is a [line](crate::core::word::packed_rate).

use super::limits::Limits;
use crate::core::gate::limit_state::LimitState;
use crate::core::word::packed_rate::{MAX_PLACES, WordContents, WordValue};
use crate::core::word::packed_rate_history::PackedRateHistory;
use crate::strategy::Moment;

/// Whether the limits fit into a word, and the line of the one rate that does.
#[derive(Debug)]
pub(super) struct WordForm {
    /// Whether the state fits into a word, apart from its present numbers. It follows from the plan.
    fits: bool,
    /// Whether a policy of one rate is to be a line.
    prefers_line: bool,
    /// The line of the one rate, where it is one.
    track: Option<Box<PackedRateHistory>>,
}

impl WordForm {
    /// `fits`: whether the limits are a plain concurrency that fits.
    pub(super) const fn new(fits: bool) -> Self {
        Self {
            fits,
            prefers_line: false,
            track: None,
        }
    }

    #[inline(always)]
    pub(super) fn fits(&self) -> bool {
        self.fits
    }

    pub(super) fn set_fits(&mut self, fits: bool) {
        self.fits = fits;
    }

    /// Keeps a policy of one rate as a line if it fits, now and after each change of the policy.
    pub(super) fn prefer_line(&mut self, limits: &mut Limits, now: Moment, fence: u64) {
        self.prefers_line = true;
        self.draw_line(limits, now, fence);
    }

    /// Begins a line where one is preferred and fits; otherwise begins to record grants.
    pub(super) fn draw_line(&mut self, limits: &mut Limits, now: Moment, fence: u64) {
        let fits = self.prefers_line && limits.is_one() && !limits.counts_by_unit();
        let parts_per_nano = if fits {
            limits.first_mut().becomes_line(now)
        } else {
            None
        };
        self.track = parts_per_nano
            .map(|parts_per_nano| Box::new(PackedRateHistory::new(parts_per_nano, now, fence)));
        self.fits |= self.track.is_some();
        if self.track.is_none() {
            limits.record_grants(now);
        }
    }

    /// Goes on from the form under a former plan. Where the limits are the `same`, the line stays.
    pub(super) fn go_on_from(
        &mut self,
        former: Self,
        same: bool,
        limits: &mut Limits,
        now: Moment,
        fence: u64,
    ) {
        self.prefers_line = former.prefers_line;
        if former.prefers_line && same {
            self.track = former.track;
            self.fits |= self.track.is_some();
        } else {
            self.draw_line(limits, now, fence);
        }
    }

    /// Units were charged without a grant.
    pub(super) fn charged(&mut self) {
        if let Some(track) = &mut self.track {
            track.charged();
        }
    }

    /// The value that the latest grant has reached, if it was made now by a pace that is a line.
    #[inline(always)]
    pub(super) fn reached(&mut self, limits: &Limits, now: Moment) -> Option<u64> {
        let track = self.track.as_deref_mut()?;
        Some(track.reached(now, limits.first().used_on_line(now)?))
    }

    /// Refunds `cost` of the grant that has reached this value, as far as its line allows. `None` if the policy is no pace.
    pub(super) fn refund(
        &mut self,
        limits: &mut Limits,
        now: Moment,
        fence: u64,
        reached: Option<u64>,
        cost: u64,
    ) -> Option<()> {
        let track = self.track.as_deref_mut()?;
        let most = reached.map_or(0, |reached| track.refundable(now, fence, reached));
        track.refund(limits.first_mut().refund_on_line(cost, most)?);
        Some(())
    }

    /// Whether the word of a plain concurrency has no unit left.
    #[inline(always)]
    pub(super) fn has_all_places_out(&self, limits: &Limits) -> bool {
        let LimitState::Places(places) = limits.first() else {
            return false;
        };
        places.in_use == places.limit && self.fits
    }

    /// What a word is to hold, at `now` or later, so that it can decide; `None` if the present numbers do not fit. `owes_places`: places
    /// are in flight that no limit counts.
    pub(super) fn opening(
        &mut self,
        limits: &Limits,
        now: Moment,
        fence: u64,
        owes_places: bool,
    ) -> Option<WordContents> {
        if let LimitState::Places(places) = limits.first() {
            let units = places
                .limit
                .checked_sub(places.in_use)
                .filter(|_| places.limit <= MAX_PLACES)?;
            return Some(WordContents::Places { units });
        }
        let track = self.track.as_deref_mut()?;
        let slope = limits.first().slope(now)?;
        let (line, value) = track.draw(slope, now, fence).filter(|_| !owes_places)?;
        Some(WordContents::Rate { line, value })
    }

    /// Takes over what a word held since its [opening](WordForm::opening).
    #[inline(always)]
    pub(super) fn take_over(&mut self, limits: &mut Limits, content: WordValue) {
        match content {
            WordValue::Places { units } => {
                if let LimitState::Places(places) = limits.first_mut() {
                    places.in_use = places.limit - units;
                }
            }
            WordValue::Rate { value } => {
                if let Some((base, used)) =
                    self.track.as_mut().and_then(|track| track.take_over(value))
                {
                    limits.first_mut().set_used(base, used);
                }
            }
        }
    }
}
