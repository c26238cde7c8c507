//! The drawing of the gaps between the grants of one pace: for each limiter, the share of the gaps up to each length.

use std::path::Path;
use std::time::Duration;

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::canvas::{Area, Drawn, INK, text};

const SIZE: (u32, u32) = (640, 460);
/// The corners of the plot.
const LEFT: i32 = 64;
const RIGHT: i32 = 610;
const TOP: i32 = 152;
const BOTTOM: i32 = 396;

/// The scale is logarithmic, and has a tick with a number at each power of ten.
const ENDS: (Duration, Duration) = (Duration::from_micros(10), Duration::from_millis(100));
const TICKS: [&str; 5] = ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"];

/// The columns of the legend.
const COLUMNS: [i32; 2] = [LEFT, 330];
const LEGEND: i32 = 52;

/// Colour, width, and the lengths of dash and space, in pixels.
type Style = (RGBColor, u32, Option<(i32, i32)>);

/// Curves lie on top of each other: each later one is thinner or has gaps in
/// which an earlier one shows. The colours differ for every kind of colour vision.
const STYLES: [Style; 5] = [
    (RGBColor(86, 180, 233), 7, None),
    (RGBColor(0, 114, 178), 3, None),
    (RGBColor(213, 94, 0), 3, Some((12, 5))),
    (RGBColor(0, 0, 0), 3, Some((2, 6))),
    (RGBColor(170, 60, 130), 3, Some((6, 14))),
];

pub(crate) struct Gaps {
    of: String,
    wanted: Duration,
    sorted: Vec<Duration>,
}

impl Gaps {
    /// The gaps, sorted, of a limiter that is to leave `wanted` between its grants.
    pub(crate) fn new(of: &str, wanted: Duration, sorted: Vec<Duration>) -> Self {
        Self {
            of: of.to_owned(),
            wanted,
            sorted,
        }
    }

    /// The share of the gaps that differ from the wanted one by at most this part of it.
    pub(crate) fn share_within(&self, part: f64) -> f64 {
        let (least, most) = (
            self.wanted.mul_f64(1.0 - part),
            self.wanted.mul_f64(1.0 + part),
        );
        let shorter = self.sorted.partition_point(|&gap| gap < least);
        self.share_up_to(most) - shorter as f64 / self.sorted.len() as f64
    }

    fn share_up_to(&self, length: Duration) -> f64 {
        self.sorted.partition_point(|&gap| gap <= length) as f64 / self.sorted.len() as f64
    }
}

/// Draws the curves of these gaps. Draws nothing if there are none.
pub(crate) fn draw(gaps: &[&Gaps], path: &Path) -> Drawn {
    let Some(first) = gaps.first() else {
        return Ok(());
    };
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    text(
        &area,
        (LEFT, 22),
        "The gaps between grants, for a pace without a burst",
        20,
        HPos::Left,
    )?;
    draw_axes(&area, first.wanted)?;
    for (number, (gaps, style)) in gaps.iter().zip(STYLES).enumerate() {
        let at = (COLUMNS[number % 2], LEGEND + 24 * (number / 2) as i32);
        draw_path(&area, (0..=40).map(|x| (at.0 + x, at.1)).collect(), style)?;
        text(&area, (at.0 + 50, at.1), &gaps.of, 17, HPos::Left)?;
        draw_path(
            &area,
            (LEFT..=RIGHT)
                .map(|x| (x, y(gaps.share_up_to(length(x)))))
                .collect(),
            style,
        )?;
    }
    area.present()?;
    Ok(())
}

fn draw_axes(area: &Area<'_>, wanted: Duration) -> Drawn {
    text(
        area,
        (LEFT, TOP - 18),
        "gaps up to this length, in % of all",
        16,
        HPos::Left,
    )?;
    for percent in [0, 25, 50, 75, 100] {
        let y = y(f64::from(percent) / 100.0);
        area.draw(&PathElement::new([(LEFT, y), (RIGHT, y)], INK.mix(0.2)))?;
        text(area, (LEFT - 8, y), &percent.to_string(), 16, HPos::Right)?;
    }
    for (decade, label) in (0..).map(|power| ENDS.0 * 10_u32.pow(power)).zip(TICKS) {
        area.draw(&PathElement::new(
            [(x(decade), TOP), (x(decade), BOTTOM + 6)],
            INK.mix(0.2),
        ))?;
        text(area, (x(decade), BOTTOM + 20), label, 16, HPos::Center)?;
        for part in (2..10)
            .map(|part| decade * part)
            .filter(|&part| part < ENDS.1)
        {
            area.draw(&PathElement::new(
                [(x(part), BOTTOM), (x(part), BOTTOM + 4)],
                INK.mix(0.5),
            ))?;
        }
    }
    area.draw(&PathElement::new(
        [(x(wanted), TOP - 6), (x(wanted), BOTTOM + 6)],
        INK.stroke_width(2),
    ))?;
    text(area, (x(wanted), TOP - 18), "wanted", 16, HPos::Center)?;
    text(
        area,
        ((LEFT + RIGHT) / 2, BOTTOM + 46),
        "time from one task's permit to the next one's, logarithmic",
        16,
        HPos::Center,
    )
}

fn draw_path(area: &Area<'_>, points: Vec<(i32, i32)>, (color, width, dash): Style) -> Drawn {
    let stroke = color.stroke_width(width);
    match dash {
        Some((dash, space)) => area.draw(&DashedPathElement::new(points, dash, space, stroke))?,
        None => area.draw(&PathElement::new(points, stroke))?,
    }
    Ok(())
}

/// The column of a length on the scale.
fn x(length: Duration) -> i32 {
    let share = (length.as_secs_f64() / ENDS.0.as_secs_f64()).ln()
        / (ENDS.1.as_secs_f64() / ENDS.0.as_secs_f64()).ln();
    LEFT + (share * f64::from(RIGHT - LEFT)).round() as i32
}

/// The length at a column of the scale.
fn length(x: i32) -> Duration {
    let share = f64::from(x - LEFT) / f64::from(RIGHT - LEFT);
    ENDS.0
        .mul_f64((ENDS.1.as_secs_f64() / ENDS.0.as_secs_f64()).powf(share))
}

fn y(share: f64) -> i32 {
    BOTTOM - (share * f64::from(BOTTOM - TOP)).round() as i32
}
