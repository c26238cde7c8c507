//! The waiters, by priority.

use crate::core::waiting_line::WaitingLine;
use crate::priority::Priority;

/// The waiters of one priority.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) line: WaitingLine,
    /// The units that the waiters request.
    pub(crate) units: u64,
}

impl Level {
    const EMPTY: Self = Self { line: WaitingLine::EMPTY, units: 0 };
}

/// All levels. Most queues have only that of [`Priority::NORMAL`], and each of a million keys may have a queue: another level is
/// allocated when it is used.
#[derive(Debug)]
pub(crate) struct Levels {
    normal: Level,
    others: Option<Box<[Option<Box<Level>>; Priority::LEVELS]>>,
}

impl Levels {
    pub(crate) const fn new() -> Self {
        Self { normal: Level::EMPTY, others: None }
    }

    /// `None` when it was never used.
    #[inline(always)]
    pub(crate) fn get(&self, level: usize) -> Option<&Level> {
        if level == usize::from(Priority::NORMAL.level()) {
            return Some(&self.normal);
        }
        self.others.as_ref()?[level].as_deref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, level: usize) -> &mut Level {
        if level == usize::from(Priority::NORMAL.level()) {
            return &mut self.normal;
        }
        self.others.get_or_insert_default()[level].get_or_insert_with(|| Box::new(Level::EMPTY))
    }

    /// From the lowest to the highest, beginning with `from`.
    pub(crate) fn iter_from(&self, from: usize) -> impl DoubleEndedIterator<Item = &Level> {
        (from..Priority::LEVELS).filter_map(|level| self.get(level))
    }
}
