//! The table that is printed: Markdown whose columns are also aligned in a terminal.

use std::fmt;

use crate::gaps::Gaps;

/// The target for a ratio, or for a figure of tollgate's.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    pub(crate) fn value(self) -> f64 {
        match self {
            Self::AtMost(bar) | Self::AtLeast(bar) => bar,
        }
    }

    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtMost(bar) => figure <= bar,
            Self::AtLeast(bar) => figure >= bar,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bar) => write!(f, "≤ {bar}"),
            Self::AtLeast(bar) => write!(f, "≥ {bar}"),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// Nanoseconds for each operation.
    Nanos,
    /// Microseconds.
    Micros,
    /// Million operations a second.
    Millions,
    Bytes,
    CpuSeconds,
    Percent,
    /// A number without a unit, with this number of decimals.
    Plain(usize),
}

impl Unit {
    fn show(self, figure: f64) -> String {
        match self {
            Self::Nanos => format!("{figure:.1} ns"),
            Self::Micros => format!("{figure:.2} µs"),
            Self::Millions if figure < 0.1 => format!("{:.2} k/s", 1_000.0 * figure),
            Self::Millions => format!("{figure:.2} M/s"),
            Self::Bytes => format!("{figure:.0} B"),
            Self::CpuSeconds => format!("{figure:.3} s CPU"),
            Self::Percent => format!("{figure:.3} %"),
            Self::Plain(decimals) => format!("{figure:.decimals$}"),
        }
    }
}

/// One line of the table.
pub(crate) struct Row {
    cells: [String; 7],
    pub(crate) proportion: Option<Proportion>,
    pub(crate) gaps: Option<Gaps>,
}

/// The ratio of tollgate to a peer, for the drawing. In all units less is better.
pub(crate) struct Proportion {
    pub(crate) workload: String,
    pub(crate) case: String,
    pub(crate) peer: String,
    pub(crate) ratio: f64,
    pub(crate) bar: Option<f64>,
}

impl Row {
    /// Tollgate's figure and a peer's; the bar is for their ratio.
    pub(crate) fn against(
        what: (&str, &str),
        unit: Unit,
        ours: f64,
        peer: (&str, f64),
        ratio: f64,
        bar: Option<Bar>,
    ) -> Self {
        let theirs = format!("{}: {}", peer.0, unit.show(peer.1));
        let less_is_better = |ratio: f64| {
            if matches!(unit, Unit::Millions) {
                1.0 / ratio
            } else {
                ratio
            }
        };
        let proportion = Proportion::new(
            what,
            peer.0,
            less_is_better(ratio),
            bar.map(|bar| less_is_better(bar.value())),
        );
        Self {
            proportion: Some(proportion),
            ..Self::new(
                what,
                unit.show(ours),
                theirs,
                format!("{ratio:.2}"),
                bar,
                ratio,
            )
        }
    }

    /// Tollgate's figure, alone or next to a peer's; the bar is for tollgate's.
    pub(crate) fn figure(
        what: (&str, &str),
        unit: Unit,
        ours: f64,
        peer: Option<(&str, f64)>,
        bar: Option<Bar>,
    ) -> Self {
        let theirs = peer.map_or_else(String::new, |(name, figure)| {
            format!("{name}: {}", unit.show(figure))
        });
        let of_bytes = peer.filter(|_| matches!(unit, Unit::Bytes));
        let proportion = of_bytes.map(|(name, figure)| {
            Proportion::new(
                what,
                name,
                ours / figure,
                bar.map(|bar| bar.value() / figure),
            )
        });
        Self {
            proportion,
            ..Self::new(what, unit.show(ours), theirs, String::new(), bar, ours)
        }
    }

    fn new(
        (workload, case): (&str, &str),
        ours: String,
        theirs: String,
        ratio: String,
        bar: Option<Bar>,
        judged: f64,
    ) -> Self {
        let verdict = bar.map_or("", |bar| if bar.is_met(judged) { "ok" } else { "MISS" });
        let bar = bar.map_or_else(String::new, |bar| bar.to_string());
        let cells = [
            workload.to_owned(),
            case.to_owned(),
            ours,
            theirs,
            ratio,
            bar,
            verdict.to_owned(),
        ];
        Self {
            cells,
            proportion: None,
            gaps: None,
        }
    }

    /// Adds these gaps to the drawing.
    pub(crate) fn drawn(self, gaps: Gaps) -> Self {
        Self {
            gaps: Some(gaps),
            ..self
        }
    }
}

impl Proportion {
    fn new((workload, case): (&str, &str), peer: &str, ratio: f64, bar: Option<f64>) -> Self {
        Self {
            workload: workload.to_owned(),
            case: case.to_owned(),
            peer: peer.to_owned(),
            ratio,
            bar,
        }
    }
}

pub(crate) fn print(rows: &[Row]) {
    let head = ["", "case", "tollgate", "peer", "ratio", "bar", ""].map(str::to_owned);
    let lines = || std::iter::once(&head).chain(rows.iter().map(|row| &row.cells));
    let widths: [usize; 7] = std::array::from_fn(|i| {
        lines()
            .map(|cells| cells[i].chars().count())
            .max()
            .unwrap_or(0)
    });
    for (number, cells) in lines().enumerate() {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        println!("| {} |", padded.join(" | "));
        if number == 0 {
            println!("|{}|", widths.map(|width| "-".repeat(width + 2)).join("|"));
        }
    }
}
