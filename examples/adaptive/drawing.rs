//! The drawing: limit, latency and throughput over time, each beside what the server has to offer.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::callers::{Call, Run};
use crate::server::{PHASES, Phase, QUEUE};

const SIZE: (u32, u32) = (1_100, 1_000);
const BINS_A_SECOND: f64 = 10.0;
const INK: RGBColor = RGBColor(45, 55, 72);
const LIMIT: RGBColor = RGBColor(40, 100, 180);
const SERVED: RGBColor = RGBColor(50, 125, 95);
const SERVER: RGBColor = RGBColor(110, 115, 125);
const REFUSED: RGBColor = RGBColor(200, 40, 40);
const ILL: RGBColor = RGBColor(245, 190, 110);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Outcome = Result<(), Box<dyn Error>>;
type Points = Vec<(f64, f64)>;

/// Writes the drawing to the file.
pub(crate) fn draw(run: &Run, path: &Path) -> Outcome {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    }
    let sheet = SVGBackend::new(path, SIZE).into_drawing_area();
    sheet.fill(&WHITE)?;
    let areas = sheet.split_evenly((3, 1));

    let limits = run.limits.iter().map(|&(at, limit)| (at.as_secs_f64(), limit as f64)).collect();
    let lines = [
        Line { label: "limit", points: limits, color: LIMIT, dashed: false },
        Line { label: "places of the server", points: reference(run, |phase| phase.places as f64), color: SERVER, dashed: true },
        Line {
            label: "places and queue: above this it refuses",
            points: reference(run, |phase| (phase.places + QUEUE) as f64),
            color: REFUSED,
            dashed: true,
        },
    ];
    draw_chart(&areas[0], "Limit", "calls at once", run, &lines)?;

    let latency = bins(run, |calls| {
        let served: Vec<_> = calls.iter().filter(|call| !call.refused).map(|call| call.latency.as_secs_f64() * 1e3).collect();
        (!served.is_empty()).then(|| served.iter().sum::<f64>() / served.len() as f64)
    });
    let lines = [
        Line { label: "mean latency of calls served", points: latency, color: LIMIT, dashed: false },
        Line {
            label: "what the work takes, without queue",
            points: reference(run, |phase| phase.work.as_secs_f64() * 1e3),
            color: SERVER,
            dashed: true,
        },
    ];
    draw_chart(&areas[1], "Latency", "milliseconds", run, &lines)?;

    let rate =
        |refused| move |calls: &[Call]| Some(calls.iter().filter(|call| call.refused == refused).count() as f64 * BINS_A_SECOND);
    let lines = [
        Line { label: "served", points: bins(run, rate(false)), color: SERVED, dashed: false },
        Line { label: "refused", points: bins(run, rate(true)), color: REFUSED, dashed: false },
        Line { label: "what the server can serve", points: reference(run, Phase::throughput), color: SERVER, dashed: true },
    ];
    draw_chart(&areas[2], "Throughput", "calls a second", run, &lines)?;
    sheet.present().map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(())
}

struct Line {
    label: &'static str,
    points: Points,
    color: RGBColor,
    dashed: bool,
}

/// A number of each phase, as steps.
fn reference(run: &Run, value: impl Fn(&Phase) -> f64) -> Points {
    let length = run.length.as_secs_f64();
    let ends = PHASES.iter().enumerate().map(|(index, phase)| (index as f64 * length, value(phase)));
    ends.flat_map(|(from, value)| [(from, value), (from + length, value)]).collect()
}

/// A number of the calls that ended in each tenth of a second, at its middle.
fn bins(run: &Run, value: impl Fn(&[Call]) -> Option<f64>) -> Points {
    let bin = |call: &Call| (call.finished.as_secs_f64() * BINS_A_SECOND) as usize;
    let all = (run.end().as_secs_f64() * BINS_A_SECOND) as usize;
    let each = (0..all).map(|index| {
        let (from, to) =
            (run.calls.partition_point(|call| bin(call) < index), run.calls.partition_point(|call| bin(call) <= index));
        value(&run.calls[from..to]).map(|value| ((index as f64 + 0.5) / BINS_A_SECOND, value))
    });
    each.flatten().collect()
}

fn draw_chart(area: &Area<'_>, title: &str, unit: &str, run: &Run, lines: &[Line]) -> Outcome {
    let (length, end) = (run.length.as_secs_f64(), run.end().as_secs_f64());
    let highest = lines.iter().flat_map(|line| &line.points).map(|&(_, value)| value).fold(1.0, f64::max);
    let top = highest * 1.8; // room for the phases and for the legend
    let mut chart: Chart<'_, '_> = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20).into_font().color(&INK))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    let ill = PHASES.iter().enumerate().filter(|(index, _)| index % 2 == 1);
    chart.draw_series(ill.map(|(index, _)| {
        let from = index as f64 * length;
        Rectangle::new([(from, 0.0), (from + length, top)], ILL.mix(0.2).filled())
    }))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.08))
        .axis_style(INK)
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 15).into_font().color(&INK))
        .x_desc("seconds since the start")
        .x_label_formatter(&|seconds| format!("{seconds:.0}"))
        .y_labels(6)
        .y_label_formatter(&|value| format!("{value:.0}"))
        .y_desc(unit)
        .draw()?;
    let style = TextStyle::from(("sans-serif", 14).into_font()).color(&INK).pos(Pos::new(HPos::Center, VPos::Top));
    chart.draw_series(PHASES.iter().enumerate().map(|(index, phase)| {
        let middle = (index as f64 + 0.5) * length;
        Text::new(phase.name, (middle, top * 0.985), style.clone())
    }))?;
    for Line { label, points, color, dashed } in lines {
        let (points, style) = (points.iter().copied(), color.stroke_width(2));
        if *dashed {
            let line = DashedLineSeries::new(points, 6, 4, style);
            chart
                .draw_series(line)?
                .label(*label)
                .legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 20, y)], 6, 4, style));
        } else {
            let line = LineSeries::new(points, style);
            chart.draw_series(line)?.label(*label).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::Coordinate(12, 26))
        .background_style(WHITE.mix(0.85))
        .border_style(INK.mix(0.3))
        .label_font(("sans-serif", 14).into_font().color(&INK))
        .draw()?;
    Ok(())
}
