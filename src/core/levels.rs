//! The waiters, by priority.

use crate::core::arena::List;
use crate::priority::Priority;

/// The waiters of one priority. Answered waiters are in no list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    pub(crate) waiting: List,
    /// The units that the waiters request.
    pub(crate) units: u64,
}

impl Level {
    const EMPTY: Self = Self { waiting: List::EMPTY, units: 0 };
}

/// All levels. Most queues have only that of [`Priority::NORMAL`], and each of a million keys may have a queue: the other levels
/// are allocated when one of them is used.
#[derive(Debug)]
pub(crate) struct Levels {
    normal: Level,
    others: Option<Box<[Level; Priority::LEVELS]>>,
}

impl Levels {
    pub(crate) const fn new() -> Self {
        Self { normal: Level::EMPTY, others: None }
    }

    #[inline(always)]
    pub(crate) fn get(&self, level: usize) -> Level {
        match &self.others {
            _ if level == usize::from(Priority::NORMAL.level()) => self.normal,
            Some(others) => others[level],
            None => Level::EMPTY,
        }
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, level: usize) -> &mut Level {
        if level == usize::from(Priority::NORMAL.level()) {
            return &mut self.normal;
        }
        &mut self.others.get_or_insert_with(|| Box::new([Level::EMPTY; Priority::LEVELS]))[level]
    }

    /// From the lowest to the highest, beginning with `from`.
    pub(crate) fn iter_from(&self, from: usize) -> impl DoubleEndedIterator<Item = Level> {
        (from..Priority::LEVELS).map(|level| self.get(level))
    }
}
