//! The drawing: three small charts over the number of processes, on a scale of powers of ten.

use common::Human;
use common::plot::{self, Area, Chart, GREEN, INK, Line, RED};
use plotters::prelude::*;

use crate::{Kind, Options, Row};

const SIZE: (u32, u32) = (960, 420);
const AMBER: RGBColor = RGBColor(220, 140, 30);
const STRICT: RGBColor = RGBColor(70, 130, 190);
/// The least value on the logarithmic scales.
const LEAST: f64 = 0.01;

/// Writes the drawing to the file that the options name.
pub(crate) fn draw(rows: &[Row], options: &Options) -> plot::Outcome {
    let headline = format!(
        "Processes that share {}, in virtual time",
        tollgate::Limit::from(options.bucket())
    );
    let over = if rows.iter().all(|row| row.over == 0) {
        "never over the limit"
    } else {
        "OVER THE LIMIT"
    };
    let (most, kept) = (options.prefetch, Human(options.kept));
    let caption = format!(
        "Four callers in each, 1 to 20 ms for a message; {over}. Prefetched: {most} units at most, for {kept} at most. Of ten, one dies or stands still."
    );
    plot::write(&options.svg, SIZE, (&headline, &caption), |sheet| {
        let areas = sheet.split_evenly((1, 3));
        draw_used(&areas[0], rows)?;
        draw_fairness(&areas[1], rows)?;
        draw_calls(&areas[2], rows)
    })
}

fn draw_used(area: &Area<'_>, rows: &[Row]) -> plot::Outcome {
    let mut chart = plot::frame(area, "Used of the limit", 44, end(rows), 0.0..110.0)?;
    axes(&mut chart, 7, &|percent| {
        if *percent > 100.5 {
            String::new()
        } else {
            format!("{percent:.0} %")
        }
    })?;
    lines(&mut chart, rows, |row| row.used * 100.0, true)?;
    plot::legend(&mut chart, SeriesLabelPosition::LowerRight)
}

fn draw_fairness(area: &Area<'_>, rows: &[Row]) -> plot::Outcome {
    let title = "Fewest and most of a process, in equal shares";
    let highest = rows.iter().map(|row| row.most).fold(1.5, f64::max);
    let mut chart = plot::frame(area, title, 44, end(rows), 0.0..highest * 1.4)?; // room for the legend
    axes(&mut chart, 7, &|times| {
        if *times > highest {
            String::new()
        } else {
            format!("{times} ×")
        }
    })?;
    let equal = vec![(0.0, 1.0), (end(rows), 1.0)];
    Line {
        label: Some("an equal share"),
        points: equal,
        color: RED,
        dashed: true,
    }
    .draw(&mut chart)?;
    lines(&mut chart, rows, |row| row.most, true)?;
    lines(&mut chart, rows, |row| row.fewest, false)?;
    plot::legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

fn draw_calls(area: &Area<'_>, rows: &[Row]) -> plot::Outcome {
    let calls = || rows.iter().map(|row| power(row.calls_per_grant));
    let (lowest, highest) = (
        calls().fold(-1.0, f64::min).floor(),
        calls().fold(1.0, f64::max).ceil(),
    );
    let mut chart = plot::frame(
        area,
        "Calls to the store for a grant",
        44,
        end(rows),
        lowest..highest + 0.5,
    )?;
    axes(&mut chart, 6, &|power| label(*power, highest))?;
    lines(&mut chart, rows, |row| power(row.calls_per_grant), true)?;
    plot::legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

/// A grid, and processes from left to right.
fn axes(chart: &mut Chart<'_, '_>, labels: usize, y: &dyn Fn(&f64) -> String) -> plot::Outcome {
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.08))
        .axis_style(INK)
        .label_style(plot::text(14, INK))
        .axis_desc_style(plot::text(15, INK))
        .x_desc("processes")
        .x_labels(4)
        .x_label_formatter(&|power| label(*power, f64::INFINITY))
        .y_labels(labels)
        .y_label_formatter(y)
        .draw()?;
    Ok(())
}

/// Draws a line for each kind of run, in the legend if `labelled`. Where they coincide, all can be seen.
fn lines<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    rows: &[Row],
    value: impl Fn(&Row) -> f64,
    labelled: bool,
) -> plot::Outcome {
    for kind in Kind::ALL {
        let (color, dashed) = match kind {
            Kind::Strict => (STRICT, false),
            Kind::Prefetched => (GREEN, true),
            Kind::Failing => (AMBER, true),
        };
        let rows = rows.iter().filter(|row| row.kind == kind);
        let points: Vec<_> = rows
            .map(|row| (f64::from(row.processes).log10(), value(row)))
            .collect();
        chart.draw_series(
            points
                .iter()
                .map(|point| Circle::new(*point, 3, color.filled())),
        )?;
        Line {
            label: labelled.then_some(kind.name()),
            points,
            color,
            dashed,
        }
        .draw(chart)?;
    }
    Ok(())
}

fn end(rows: &[Row]) -> f64 {
    rows.iter()
        .map(|row| f64::from(row.processes).log10())
        .fold(1.0, f64::max)
}

fn power(value: f64) -> f64 {
    value.max(LEAST).log10()
}

/// The value of a power of ten up to `highest`; what lies between two has no label.
fn label(power: f64, highest: f64) -> String {
    let is_whole = (power - power.round()).abs() < 1e-6;
    if !is_whole || power > highest + 1e-6 {
        return String::new();
    }
    let value = 10_f64.powi(power.round() as i32);
    if value < 1.0 {
        value.to_string()
    } else {
        indicatif::HumanCount(value as u64).to_string()
    }
}
