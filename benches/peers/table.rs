//! The table that is printed: Markdown whose columns are also aligned in a terminal.

use std::fmt;

/// The bar that a ratio, or a figure of tollgate's, is held to.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
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
}

impl Row {
    /// Tollgate's figure and a peer's; the bar is for their ratio.
    pub(crate) fn against(what: (&str, &str), unit: Unit, ours: f64, peer: (&str, f64), ratio: f64, bar: Option<Bar>) -> Self {
        let theirs = format!("{}: {}", peer.0, unit.show(peer.1));
        Self::new(what, unit.show(ours), theirs, format!("{ratio:.2}"), bar, ratio)
    }

    /// Tollgate's figure, alone or next to a peer's; the bar is for tollgate's.
    pub(crate) fn figure(what: (&str, &str), unit: Unit, ours: f64, peer: Option<(&str, f64)>, bar: Option<Bar>) -> Self {
        let theirs = peer.map_or_else(String::new, |(name, figure)| format!("{name}: {}", unit.show(figure)));
        Self::new(what, unit.show(ours), theirs, String::new(), bar, ours)
    }

    fn new((workload, case): (&str, &str), ours: String, theirs: String, ratio: String, bar: Option<Bar>, judged: f64) -> Self {
        let verdict = bar.map_or("", |bar| if bar.is_met(judged) { "ok" } else { "MISS" });
        let bar = bar.map_or_else(String::new, |bar| bar.to_string());
        Self { cells: [workload.to_owned(), case.to_owned(), ours, theirs, ratio, bar, verdict.to_owned()] }
    }
}

pub(crate) fn print(rows: &[Row]) {
    let head = ["", "case", "tollgate", "peer", "ratio", "bar", ""].map(str::to_owned);
    let lines = || std::iter::once(&head).chain(rows.iter().map(|row| &row.cells));
    let widths: [usize; 7] = std::array::from_fn(|i| lines().map(|cells| cells[i].chars().count()).max().unwrap_or(0));
    for (number, cells) in lines().enumerate() {
        let padded: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("| {} |", padded.join(" | "));
        if number == 0 {
            println!("|{}|", widths.map(|width| "-".repeat(width + 2)).join("|"));
        }
    }
}
