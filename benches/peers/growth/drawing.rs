//! The drawing of the curves: a panel for each chart, with the size on a logarithmic scale and the cost from 0 on.

use std::path::Path;

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::canvas::{Area, Drawn, INK, text};
use crate::curve::{Chart, Curve, number};

const WIDTH: i32 = 860;
/// The height of the headline and of the line below it.
const HEAD: i32 = 58;
const PANEL: (i32, i32) = (WIDTH / 2, 330);
/// The corners of a plot within its panel. Above it are the title, the promise and the legend.
const LEFT: i32 = 62;
const RIGHT: i32 = 412;
const TOP: i32 = 134;
const BOTTOM: i32 = 294;
/// The lines of the legend.
const LEGEND: i32 = 58;
const LINE: i32 = 18;
const ENTRY: i32 = 30;

/// The colours differ for every kind of colour vision, and the lines without colour.
const STYLES: [(RGBColor, Option<(i32, i32)>); 3] = [
    (RGBColor(0, 114, 178), None),
    (RGBColor(213, 94, 0), Some((10, 4))),
    (RGBColor(0, 140, 100), Some((2, 4))),
];
const PEER: RGBColor = RGBColor(150, 150, 150);

pub(crate) fn draw(charts: &[Chart], path: &Path) -> Drawn {
    let rows = charts.len().div_ceil(2) as i32;
    let size = (WIDTH as u32, (HEAD + rows * PANEL.1) as u32);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    let title = "How the cost of one operation grows";
    text(&area, (12, 18), title, 18, HPos::Left)?;
    let what = "to the right the number of items, logarithmic; upwards nanoseconds or bytes; grey: the same operation elsewhere";
    text(&area, (12, 40), what, 13, HPos::Left)?;
    for (nth, chart) in charts.iter().enumerate() {
        let column = nth as i32 % 2;
        let corner = (column * PANEL.0, HEAD + nth as i32 / 2 * PANEL.1);
        Panel::new(chart, corner).draw(&area)?;
    }
    area.present()?;
    Ok(())
}

struct Panel<'a> {
    chart: &'a Chart,
    corner: (i32, i32),
    /// The smallest and the largest size.
    sizes: (f64, f64),
    /// The distance of two lines of the grid, and the cost at the top.
    step: f64,
    top: f64,
}

