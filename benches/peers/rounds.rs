//! Contestants that take turns in rounds.

use crate::table::{Bar, Row, Unit};
pub(crate) use crate::timing::{median, nanos_each, since};

type Batch<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// Tollgate and its peers in one case of a workload. A batch returns its figure in the unit of the contest.
pub(crate) struct Contest<'a> {
    what: (&'a str, &'a str),
    unit: Unit,
    ours: Batch<'a>,
    peers: Vec<(&'a str, Option<Bar>, Batch<'a>)>,
}

impl<'a> Contest<'a> {
    pub(crate) fn new(
        what: (&'a str, &'a str),
        unit: Unit,
        ours: impl FnMut() -> f64 + 'a,
    ) -> Self {
        Self {
            what,
            unit,
            ours: Box::new(ours),
            peers: Vec::new(),
        }
    }

    pub(crate) fn against(
        mut self,
        peer: &'a str,
        bar: Option<Bar>,
        batch: impl FnMut() -> f64 + 'a,
    ) -> Self {
        self.peers.push((peer, bar, Box::new(batch)));
        self
    }

    pub(crate) fn run(mut self, rounds: usize) -> Vec<Row> {
        self.round(0); // warms up
        let rounds: Vec<Vec<f64>> = (0..rounds).map(|round| self.round(round)).collect();
        let median_of = |figure: &dyn Fn(&[f64]) -> f64| {
            median(rounds.iter().map(|figures| figure(figures)).collect())
        };
        let ours = median_of(&|figures| figures[0]);
        let row = |(index, (peer, bar, _)): (usize, &(&str, Option<Bar>, Batch<'_>))| {
            let theirs = median_of(&|figures| figures[index + 1]);
            let ratio = median_of(&|figures| figures[0] / figures[index + 1]);
            Row::against(self.what, self.unit, ours, (peer, theirs), ratio, *bar)
        };
        self.peers.iter().enumerate().map(row).collect()
    }

    /// Runs one batch of each contestant. The order rotates, so that no contestant always runs after the same other one.
    fn round(&mut self, round: usize) -> Vec<f64> {
        let mut batches: Vec<&mut Batch<'a>> = std::iter::once(&mut self.ours)
            .chain(self.peers.iter_mut().map(|p| &mut p.2))
            .collect();
        let mut figures = vec![0.0; batches.len()];
        for turn in 0..batches.len() {
            let index = (round + turn) % batches.len();
            figures[index] = batches[index]();
        }
        figures
    }
}

/// A batch of operations, each with the next key of a sequence that is repeated.
pub(crate) fn batch_of(
    size: u32,
    keys: &[u64],
    mut operation: impl FnMut(&u64),
) -> impl FnMut() -> f64 {
    let mut keys = keys.iter().cycle();
    move || nanos_each(size, || operation(keys.next().expect("there are keys")))
}
