//! The drawing of a run: memory, the grants of each part, and the kills of servers, over time.

use std::path::Path;

use plotters::prelude::*;

use crate::plot::{self, Chart, Line, Outcome, RED};
use crate::record::Sample;

/// They differ for every kind of colour vision (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(213, 94, 0),
];
const SIZE: (u32, u32) = (960, 1_000);
const MEBI: f64 = 1_048_576.0;
/// A chart has about so many points of a line.
const POINTS: usize = 300;

pub(crate) fn draw(
    path: &Path,
    parts: &[&str],
    samples: &[Sample],
    kills: &[(f64, &'static str)],
    verdict: &str,
) -> Outcome {
    let end = samples.last().map_or(1.0, |last| last.at);
    let step = samples.len().div_ceil(POINTS).max(1);
    let samples: Vec<_> = samples.iter().step_by(step).collect();
    let caption = "vertical lines: a Redis was killed (solid), or a master of a cluster (dashed)";
    let headline = format!("soak of {:.0} min: {verdict}", end / 60.0);
    plot::write(path, SIZE, (&headline, caption), |sheet| {
        let areas = sheet.split_evenly((2, 1));
        let mebibytes = |value: fn(&Sample) -> u64| -> Vec<_> {
            samples
                .iter()
                .map(|sample| (sample.at, value(sample) as f64 / MEBI))
                .collect()
        };
        let lines = vec![
            line("resident", mebibytes(|sample| sample.resident), COLORS[0]),
            line("heap in use", mebibytes(|sample| sample.live), COLORS[6]),
        ];
        chart(
            &areas[0],
            ("memory of the process", "MiB"),
            end,
            kills,
            lines,
        )?;
        let lines = parts.iter().enumerate().map(|(part, name)| {
            let points = samples.windows(2).map(|pair| {
                let grants = pair[1].granted[part] - pair[0].granted[part];
                (pair[1].at, grants as f64 / (pair[1].at - pair[0].at))
            });
            line(name, points.collect(), COLORS[part % COLORS.len()])
        });
        chart(
            &areas[1],
            ("grants of each part", "grants a second"),
            end,
            kills,
            lines.collect(),
        )
    })
}

const fn line(label: &str, points: Vec<(f64, f64)>, color: RGBColor) -> Line<'_> {
    Line {
        label: Some(label),
        points,
        color,
        dashed: false,
    }
}

fn chart(
    area: &plot::Area<'_>,
    (title, unit): (&str, &str),
    end: f64,
    kills: &[(f64, &str)],
    lines: Vec<Line<'_>>,
) -> Outcome {
    let highest = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|(_, value)| *value)
        .fold(1.0, f64::max);
    // The legend is above the lines.
    let top = highest * (1.15 + 0.06 * lines.len() as f64);
    let mut chart = plot::chart(area, title, unit, end, top)?;
    for (at, part) in kills {
        mark(&mut chart, (*at, top), *part == "cluster")?;
    }
    for line in lines {
        line.draw(&mut chart)?;
    }
    plot::legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn mark(chart: &mut Chart<'_, '_>, (at, top): (f64, f64), dashed: bool) -> Outcome {
    let (points, style) = ([(at, 0.0), (at, top)], RED.mix(0.5).stroke_width(1));
    if dashed {
        chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?;
    } else {
        chart.draw_series(LineSeries::new(points, style))?;
    }
    Ok(())
}
