//! Caches text that most responses have in common.

use std::sync::OnceLock;

use http::HeaderValue;

use super::values::FieldValues;
use crate::policy::Limit;
use crate::snapshot::LimitStatus;

/// The fields of the policies that were asked for first. Most layers have one policy or few plans, and writing the text of one
/// policy takes as long as the rest of a response.
#[derive(Debug, Default)]
pub(in crate::http) struct KnownPolicies([OnceLock<KnownField>; 4]);

#[derive(Debug)]
struct KnownField {
    /// The limits of the policy, each with its capacity.
    limits: Vec<(Limit, u64)>,
    field: HeaderValue,
}

impl KnownPolicies {
    /// The field of these limits, if it is known. Otherwise the caller writes it.
    pub(super) fn field(
        &self,
        values: &FieldValues<'_>,
        write: impl Fn() -> Option<HeaderValue>,
    ) -> Option<&HeaderValue> {
        let limits = values.limits();
        if values.has_partition_key() || limits.is_empty() {
            return None;
        }
        self.0.iter().find_map(|known| {
            let known = match known.get() {
                Some(known) => known,
                None => {
                    let field = write()?;
                    let limits = limits
                        .iter()
                        .map(|status| (status.limit, status.capacity))
                        .collect();
                    known.get_or_init(|| KnownField { limits, field })
                }
            };
            let is_same = |(status, (limit, capacity)): (&LimitStatus, &(Limit, u64))| {
                status.capacity == *capacity && status.limit == *limit
            };
            let are_same =
                limits.len() == known.limits.len() && limits.iter().zip(&known.limits).all(is_same);
            are_same.then_some(&known.field)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Limiter;

    /// A fixed bug: if the first response had no limits, its field was kept for all later ones.
    #[test]
    fn the_first_four_policies_are_written_once() {
        let known = KnownPolicies::default();
        let of = |values: FieldValues<'_>| {
            known
                .field(&values, || values.policies("api").value())
                .map(std::ptr::from_ref)
        };
        assert_eq!(of(FieldValues::refused(&[])), None);
        let plans = ["1/s", "2/s", "3/s and 9 concurrent", "4/s", "5/s"]
            .map(|plan| Limiter::new(plan).unwrap().limits());
        let first = plans
            .each_ref()
            .map(|limits| of(FieldValues::granted(limits)));
        let again = plans
            .each_ref()
            .map(|limits| of(FieldValues::granted(limits)));
        assert_eq!(
            (first, first.map(|field| field.is_some())),
            (again, [true, true, true, true, false])
        );
        assert_eq!(
            of(FieldValues::granted(&plans[0]).partition_key(b"trial")),
            None
        );
    }
}
