//! What is measured during a run: memory, and what each part has granted. At the end, whether memory has grown.

use std::fmt;

use indicatif::BinaryBytes;

/// The numbers at one time.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Seconds since the start.
    pub(crate) at: f64,
    pub(crate) resident: u64,
    /// The bytes of the heap that are in use.
    pub(crate) live: u64,
    /// The grants of each part so far.
    pub(crate) granted: Vec<u64>,
}

/// How memory was after the first third of a run, and at its end: the median of a sixth of the samples each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    what: &'static str,
    early: u64,
    late: u64,
    most: u64,
}

impl Growth {
    /// At most this part of the early value is tolerated, in hundredths, and these bytes.
    fn of(
        what: &'static str,
        samples: &[Sample],
        value: impl Fn(&Sample) -> u64,
        (percent, bytes): (u64, u64),
    ) -> Self {
        let (third, sixth) = (samples.len() / 3, (samples.len() / 6).max(1));
        let median = |samples: &[Sample]| {
            let mut values: Vec<_> = samples.iter().map(&value).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        let early = median(samples.get(third..third + sixth).unwrap_or(samples));
        let late = median(&samples[samples.len() - sixth.min(samples.len())..]);
        Self {
            what,
            early,
            late,
            most: early + early * percent / 100 + bytes,
        }
    }

    pub(crate) const fn is_tolerated(&self) -> bool {
        self.late <= self.most
    }
}

/// The growth of the heap and of the resident memory. A little is tolerated: the accounts of the parts are on the heap, too, and are
/// larger the more is granted; and the allocator keeps free memory.
pub(crate) fn growth(samples: &[Sample]) -> [Growth; 2] {
    [
        Growth::of("heap", samples, |sample| sample.live, (10, 2 << 20)),
        Growth::of("resident", samples, |sample| sample.resident, (10, 4 << 20)),
    ]
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            early,
            late,
            most,
        } = *self;
        let [early, late, most] = [early, late, most].map(BinaryBytes);
        write!(
            f,
            "{what}: {early} after a third, {late} at the end, at most {most} tolerated"
        )
    }
}
