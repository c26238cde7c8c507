//! Text that most answers have in common.

use std::sync::OnceLock;

use http::HeaderValue;

use super::text::Text;
use super::values::FieldValues;
use crate::policy::Limit;
use crate::snapshot::LimitStatus;

/// The field of the policies that were asked for first: most layers have one policy, and its text takes as long as the rest of an answer.
#[derive(Debug, Default)]
pub(in crate::http) struct KnownPolicies(OnceLock<Option<Known>>);

#[derive(Debug)]
struct Known {
    /// With their capacities.
    limits: Vec<(Limit, u64)>,
    field: HeaderValue,
}

impl KnownPolicies {
    /// The field of these limits, if it is known. Otherwise it is to be written.
    pub(super) fn field(&self, values: &FieldValues<'_>, write: impl FnOnce() -> Text) -> Option<&HeaderValue> {
        if values.key().is_some() {
            return None;
        }
        let limits = values.limits();
        let learn = || {
            let field = write().value()?;
            Some(Known { limits: limits.iter().map(|status| (status.limit, status.capacity)).collect(), field })
        };
        let known = self.0.get_or_init(learn).as_ref()?;
        let is_same = |(status, known): (&LimitStatus, &(Limit, u64))| status.capacity == known.1 && status.limit == known.0;
        (limits.len() == known.limits.len() && limits.iter().zip(&known.limits).all(is_same)).then_some(&known.field)
    }
}
