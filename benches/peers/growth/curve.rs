//! What is measured: for each operation, a cost at each size.

/// Sizes in rising order, each with a cost.
pub(crate) type Points = Vec<(usize, f64)>;

/// An operation of tollgate, or the same one of a peer.
pub(crate) struct Curve {
    pub(crate) operation: &'static str,
    /// `None`: tollgate.
    pub(crate) peer: Option<&'static str>,
    pub(crate) points: Points,
}

impl Curve {
    pub(crate) fn new(operation: &'static str, points: Points) -> Self {
        Self {
            operation,
            peer: None,
            points,
        }
    }

    pub(crate) fn of_peer(peer: &'static str, operation: &'static str, points: Points) -> Self {
        Self {
            peer: Some(peer),
            ..Self::new(operation, points)
        }
    }
}

/// The curves over one quantity.
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    /// What the documentation says about this growth.
    pub(crate) promise: &'static str,
    pub(crate) unit: &'static str,
    /// Nanoseconds, or in the chart of [`bytes`] bytes.
    pub(crate) curves: Vec<Curve>,
    /// Heap bytes for each waiter, key or flow.
    pub(crate) bytes: Vec<Curve>,
}

/// Moves the curves of bytes into a chart of their own, if there are any.
pub(crate) fn bytes(charts: &mut [Chart]) -> Option<Chart> {
    let curves: Vec<_> = charts
        .iter_mut()
        .flat_map(|chart| std::mem::take(&mut chart.bytes))
        .collect();
    (!curves.is_empty()).then_some(Chart {
        title: "heap bytes for each of so many",
        promise: "A waiter: 58 B; a key of a million: 22 B; a flow: 250 B, and its request.",
        unit: "B",
        curves,
        bytes: Vec::new(),
    })
}

/// Prints the figures as Markdown, and the cost at the largest size as a multiple of that at the smallest.
pub(crate) fn print(charts: &[Chart]) {
    for chart in charts {
        println!("\n{} ({}). {}\n", chart.title, chart.unit, chart.promise);
        for curve in &chart.curves {
            let figures: Vec<_> = curve
                .points
                .iter()
                .map(|(size, cost)| format!("{}: {cost:.0}", number(*size)))
                .collect();
            let [(_, first), .., (_, last)] = curve.points[..] else {
                continue;
            };
            println!(
                "- {}, {}: {} (× {:.1})",
                curve.peer.unwrap_or("tollgate"),
                curve.operation,
                figures.join(", "),
                last / first
            );
        }
    }
}

/// A number with a comma before each three digits.
pub(crate) fn number(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}
