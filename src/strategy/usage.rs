//! The usage of a limit, and how another limit takes it over.

/// The usage of a limit in its own parts of a unit, so that nothing is rounded on the way to another limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) parts: u128,
    /// Not zero.
    pub(crate) parts_per_unit: u64,
}

impl Usage {
    pub(crate) fn of_units(units: u64) -> Self {
        Self {
            parts: units.into(),
            parts_per_unit: 1,
        }
    }

    /// The usage in units; a part of a unit counts as one unit.
    pub(crate) fn round_up(self) -> u64 {
        u64::try_from(self.parts.div_ceil(self.parts_per_unit.into())).unwrap_or(u64::MAX)
    }
}

/// The factor by which usage is multiplied when another limit takes it over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ratio {
    pub(crate) new: u64,
    /// Not zero.
    pub(crate) old: u64,
}

impl Ratio {
    /// The usage in the new limit, in parts of its unit. It is rounded up, so it is never less than in the old limit.
    pub(crate) fn of(self, usage: Usage, parts_per_unit: u64) -> u128 {
        let (new, old) = (u128::from(self.new), u128::from(self.old));
        multiply_divide(
            usage.parts,
            new * u128::from(parts_per_unit),
            old * u128::from(usage.parts_per_unit),
        )
    }

    /// The usage of the new limit in whole units.
    pub(crate) fn of_whole(self, usage: Usage) -> u64 {
        u64::try_from(self.of(usage, 1)).unwrap_or(u64::MAX)
    }
}

/// `parts / divisor`; it saturates. Most parts fit 64 bits, and dividing 64 bits takes a fraction of the time.
#[inline]
pub(crate) fn quotient(parts: u128, divisor: u64) -> u64 {
    match u64::try_from(parts) {
        Ok(parts) => parts / divisor,
        Err(_) => u64::try_from(parts / u128::from(divisor)).unwrap_or(u64::MAX),
    }
}

/// `factor × times / divisor`, rounded up. It saturates.
fn multiply_divide(factor: u128, times: u128, divisor: u128) -> u128 {
    if let Some(product) = factor.checked_mul(times) {
        return product.div_ceil(divisor);
    }
    // The product of two such numbers overflows. So it is summed up from the bits of one factor, the highest first, as a quotient
    // and a remainder.
    let add = |(quotient, rest): (u128, u128), (other, other_rest): (u128, u128)| {
        let carries = divisor - rest <= other_rest;
        let sum = quotient
            .saturating_add(other)
            .saturating_add(carries.into());
        let rest = if carries {
            other_rest - (divisor - rest)
        } else {
            rest + other_rest
        };
        (sum, rest)
    };
    let factor = (factor / divisor, factor % divisor);
    let mut product = (0, 0);
    for bit in (0..u128::BITS - times.leading_zeros()).rev() {
        product = add(product, product);
        if times >> bit & 1 == 1 {
            product = add(product, factor);
        }
    }
    product.0.saturating_add((product.1 > 0).into())
}

/// The age of a granted unit when a limit of another period takes it over. A longer period keeps the age. A shorter period scales
/// it down, so that the unit does not expire at once.
pub(crate) fn carried_age(age: u64, old_period: u64, new_period: u64) -> u64 {
    if new_period >= old_period {
        return age;
    }
    (u128::from(age) * u128::from(new_period) / u128::from(old_period)) as u64 // less than the new period
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::replay::cases(256))]

        #[test]
        fn a_product_that_does_not_fit_is_divided_as_one_that_does(factor in 0..u128::MAX >> 70, times in 0..1_u128 << 64, divisor in 1..u64::MAX) {
            let divisor = u128::from(divisor);
            let expected = (factor * times).div_ceil(divisor);
            prop_assert_eq!(multiply_divide(factor << 64, times, divisor << 64), expected); // the same, with both made larger
        }
    }

    #[test]
    fn the_largest_usage_is_carried_exactly_or_saturates() {
        let most = Usage {
            parts: u128::MAX,
            parts_per_unit: u64::MAX,
        };
        let same = Ratio {
            new: u64::MAX,
            old: u64::MAX,
        };
        assert_eq!(same.of(most, u64::MAX), u128::MAX);
        assert_eq!(same.of(most, 1), u128::MAX.div_ceil(u64::MAX.into()));
        assert_eq!(Ratio { new: 2, old: 1 }.of(most, u64::MAX), u128::MAX);
        assert_eq!(
            Ratio { new: 60, old: 3 }.of(
                Usage {
                    parts: 18,
                    parts_per_unit: 10
                },
                1
            ),
            36
        );
        assert_eq!(Ratio { new: 1, old: 3 }.of_whole(Usage::of_units(1)), 1);
    }
}
