//! The drawing: requests started over time against the rate, and requests in flight over time against the concurrency.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use common::Human;
use indicatif::HumanCount;
use plotters::prelude::*;

use crate::options::Options;
use crate::record::{Outcome, Record, Run};
use common::plot::{self, Area, Chart, GREEN, INK, Line, RED, swatch};

/// The size of the drawing of two runs.
const SIZE: (u32, u32) = (1_160, 780);
const BIN: Duration = Duration::from_millis(100);
/// More bars than this would be narrower than a pixel or two. A longer run has fewer bars, each of several times 100 ms.
const MAX_BARS: f64 = 500.0;
const STARTED: RGBColor = RGBColor(110, 160, 210);
const REFUSED: RGBColor = RGBColor(230, 130, 40);

/// Writes the drawing to the file that the options name, with the runs side by side. Returns the file.
pub(crate) fn draw(runs: &[Run]) -> Result<&Path, Box<dyn Error>> {
    let options = &runs[0].options;
    let of = if options.input.is_none() {
        "a server that allows 8 at once and 200 a second"
    } else {
        "the servers of a list"
    };
    let headline = format!(
        "{} requests to {of}",
        HumanCount(runs[0].records.len() as u64)
    );
    let caption = if runs.len() == 1 {
        ""
    } else {
        "Before and after: the same requests without and with a limiter. The scales of the charts differ."
    };
    let size = if runs.len() == 1 {
        (1_100, SIZE.1)
    } else {
        SIZE
    };
    plot::write(&options.svg, size, (&headline, caption), |sheet| {
        for (column, run) in sheet.split_evenly((1, runs.len())).iter().zip(runs) {
            draw_run(column, run)?;
        }
        Ok(())
    })?;
    Ok(&options.svg)
}

fn draw_run(column: &Area<'_>, run: &Run) -> plot::Outcome {
    let options = &run.options;
    let bin = BIN.mul_f64(
        (run.elapsed.div_duration_f64(BIN) / MAX_BARS)
            .ceil()
            .max(1.0),
    );
    let end = run.elapsed.div_duration_f64(bin).ceil() * bin.as_secs_f64();
    let refused = match run.count(Outcome::TooManyRequests) {
        0 => "none".to_owned(),
        refused => HumanCount(refused as u64).to_string(),
    };
    let result = format!(
        "{}: {refused} answered with 429, {} in all",
        options.limits(),
        Human(run.elapsed)
    );
    let areas = column
        .titled(&result, plot::text(16, INK))?
        .split_evenly((2, 1));
    draw_started(&areas[0], run, options, bin, end)?;
    draw_in_flight(&areas[1], run, options, bin, end)
}

fn draw_started(
    area: &Area<'_>,
    run: &Run,
    options: &Options,
    bin: Duration,
    end: f64,
) -> plot::Outcome {
    let started = counts(&run.records, bin, |_| true);
    let refused = counts(&run.records, bin, |record| {
        record.outcome == Outcome::TooManyRequests
    });
    let pace = (options.rate * bin.as_secs_f64() * 1e3).round() / 1e3; // three decimals, for the label
    let most = pace + options.burst as f64;
    let highest = started.iter().copied().fold(most, f64::max);

    let mut chart = chart(
        area,
        &format!("Requests started per {}", Human(bin)),
        end,
        highest,
    )?;
    draw_bars(&mut chart, &started, bin, STARTED, "requests started")?;
    if refused.iter().any(|&count| count > 0.0) {
        draw_bars(
            &mut chart,
            &refused,
            bin,
            REFUSED,
            "of these answered with 429, too many requests",
        )?;
    }
    level(
        end,
        pace,
        &format!(
            "{}: {} a second = {pace} per {}",
            options.named("rate"),
            options.rate,
            Human(bin)
        ),
        false,
    )
    .draw(&mut chart)?;
    level(
        end,
        most,
        &format!(
            "{}: at most {most} in any {}",
            options.named("rate and burst"),
            Human(bin)
        ),
        true,
    )
    .draw(&mut chart)?;
    plot::legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn draw_in_flight(
    area: &Area<'_>,
    run: &Run,
    options: &Options,
    bin: Duration,
    end: f64,
) -> plot::Outcome {
    let changes = run.in_flight();
    let limit = options.concurrency as f64;
    let highest = changes
        .iter()
        .map(|&(_, count)| count as f64)
        .fold(limit, f64::max);
    // Steps: each count holds until the next change.
    let mut before = 0.0;
    let steps: Vec<_> = changes
        .iter()
        .flat_map(|&(at, count)| {
            let (at, count) = (at.as_secs_f64(), count as f64);
            [(at, std::mem::replace(&mut before, count)), (at, count)]
        })
        .collect();

    let mut chart = chart(area, "Requests in flight", end, highest)?;
    chart
        .draw_series(AreaSeries::new(steps, 0.0, GREEN.mix(0.45)))?
        .label("requests in flight")
        .legend(|(x, y)| swatch(x, y, GREEN.mix(0.45)));
    let label = format!("their mean over {}", Human(bin));
    Line {
        label: Some(&label),
        points: means(run, bin),
        color: GREEN,
        dashed: false,
    }
    .draw(&mut chart)?;
    level(
        end,
        limit,
        &format!("{}: {limit} at once", options.named("concurrency")),
        false,
    )
    .draw(&mut chart)?;
    plot::legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// How many of the requests started in each bin.
fn counts(records: &[Record], bin: Duration, counted: impl Fn(&Record) -> bool) -> Vec<f64> {
    let mut counts = Vec::new();
    for record in records.iter().filter(|record| counted(record)) {
        let index = record.granted.div_duration_f64(bin) as usize;
        counts.resize(counts.len().max(index + 1), 0.0);
        counts[index] += 1.0;
    }
    counts
}

/// The mean number in flight during each bin, at the middle of the bin.
fn means(run: &Run, bin: Duration) -> Vec<(f64, f64)> {
    let mut means: Vec<(f64, f64)> = Vec::new();
    for record in &run.records {
        let (from, to) = (
            record.granted.div_duration_f64(bin),
            record.finished.div_duration_f64(bin),
        );
        for index in from as usize..=to as usize {
            let left = index as f64;
            while means.len() <= index {
                means.push(((means.len() as f64 + 0.5) * bin.as_secs_f64(), 0.0));
            }
            means[index].1 += to.min(left + 1.0) - from.max(left);
        }
    }
    means
}

/// An empty chart with axes. There is room for the legend above the highest value.
fn chart<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    end: f64,
    highest: f64,
) -> Result<Chart<'a, 'b>, Box<dyn Error>> {
    plot::chart(area, title, "requests", end, highest * 1.6)
}

fn draw_bars(
    chart: &mut Chart<'_, '_>,
    heights: &[f64],
    bin: Duration,
    color: RGBColor,
    label: &str,
) -> plot::Outcome {
    let width = bin.as_secs_f64();
    let bars = heights.iter().enumerate().map(|(index, &height)| {
        let left = index as f64 * width;
        Rectangle::new(
            [(left + 0.08 * width, 0.0), (left + 0.92 * width, height)],
            color.filled(),
        )
    });
    chart
        .draw_series(bars)?
        .label(label)
        .legend(move |(x, y)| swatch(x, y, color.into()));
    Ok(())
}

/// A limit as a line over the whole time.
fn level(end: f64, limit: f64, label: &str, dashed: bool) -> Line<'_> {
    Line {
        label: Some(label),
        points: vec![(0.0, limit), (end, limit)],
        color: RED,
        dashed,
    }
}
