//! The drawing: grants over time against the rate, requests in flight over time against the concurrency.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use crate::options::Options;
use crate::record::Run;

const SIZE: (u32, u32) = (1_100, 700);
const BIN: Duration = Duration::from_millis(100);
/// With more bars a pixel would not hold one; each then stands for several times 100 ms.
const MAX_BARS: f64 = 500.0;
const INK: RGBColor = RGBColor(45, 55, 72);
const GRANTS: RGBColor = RGBColor(110, 160, 210);
const FLIGHT: RGBColor = RGBColor(50, 125, 95);
const LIMIT: RGBColor = RGBColor(200, 40, 40);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Outcome = Result<(), Box<dyn Error>>;

/// Writes the drawing to where the options say.
pub(crate) fn draw(run: &Run, options: &Options) -> Outcome {
    let path = &options.svg;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    }
    let sheet = SVGBackend::new(path, SIZE).into_drawing_area();
    sheet.fill(&WHITE)?;
    let (upper, lower) = sheet.split_vertically(SIZE.1 / 2);
    let bin = BIN.mul_f64((run.elapsed.div_duration_f64(BIN) / MAX_BARS).ceil().max(1.0));
    let end = run.elapsed.div_duration_f64(bin).ceil() * bin.as_secs_f64();
    draw_grants(&upper, run, options, bin, end)?;
    draw_in_flight(&lower, run, options, bin, end)?;
    sheet.present().map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(())
}

fn draw_grants(area: &Area<'_>, run: &Run, options: &Options, bin: Duration, end: f64) -> Outcome {
    let mut bars: Vec<f64> = Vec::new();
    for record in &run.records {
        let index = record.granted.div_duration_f64(bin) as usize;
        bars.resize(bars.len().max(index + 1), 0.0);
        bars[index] += 1.0;
    }
    let width = bin.as_secs_f64();
    let pace = (options.rate * width * 1e3).round() / 1e3; // to be read
    let most = pace + options.burst as f64;
    let highest = bars.iter().copied().fold(most, f64::max);

    let mut chart = chart(area, &format!("Grants per {bin:?}"), 0.0..end, highest)?;
    let bars = bars.iter().enumerate().map(|(index, &height)| {
        let left = index as f64 * width;
        Rectangle::new([(left + 0.08 * width, 0.0), (left + 0.92 * width, height)], GRANTS.filled())
    });
    chart.draw_series(bars)?.label(format!("grants in {bin:?}")).legend(|(x, y)| swatch(x, y, GRANTS.into()));
    draw_limit(&mut chart, end, pace, &format!("rate: {} per second = {pace} per {bin:?}", options.rate))?;
    let line = DashedLineSeries::new([(0.0, most), (end, most)], 6, 4, LIMIT.stroke_width(1));
    chart
        .draw_series(line)?
        .label(format!("rate and burst: at most {most} in any {bin:?}"))
        .legend(|(x, y)| DashedPathElement::new([(x, y), (x + 20, y)], 6, 4, LIMIT.stroke_width(1)));
    draw_legend(&mut chart)
}

fn draw_in_flight(area: &Area<'_>, run: &Run, options: &Options, bin: Duration, end: f64) -> Outcome {
    let changes = run.in_flight();
    let limit = options.concurrency as f64;
    let highest = changes.iter().map(|&(_, count)| count as f64).fold(limit, f64::max);
    // A step: each count holds until the next one.
    let mut before = 0.0;
    let steps: Vec<_> = changes
        .iter()
        .flat_map(|&(at, count)| {
            let (at, count) = (at.as_secs_f64(), count as f64);
            [(at, std::mem::replace(&mut before, count)), (at, count)]
        })
        .collect();

    let mut chart = chart(area, "Requests in flight", 0.0..end, highest)?;
    chart
        .draw_series(AreaSeries::new(steps, 0.0, FLIGHT.mix(0.45)))?
        .label("requests in flight")
        .legend(|(x, y)| swatch(x, y, FLIGHT.mix(0.45)));
    chart
        .draw_series(LineSeries::new(means(run, bin), FLIGHT.stroke_width(2)))?
        .label(format!("their mean over {bin:?}"))
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], FLIGHT.stroke_width(2)));
    draw_limit(&mut chart, end, limit, &format!("concurrency: {limit} at once"))?;
    draw_legend(&mut chart)
}

/// The mean number in flight during each bin, at the bin's middle.
fn means(run: &Run, bin: Duration) -> Vec<(f64, f64)> {
    let mut means: Vec<(f64, f64)> = Vec::new();
    for record in &run.records {
        let (from, to) = (record.granted.div_duration_f64(bin), record.finished.div_duration_f64(bin));
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

/// An empty chart with axes. Above the highest value there is room for the legend.
fn chart<'a, 'b>(area: &'a Area<'b>, title: &str, time: Range<f64>, highest: f64) -> Result<Chart<'a, 'b>, Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20).into_font().color(&INK))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(time, 0.0..highest * 1.6)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.08))
        .axis_style(INK)
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 15).into_font().color(&INK))
        .x_desc("seconds since the start")
        .y_label_formatter(&whole)
        .y_desc(title.to_lowercase())
        .draw()?;
    Ok(chart)
}

/// Counts are whole; a tick between two of them goes unnamed.
fn whole(value: &f64) -> String {
    if (value - value.round()).abs() < 1e-6 { format!("{value:.0}") } else { String::new() }
}

fn draw_limit(chart: &mut Chart<'_, '_>, end: f64, limit: f64, label: &str) -> Outcome {
    chart
        .draw_series(LineSeries::new([(0.0, limit), (end, limit)], LIMIT.stroke_width(2)))?
        .label(label)
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], LIMIT.stroke_width(2)));
    Ok(())
}

fn draw_legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> Outcome {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.9))
        .border_style(INK.mix(0.3))
        .label_font(("sans-serif", 14).into_font().color(&INK))
        .draw()?;
    Ok(())
}

fn swatch(x: i32, y: i32, color: RGBAColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 20, y + 5)], color.filled())
}
