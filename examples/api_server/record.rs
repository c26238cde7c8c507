//! What was answered to a caller. Times are since the start of the load.

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
    /// What such an answer must have and this one has not.
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
    /// How long an answer told to wait, and whether the next request was allowed then.
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
        let of_span = || self.allowed().filter(|answer| answer.received - answer.sent < span);
        let [mut sent, mut received]: [Vec<_>; 2] =
            [of_span().map(|answer| answer.sent).collect(), of_span().map(|answer| answer.received).collect()];
        sent.sort_unstable();
        received.sort_unstable();
        // What was sent before a span begins was answered before it ends.
        let before = |times: &[Duration], at| times.partition_point(|time| *time < at);
        sent.iter().map(|begin| before(&received, *begin + span) - before(&sent, *begin)).max().unwrap_or(0)
    }
}
