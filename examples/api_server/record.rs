//! The answers that a caller got. Times are since the start of the load.

use std::time::Duration;

use reqwest::StatusCode;

pub(crate) struct Answer {
    pub(crate) sent: Duration,
    pub(crate) received: Duration,
    pub(crate) is_search: bool,
    pub(crate) status: StatusCode,
    /// The error code; empty if the request was allowed.
    pub(crate) code: String,
    pub(crate) retry_after: Option<Duration>,
    /// The fields about limits, as sent.
    pub(crate) fields: Vec<String>,
    /// What is missing from or wrong with this answer.
    pub(crate) fault: Option<String>,
}

impl Answer {
    pub(crate) fn is_allowed(&self) -> bool {
        self.status.is_success()
    }
}

#[derive(Default)]
pub(crate) struct Record {
    pub(crate) answers: Vec<Answer>,
    /// The retry-after of an answer, and whether the next request after it was allowed.
    pub(crate) retried: Option<(Duration, bool)>,
}

impl Record {
    pub(crate) fn allowed(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter(|answer| answer.is_allowed())
    }

    pub(crate) fn count(&self, counted: impl Fn(&Answer) -> bool) -> usize {
        self.answers.iter().filter(|answer| counted(answer)).count()
    }

    /// The most requests that were allowed within one span of this length. A request is allowed at some instant between those at
    /// which it was sent and answered: those count of which both are in the span.
    pub(crate) fn most_within(&self, span: Duration) -> usize {
        let of_span = || {
            self.allowed()
                .filter(|answer| answer.received - answer.sent < span)
        };
        let [mut sent, mut received]: [Vec<_>; 2] = [
            of_span().map(|answer| answer.sent).collect(),
            of_span().map(|answer| answer.received).collect(),
        ];
        sent.sort_unstable();
        received.sort_unstable();
        // All requests here take less than a span, so one that was sent before the span begins was answered before it ends. It is in
        // both counts, and the difference leaves it out.
        let before = |times: &[Duration], at| times.partition_point(|time| *time < at);
        sent.iter()
            .map(|begin| before(&received, *begin + span) - before(&sent, *begin))
            .max()
            .unwrap_or(0)
    }
}
