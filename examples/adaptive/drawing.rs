//! The drawing: limit, latency and throughput over time, each with the capacity of the server.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::callers::{Call, Run};
use crate::server::{PHASES, Phase, QUEUE};
use common::plot::{self, Area, GREEN, INK, Line, RED};

const SIZE: (u32, u32) = (1_100, 1_040);
const BINS_A_SECOND: f64 = 10.0;
const LIMIT: RGBColor = RGBColor(40, 100, 180);
const SERVER: RGBColor = RGBColor(110, 115, 125);
const ILL: RGBColor = RGBColor(245, 190, 110);

type Points = Vec<(f64, f64)>;

/// Writes the drawing to the file, with a headline and a caption.
pub(crate) fn draw(run: &Run, limit: &str, words: (&str, &str), path: &Path) -> plot::Outcome {
    plot::write(path, SIZE, words, |sheet| draw_charts(run, limit, sheet))
}

fn draw_charts(run: &Run, limit: &str, sheet: &Area<'_>) -> plot::Outcome {
    let areas = sheet.split_evenly((3, 1));

    let limits = run
        .limits
        .iter()
        .map(|&(at, limit)| (at.as_secs_f64(), limit as f64))
        .collect();
    let lines = [
        Line {
            label: Some("limit"),
            points: limits,
            color: LIMIT,
            dashed: false,
        },
        Line {
            label: Some("the server's places"),
            points: reference(run, |phase| phase.places as f64),
            color: SERVER,
            dashed: true,
        },
        Line {
            label: Some("its places and its queue: above this it refuses"),
            points: reference(run, |phase| (phase.places + QUEUE) as f64),
            color: RED,
            dashed: true,
        },
    ];
    draw_chart(
        &areas[0],
        &format!("The limit: {limit}"),
        "calls at once",
        run,
        lines.into(),
    )?;

    let latency = bins(run, |calls| {
        let served: Vec<_> = calls
            .iter()
            .filter(|call| !call.refused)
            .map(|call| call.latency.as_secs_f64() * 1e3)
            .collect();
        (!served.is_empty()).then(|| served.iter().sum::<f64>() / served.len() as f64)
    });
    let lines = [
        Line {
            label: Some("mean latency of calls served"),
            points: latency,
            color: LIMIT,
            dashed: false,
        },
        Line {
            label: Some("time that the work takes"),
            points: reference(run, |phase| phase.work.as_secs_f64() * 1e3),
            color: SERVER,
            dashed: true,
        },
    ];
    draw_chart(
        &areas[1],
        "Latency: what is above the dashed line is time in the server's queue",
        "milliseconds",
        run,
        lines.into(),
    )?;

    let rate = |refused| {
        move |calls: &[Call]| {
            Some(calls.iter().filter(|call| call.refused == refused).count() as f64 * BINS_A_SECOND)
        }
    };
    let lines = [
        Line {
            label: Some("served"),
            points: bins(run, rate(false)),
            color: GREEN,
            dashed: false,
        },
        Line {
            label: Some("refused"),
            points: bins(run, rate(true)),
            color: RED,
            dashed: false,
        },
        Line {
            label: Some("what the server can serve"),
            points: reference(run, Phase::throughput),
            color: SERVER,
            dashed: true,
        },
    ];
    draw_chart(
        &areas[2],
        "Throughput: calls served, and refused because the server's queue was full",
        "calls a second",
        run,
        lines.into(),
    )
}

/// A value of each phase, as steps.
fn reference(run: &Run, value: impl Fn(&Phase) -> f64) -> Points {
    let length = run.length.as_secs_f64();
    let ends = PHASES
        .iter()
        .enumerate()
        .map(|(index, phase)| (index as f64 * length, value(phase)));
    ends.flat_map(|(from, value)| [(from, value), (from + length, value)])
        .collect()
}

/// A value of the calls that ended in each tenth of a second, drawn at its middle.
fn bins(run: &Run, value: impl Fn(&[Call]) -> Option<f64>) -> Points {
    let bin = |call: &Call| (call.finished.as_secs_f64() * BINS_A_SECOND) as usize;
    let all = (run.end().as_secs_f64() * BINS_A_SECOND) as usize;
    let each = (0..all).map(|index| {
        let (from, to) = (
            run.calls.partition_point(|call| bin(call) < index),
            run.calls.partition_point(|call| bin(call) <= index),
        );
        value(&run.calls[from..to]).map(|value| ((index as f64 + 0.5) / BINS_A_SECOND, value))
    });
    each.flatten().collect()
}

fn draw_chart(
    area: &Area<'_>,
    title: &str,
    unit: &str,
    run: &Run,
    lines: Vec<Line<'_>>,
) -> plot::Outcome {
    let (length, end) = (run.length.as_secs_f64(), run.end().as_secs_f64());
    let highest = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|&(_, value)| value)
        .fold(1.0, f64::max);
    let top = highest * 1.8; // room for the phases and for the legend
    let mut chart = plot::chart(area, title, unit, end, top)?;
    let ill = PHASES
        .iter()
        .enumerate()
        .filter(|(index, _)| index % 2 == 1);
    chart.draw_series(ill.map(|(index, _)| {
        let from = index as f64 * length;
        Rectangle::new([(from, 0.0), (from + length, top)], ILL.mix(0.2).filled())
    }))?;
    let style = plot::text(14, INK).pos(Pos::new(HPos::Center, VPos::Top));
    chart.draw_series(PHASES.iter().enumerate().map(|(index, phase)| {
        let middle = (index as f64 + 0.5) * length;
        Text::new(phase.name, (middle, top * 0.985), style.clone())
    }))?;
    for line in lines {
        line.draw(&mut chart)?;
    }
    plot::legend(&mut chart, SeriesLabelPosition::Coordinate(12, 26))
}
