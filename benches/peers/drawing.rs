//! The drawing of the ratios: a line for each ratio of the table, of tollgate to a peer.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::canvas::{Area, Drawn, INK, text};
use crate::table::Proportion;

const WIDTH: i32 = 900;
/// The height of the title, the legend and the numbers of the scale, above the lines.
const HEAD: i32 = 96;
const LINE: i32 = 18;
/// The gap between two workloads.
const GAP: i32 = 8;
const FOOT: i32 = 26;

/// The columns from left to right. Numbers end at their column, texts begin there.
const WORKLOAD: i32 = 12;
const CASE: i32 = 44;
const SCALE: (i32, i32) = (334, 588);
const RATIO: i32 = 636;
const TARGET: i32 = 676;
const PEER: i32 = 686;

/// The ends of the logarithmic scale. An arrow at an end marks a ratio beyond it.
const ENDS: (f64, f64) = (0.25, 4.0);
const TICKS: [(f64, &str); 5] = [(0.25, "¼"), (0.5, "½"), (1.0, "1"), (2.0, "2"), (4.0, "4")];

/// Blue and orange differ for every kind of colour vision, and the shapes differ without colour.
const MET: RGBColor = RGBColor(0, 114, 178);
const MISSED: RGBColor = RGBColor(213, 94, 0);

pub(crate) fn draw(proportions: &[&Proportion], path: &Path) -> Drawn {
    let groups: Vec<_> = proportions
        .chunk_by(|one, other| one.workload == other.workload)
        .collect();
    let end = HEAD + proportions.len() as i32 * LINE + groups.len() as i32 * GAP;
    let area = SVGBackend::new(path, (WIDTH as u32, (end + FOOT) as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    draw_head(&area)?;
    for (value, label) in TICKS {
        let ink = if value == 1.0 {
            INK.stroke_width(1)
        } else {
            INK.mix(0.2).stroke_width(1)
        };
        area.draw(&PathElement::new(
            [(x(value), HEAD - 4), (x(value), end)],
            ink,
        ))?;
        text(&area, (x(value), HEAD - 12), label, 13, HPos::Center)?;
        text(&area, (x(value), end + 12), label, 13, HPos::Center)?;
    }
    let mut y = HEAD + LINE / 2;
    for group in groups {
        area.draw(&PathElement::new(
            [(WORKLOAD, y - LINE / 2), (WIDTH - WORKLOAD, y - LINE / 2)],
            INK.mix(0.25),
        ))?;
        y += GAP / 2;
        text(&area, (WORKLOAD, y), &group[0].workload, 14, HPos::Left)?;
        let mut case = "";
        for line in group {
            if line.case != case {
                text(&area, (CASE, y), &line.case, 12, HPos::Left)?;
                case = &line.case;
            }
            draw_line(&area, line, y)?;
            y += LINE;
        }
        y += GAP - GAP / 2;
    }
    area.present()?;
    Ok(())
}

fn draw_head(area: &Area<'_>) -> Drawn {
    let title = "tollgate in proportion to its peers: left is better";
    text(area, (WORKLOAD, 18), title, 18, HPos::Left)?;
    let what = "time, memory or CPU, divided by the peer's; of throughput, the peer's divided by tollgate's; logarithmic";
    text(area, (WORKLOAD, 40), what, 13, HPos::Left)?;
    let y = 62;
    for (at, mark, label) in [
        (WORKLOAD + 6, Some(true), "target met"),
        (WORKLOAD + 106, Some(false), "target missed"),
        (WORKLOAD + 226, None, "no target"),
    ] {
        draw_mark(area, (at, y), mark)?;
        text(area, (at + 12, y), label, 13, HPos::Left)?;
    }
    draw_bar(area, (WORKLOAD + 320, y))?;
    text(area, (WORKLOAD + 328, y), "target", 13, HPos::Left)?;
    text(area, (RATIO, HEAD - 12), "ratio", 13, HPos::Right)?;
    text(area, (TARGET, HEAD - 12), "target", 13, HPos::Right)?;
    text(area, (PEER, HEAD - 12), "peer", 13, HPos::Left)
}

fn draw_line(area: &Area<'_>, line: &Proportion, y: i32) -> Drawn {
    let met = line.bar.map(|bar| line.ratio <= bar);
    let at = x(line.ratio);
    area.draw(&PathElement::new(
        [(x(1.0), y), (at, y)],
        color(met).mix(0.5).stroke_width(2),
    ))?;
    if let Some(bar) = line.bar {
        if is_on_scale(bar) {
            draw_bar(area, (x(bar), y))?;
        }
        text(area, (TARGET, y), &format!("{bar:.2}"), 12, HPos::Right)?;
    }
    draw_mark(area, (at, y), met)?;
    if !is_on_scale(line.ratio) {
        let out = if line.ratio < ENDS.0 { -1 } else { 1 };
        let arrow = [
            (at + 15 * out, y),
            (at + 8 * out, y - 5),
            (at + 8 * out, y + 5),
        ];
        area.draw(&Polygon::new(arrow, color(met).filled()))?;
    }
    text(
        area,
        (RATIO, y),
        &format!("{:.2}", line.ratio),
        12,
        HPos::Right,
    )?;
    text(area, (PEER, y), &line.peer, 12, HPos::Left)
}

/// Draws a disc if the target is met, a cross if it is missed, and a ring if there is none.
fn draw_mark(area: &Area<'_>, at: (i32, i32), met: Option<bool>) -> Drawn {
    match met {
        Some(true) => area.draw(&Circle::new(at, 5, MET.filled()))?,
        Some(false) => area.draw(&Cross::new(at, 5, MISSED.stroke_width(3)))?,
        None => {
            area.draw(&Circle::new(at, 4, WHITE.filled()))?;
            area.draw(&Circle::new(at, 4, color(None).stroke_width(2)))?;
        }
    }
    Ok(())
}

/// The target of a line.
fn draw_bar(area: &Area<'_>, (x, y): (i32, i32)) -> Drawn {
    area.draw(&PathElement::new(
        [(x, y - 8), (x, y + 8)],
        INK.stroke_width(2),
    ))?;
    Ok(())
}

fn color(met: Option<bool>) -> RGBColor {
    match met {
        Some(true) => MET,
        Some(false) => MISSED,
        None => RGBColor(120, 120, 120),
    }
}

fn is_on_scale(proportion: f64) -> bool {
    (ENDS.0..=ENDS.1).contains(&proportion)
}

/// The column of a proportion on the scale.
fn x(proportion: f64) -> i32 {
    let share = (proportion.clamp(ENDS.0, ENDS.1) / ENDS.0).ln() / (ENDS.1 / ENDS.0).ln();
    SCALE.0 + (share * f64::from(SCALE.1 - SCALE.0)).round() as i32
}
