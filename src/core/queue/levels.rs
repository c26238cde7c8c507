//! The waiters, by priority.

use crate::core::queue::waiting_line::WaitingLine;
use crate::priority::Priority;

/// A line for each priority. Most queues have only that of [`Priority::NORMAL`], and each of a million keys may have a queue: another
/// line is allocated when it is used.
#[derive(Debug)]
pub(crate) struct Levels {
    normal: WaitingLine,
    others: Option<Box<[Option<Box<WaitingLine>>; Priority::LEVELS]>>,
}

impl Levels {
    pub(crate) const fn new() -> Self {
        Self {
            normal: WaitingLine::EMPTY,
            others: None,
        }
    }

    /// `None` when it was never used.
    #[inline(always)]
    pub(crate) fn get(&self, level: usize) -> Option<&WaitingLine> {
        if level == usize::from(Priority::NORMAL.level()) {
            return Some(&self.normal);
        }
        self.others.as_ref()?[level].as_deref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, level: usize) -> &mut WaitingLine {
        if level == usize::from(Priority::NORMAL.level()) {
            return &mut self.normal;
        }
        self.others.get_or_insert_default()[level]
            .get_or_insert_with(|| Box::new(WaitingLine::EMPTY))
    }

    /// From the lowest to the highest, beginning with `from`.
    pub(crate) fn iter_from(&self, from: usize) -> impl DoubleEndedIterator<Item = &WaitingLine> {
        (from..Priority::LEVELS).filter_map(|level| self.get(level))
    }
}
