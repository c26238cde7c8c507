//! The drawing: each client's counter over time with the threshold and the ceiling, and below it each attempt.

use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::{Attempt, CLIENTS, Client, Options, SAMPLE, Sample};
use common::plot::{self, Area, GREEN, INK, Line, RED, swatch};

const SIZE: (u32, u32) = (1_100, 680);
/// The height of the upper chart.
const COUNTERS: u32 = 430;
/// The colour of each client.
const COLORS: [RGBColor; CLIENTS.len()] = [
    RGBColor(70, 130, 190),
    GREEN,
    RGBColor(225, 150, 40),
    RGBColor(120, 60, 150),
];

/// Writes the drawing to the file that the options name.
pub(crate) fn draw(attempts: &[Attempt], samples: &[Sample], options: &Options) -> plot::Outcome {
    let headline = format!(
        "A search API whose policy for each client is: {}",
        tollgate::Limit::from(options.penalty())
    );
    let caption = if options.ban.is_some() {
        "eve retries all the time: each ban is twice as long as the one before. The others never reach the threshold."
    } else {
        "eve retries all the time: denied attempts count as well, so eve stays locked out until it stops. The others are served."
    };
    plot::write(&options.svg, SIZE, (&headline, caption), |sheet| {
        let (upper, lower) = sheet.split_vertically(COUNTERS);
        draw_counters(&upper, samples, options)?;
        draw_attempts(&lower, attempts, options)
    })
}

fn draw_counters(area: &Area<'_>, samples: &[Sample], options: &Options) -> plot::Outcome {
    let end = options.run.as_secs_f64();
    let threshold = options.threshold as f64;
    // With bans, denied attempts do not count: the counter does not rise above the threshold.
    let ceiling = if options.ban.is_some() {
        threshold
    } else {
        threshold.max(options.ceiling as f64)
    };
    let mut chart = plot::chart(
        area,
        "The counter of each client: every attempt raises it, time lowers it",
        "counter",
        end,
        ceiling * 1.5,
    )?; // room for the legend
    let of = |client| {
        samples
            .iter()
            .filter(|sample| sample.client == client)
            .collect::<Vec<_>>()
    };
    let locked_out = CLIENTS.iter().flat_map(|&client| {
        let spells = spells(&of(client), end, |sample| sample.locked_out.is_some());
        let locked_out = spells.into_iter().filter(|&(_, locked_out)| locked_out);
        locked_out.map(move |(time, _)| {
            Rectangle::new(
                [(time.start, 0.0), (time.end, ceiling)],
                color(client).mix(0.12).filled(),
            )
        })
    });
    chart
        .draw_series(locked_out)?
        .label("locked out")
        .legend(|(x, y)| swatch(x, y, COLORS[COLORS.len() - 1].mix(0.12)));
    for client in CLIENTS {
        let counters = spells(&of(client), end, |sample| sample.counter as f64);
        let points = counters
            .into_iter()
            .flat_map(|(time, counter)| [(time.start, counter), (time.end, counter)]);
        Line {
            label: Some(client),
            points: points.collect(),
            color: color(client),
            dashed: false,
        }
        .draw(&mut chart)?;
    }
    let mut levels = vec![(format!("threshold {threshold}"), threshold, false)];
    if options.ban.is_none() {
        levels.push((format!("ceiling {ceiling}"), ceiling, true));
    }
    let style = plot::text(14, RED).pos(Pos::new(HPos::Left, VPos::Bottom));
    for (name, height, dashed) in levels {
        Line {
            label: None,
            points: vec![(0.0, height), (end, height)],
            color: RED,
            dashed,
        }
        .draw(&mut chart)?;
        chart.draw_series([Text::new(name, (0.006 * end, height), style.clone())])?;
    }
    plot::legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// A row for each client, with a tick for each attempt.
fn draw_attempts(area: &Area<'_>, attempts: &[Attempt], options: &Options) -> plot::Outcome {
    let title = "Attempts: served (green, high) and denied (red, low)";
    let mut chart = plot::frame(
        area,
        title,
        24,
        options.run.as_secs_f64(),
        CLIENTS.len() as f64..0.0,
    )?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK)
        .label_style(plot::text(14, INK))
        .x_label_formatter(&plot::seconds)
        .y_labels(2 * CLIENTS.len() + 1) // half of them are between two rows and have no label
        .y_label_formatter(&|&height| {
            if height.fract() == 0.5 {
                CLIENTS[height as usize].to_owned()
            } else {
                String::new()
            }
        })
        .draw()?;
    let ticks = attempts.iter().map(|attempt| {
        let (at, row) = (attempt.at.as_secs_f64(), row(attempt.client) as f64);
        let (span, color) = if attempt.served {
            (0.1..0.55, GREEN)
        } else {
            (0.5..0.9, RED)
        };
        PathElement::new(
            [(at, row + span.start), (at, row + span.end)],
            color.stroke_width(2),
        )
    });
    chart.draw_series(ticks)?;
    Ok(())
}

/// The spans of time in which something about a client stayed the same.
fn spells<T: PartialEq>(
    samples: &[&Sample],
    end: f64,
    what: impl Fn(&Sample) -> T,
) -> Vec<(Range<f64>, T)> {
    let spells = samples.chunk_by(|one, next| what(one) == what(next));
    let until = |last: &Sample| (last.at + SAMPLE).as_secs_f64().min(end);
    spells
        .map(|spell| {
            (
                spell[0].at.as_secs_f64()..until(spell[spell.len() - 1]),
                what(spell[0]),
            )
        })
        .collect()
}

fn row(client: Client) -> usize {
    CLIENTS
        .iter()
        .position(|&known| known == client)
        .unwrap_or(0)
}

fn color(client: Client) -> RGBColor {
    COLORS[row(client)]
}
