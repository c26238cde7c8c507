//! The common parts of the examples' drawings: the file, the axes, the lines and the legend.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use indicatif::HumanCount;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

pub const INK: RGBColor = RGBColor(45, 55, 72);
pub const RED: RGBColor = RGBColor(200, 40, 40);
pub const GREEN: RGBColor = RGBColor(50, 125, 95);
/// The width of the area with the labels of the y axis. It is the same in all charts, so that their times are aligned.
const LEFT: u32 = 70;

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
pub type Outcome = Result<(), Box<dyn Error>>;

/// Creates the file with a headline, a caption in smaller letters, and what `draw` draws below them.
pub fn write(
    path: &Path,
    size: (u32, u32),
    (headline, caption): (&str, &str),
    draw: impl FnOnce(&Area<'_>) -> Outcome,
) -> Outcome {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    }
    let sheet = SVGBackend::new(path, size).into_drawing_area();
    sheet.fill(&WHITE)?;
    draw(
        &sheet
            .margin(8, 0, 0, 0)
            .titled(headline, text(20, INK))?
            .titled(caption, text(15, INK))?,
    )?;
    sheet
        .present()
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(())
}

/// An empty chart with a grid: seconds from 0 to `end`, counts from 0 to `top`.
pub fn chart<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    unit: &str,
    end: f64,
    top: f64,
) -> Result<Chart<'a, 'b>, Box<dyn Error>> {
    let mut chart = frame(area, title, 44, end, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.08))
        .axis_style(INK)
        .label_style(text(14, INK))
        .axis_desc_style(text(15, INK))
        .x_desc("seconds since the start")
        .x_label_formatter(&seconds)
        .y_labels(8)
        .y_label_formatter(&whole)
        .y_desc(unit)
        .draw()?;
    Ok(chart)
}

/// An empty chart without axes. The labels below it get `bottom` pixels.
pub fn frame<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    bottom: u32,
    end: f64,
    y: Range<f64>,
) -> Result<Chart<'a, 'b>, Box<dyn Error>> {
    let chart = ChartBuilder::on(area)
        .caption(title, text(17, INK))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(bottom)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(0.0..end, y)?;
    Ok(chart)
}

/// A line, with its label for the legend; without a label it is not in the legend.
#[derive(Debug)]
pub struct Line<'a> {
    pub label: Option<&'a str>,
    pub points: Vec<(f64, f64)>,
    pub color: RGBColor,
    pub dashed: bool,
}

impl Line<'_> {
    pub fn draw<'a, 'b: 'a>(self, chart: &mut Chart<'a, 'b>) -> Outcome {
        let Self {
            label,
            points,
            color,
            dashed,
        } = self;
        let style = color.stroke_width(2);
        let series = if dashed {
            chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?
        } else {
            chart.draw_series(LineSeries::new(points, style))?
        };
        if let Some(label) = label {
            series.label(label).legend(move |(x, y)| {
                let ends = [(x, y), (x + 20, y)];
                if dashed {
                    DashedPathElement::new(ends, 6, 4, style).into_dyn()
                } else {
                    PathElement::new(ends, style).into_dyn()
                }
            });
        }
        Ok(())
    }
}

/// Draws the legend of all series that have a label.
pub fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>, position: SeriesLabelPosition) -> Outcome {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.85))
        .border_style(INK.mix(0.3))
        .label_font(text(14, INK))
        .draw()?;
    Ok(())
}

/// A filled area in the legend.
pub fn swatch(x: i32, y: i32, color: RGBAColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 20, y + 5)], color.filled())
}

pub fn text(size: u32, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color)
}

/// Rounds off what floating-point arithmetic adds to a tick.
pub fn seconds(tick: &f64) -> String {
    ((tick * 1e3).round() / 1e3).to_string()
}

/// Counts are whole: a tick between two of them has no label.
fn whole(tick: &f64) -> String {
    if (tick - tick.round()).abs() < 1e-6 {
        HumanCount(tick.round() as u64).to_string()
    } else {
        String::new()
    }
}