impl<'a> Panel<'a> {
    fn new(chart: &'a Chart, corner: (i32, i32)) -> Self {
        let points = || chart.curves.iter().flat_map(|curve| &curve.points);
        let sizes = points().map(|point| point.0 as f64);
        let sizes = (
            sizes.clone().fold(f64::INFINITY, f64::min),
            sizes.fold(0.0, f64::max),
        );
        let highest = points().map(|point| point.1).fold(1.0, f64::max);
        let power = 10_f64.powf((highest / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let step = step.into_iter().find(|step| highest / step <= 5.0);
        let step = step.unwrap_or(highest);
        Self {
            chart,
            corner,
            sizes,
            step,
            top: (highest / step).ceil() * step,
        }
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        text(area, self.at(12, 12), self.chart.title, 16, HPos::Left)?;
        text(area, self.at(12, 34), self.chart.promise, 12, HPos::Left)?;
        self.draw_axes(area)?;
        self.draw_legend(area)?;
        // Those of peers lie below the others.
        let by_peer = |has_peer| {
            let curves = self.chart.curves.iter();
            curves.filter(move |curve| curve.peer.is_some() == has_peer)
        };
        for curve in by_peer(true).chain(by_peer(false)) {
            let points = curve.points.iter();
            let points = points.map(|&(size, cost)| (self.x(size as f64), self.y(cost)));
            let points: Vec<_> = points.collect();
            let (color, dash) = self.style(curve);
            if curve.peer.is_none() {
                for &point in &points {
                    area.draw(&Circle::new(point, 3, color.filled()))?;
                }
            }
            let width = if curve.peer.is_none() { 2 } else { 1 };
            draw_path(area, points, color.stroke_width(width), dash)?;
        }
        Ok(())
    }

    fn draw_axes(&self, area: &Area<'_>) -> Drawn {
        let (left, right) = (self.at(LEFT, 0).0, self.at(RIGHT, 0).0);
        for nth in 0..=(self.top / self.step).round() as i32 {
            let cost = f64::from(nth) * self.step;
            let y = self.y(cost);
            let line = INK.mix(if nth == 0 { 0.8 } else { 0.15 });
            area.draw(&PathElement::new([(left, y), (right, y)], line))?;
            let label = format!("{} {}", number(cost.round() as usize), self.chart.unit);
            text(area, (left - 6, y), &label, 12, HPos::Right)?;
        }
        let curve = self
            .chart
            .curves
            .iter()
            .max_by_key(|curve| curve.points.len());
        for &(size, _) in curve.into_iter().flat_map(|curve| &curve.points) {
            let x = self.x(size as f64);
            let (top, bottom) = (self.at(0, TOP).1, self.at(0, BOTTOM).1);
            area.draw(&PathElement::new(
                [(x, top), (x, bottom + 4)],
                INK.mix(0.15),
            ))?;
            text(area, (x, bottom + 14), &short(size), 12, HPos::Center)?;
        }
        Ok(())
    }

    /// The operations of tollgate, and the peers.
    fn draw_legend(&self, area: &Area<'_>) -> Drawn {
        for (nth, curve) in self.of_tollgate().enumerate() {
            let (x, y) = self.at(LEFT, LEGEND + LINE * nth as i32);
            let (color, dash) = self.style(curve);
            let line = vec![(x, y), (x + ENTRY - 6, y)];
            draw_path(area, line, color.stroke_width(2), dash)?;
            text(area, (x + ENTRY, y), curve.operation, 13, HPos::Left)?;
        }
        let mut peers: Vec<_> = (self.chart.curves.iter())
            .filter_map(|curve| curve.peer)
            .collect();
        peers.dedup();
        for (nth, peer) in (0..).zip(peers) {
            let at = self.at(RIGHT, LEGEND + LINE * nth);
            text(area, at, &format!("grey: {peer}"), 12, HPos::Right)?;
        }
        Ok(())
    }

    /// An operation has the same dashes whoever does it.
    fn style(&self, curve: &Curve) -> (RGBColor, Option<(i32, i32)>) {
        let nth = self
            .of_tollgate()
            .take_while(|other| other.operation != curve.operation)
            .count();
        let (color, dash) = STYLES[nth % STYLES.len()];
        (if curve.peer.is_none() { color } else { PEER }, dash)
    }

    fn of_tollgate(&self) -> impl Iterator<Item = &Curve> {
        let curves = self.chart.curves.iter();
        curves.filter(|curve| curve.peer.is_none())
    }

    fn at(&self, x: i32, y: i32) -> (i32, i32) {
        (self.corner.0 + x, self.corner.1 + y)
    }

    fn x(&self, size: f64) -> i32 {
        let share = (size / self.sizes.0).ln() / (self.sizes.1 / self.sizes.0).ln();
        self.at(LEFT, 0).0 + 8 + (share * f64::from(RIGHT - LEFT - 16)).round() as i32
    }

    fn y(&self, cost: f64) -> i32 {
        self.at(0, BOTTOM).1 - (cost / self.top * f64::from(BOTTOM - TOP)).round() as i32
    }
}

fn draw_path(
    area: &Area<'_>,
    points: Vec<(i32, i32)>,
    stroke: ShapeStyle,
    dash: Option<(i32, i32)>,
) -> Drawn {
    match dash {
        Some((dash, space)) => area.draw(&DashedPathElement::new(points, dash, space, stroke))?,
        None => area.draw(&PathElement::new(points, stroke))?,
    }
    Ok(())
}

/// Powers of ten from ten thousand on.
fn short(size: usize) -> String {
    match size {
        10_000 => "10⁴".to_owned(),
        100_000 => "10⁵".to_owned(),
        1_000_000 => "10⁶".to_owned(),
        10_000_000 => "10⁷".to_owned(),
        _ => number(size),
    }
}
