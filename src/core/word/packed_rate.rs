//! A rate as one rising number, so that one word can hold its state and its present usage.
//!
//! A *line* says which value stands for a usage of zero: `origin` at the instant `base`, and `parts_per_nano` more each nanosecond.
//! A rate that has used some parts lies that far above its line, and admits a cost while it lies at most `tolerance` above. So
//!
//! - a pace (GCRA) is a line that rises at its rate: the value is its theoretical arrival time, shifted by a constant;
//! - a fixed window is a line that is level until the window ends.
//!
//! **The value never falls.** A refund does not lower it, but raises the line; so does all else that lowers the usage. This has two
//! uses. A word that holds the value does not return to a former one on another line. And a grant can be refunded by what is known
//! of it alone: see [`PackedRateHistory::refundable`](super::PackedRateHistory::refundable).

/// The largest value.
pub(crate) const MAX_VALUE: u64 = (1 << 53) - 1;

/// The most places of a concurrency that a word can stand for. All of them may come back while it is open, so they must fit into it
/// together, however few are left at its opening.
pub(crate) const MAX_PLACES: u64 = u32::MAX as u64;

/// A field of a [`PackedRate`]: a number, or one that other threads may replace.
pub(crate) trait LineField {
    fn get(&self) -> u64;
}

impl LineField for u64 {
    #[inline(always)]
    fn get(&self) -> u64 {
        *self
    }
}

/// How a rate admits: see the [module](self). All numbers but the times are in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PackedRate<F = u64> {
    /// Its first instant, in nanoseconds on the limiter's own time line.
    pub(crate) base: F,
    /// The value of the line at its base.
    pub(crate) origin: F,
    pub(crate) parts_per_nano: F,
    pub(crate) parts_per_unit: F,
    pub(crate) tolerance: F,
    /// Nanoseconds from its base to the last instant at which the line holds, and no value exceeds [`MAX_VALUE`].
    pub(crate) max_age: F,
}

/// Why a rate does not admit a cost. The instants are in nanoseconds on the limiter's own time line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateDenial {
    pub(crate) now: u64,
    /// The units that are left.
    pub(crate) remaining: u64,
    pub(crate) until: u64,
    pub(crate) reset_at: u64,
}

impl<F: LineField> PackedRate<F> {
    /// The value after `cost` units more, if the line holds `now` and admits them. Each number is read where it is needed, which takes
    /// fewer registers. If they are of two lines, because another thread replaces them, the result may be any, also by overflow.
    #[inline(always)]
    pub(crate) fn take(&self, value: u64, now: u64, cost: u64) -> Option<u64> {
        let age = now.wrapping_sub(self.base.get()); // before the base, it is above every maximum
        if age > self.max_age.get() || cost == 0 {
            return None;
        }
        let risen = age.wrapping_mul(self.parts_per_nano.get());
        let present = self.origin.get().wrapping_add(risen);
        let next = value
            .max(present)
            .checked_add(cost.checked_mul(self.parts_per_unit.get())?)?;
        (next <= present.wrapping_add(self.tolerance.get())).then_some(next)
    }

    /// The denial of `cost` units at `now`, as the rule of the limit makes it from the state. `None` if they are admitted or never will
    /// be, if the line does not hold `now`, or if a window is charged more than it has, so that later ones are, too. If the numbers
    /// are of two lines, the result may be any.
    #[inline(always)]
    pub(crate) fn denial(&self, value: u64, now: u64, cost: u64) -> Option<RateDenial> {
        let (base, last_age) = (self.base.get(), self.max_age.get());
        let age = now.wrapping_sub(base);
        if age > last_age || cost == 0 {
            return None;
        }
        let (per_nano, per_unit) = (self.parts_per_nano.get(), self.parts_per_unit.get());
        let tolerance = self.tolerance.get();
        let present = self.origin.get().wrapping_add(age.wrapping_mul(per_nano));
        let used = value.saturating_sub(present);
        let asked = cost
            .checked_mul(per_unit)
            .filter(|asked| *asked <= tolerance)?;
        let excess = used
            .checked_add(asked)?
            .checked_sub(tolerance)
            .filter(|excess| *excess > 0)?;
        let left = tolerance.saturating_sub(used);
        let after = |parts: u64| match per_nano {
            0 => base.checked_add(last_age)?.checked_add(1),
            1 => now.checked_add(parts),
            per_nano => now.checked_add(parts.div_ceil(per_nano)),
        };
        if per_nano == 0 && used > tolerance {
            return None;
        }
        Some(RateDenial {
            now,
            remaining: if left < per_unit {
                0
            } else {
                left.checked_div(per_unit)?
            },
            until: after(excess)?,
            reset_at: after(used)?, // some are used, because the cost alone would be admitted
        })
    }
}

/// What a word holds of a policy besides the number of grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordValue {
    /// The units left of a plain concurrency.
    Places { units: u64 },
    /// The value of a rate on its line.
    Rate { value: u64 },
}

/// A content, and the line of a rate.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WordContents {
    Places { units: u64 },
    Rate { line: PackedRate, value: u64 },
}
