//! The drawing: each client's counter over time with the threshold and the ceiling, and below it what became of each attempt.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::{Attempt, CLIENTS, Client, Options, SAMPLE, Sample};

const SIZE: (u32, u32) = (1_100, 640);
const COUNTERS: u32 = 430;
/// Both charts leave as much at the left, so that their times are above each other.
const LEFT: u32 = 70;
const INK: RGBColor = RGBColor(45, 55, 72);
const LIMIT: RGBColor = RGBColor(200, 40, 40);
const SERVED: RGBColor = RGBColor(50, 125, 95);
/// One for each client.
const COLORS: [RGBColor; CLIENTS.len()] =
    [RGBColor(70, 130, 190), RGBColor(50, 125, 95), RGBColor(225, 150, 40), RGBColor(120, 60, 150)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Outcome = Result<(), Box<dyn Error>>;

/// Writes the drawing to where the options say.
pub(crate) fn draw(attempts: &[Attempt], samples: &[Sample], options: &Options) -> Outcome {
    let path = &options.svg;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    }
    let sheet = SVGBackend::new(path, SIZE).into_drawing_area();
    sheet.fill(&WHITE)?;
    let (upper, lower) = sheet.split_vertically(COUNTERS);
    draw_counters(&upper, samples, options)?;
    draw_attempts(&lower, attempts, options)?;
    sheet.present().map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(())
}

fn draw_counters(area: &Area<'_>, samples: &[Sample], options: &Options) -> Outcome {
    let end = options.run.as_secs_f64();
    let threshold = options.threshold as f64;
    // A ban takes the place of counting what was denied.
    let ceiling = if options.ban.is_some() { threshold } else { threshold.max(options.ceiling as f64) };
    let mut chart = ChartBuilder::on(area)
        .caption("The counter of each client", ("sans-serif", 20).into_font().color(&INK))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(0.0..end, 0.0..ceiling * 1.5)?; // room for the legend
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
        .y_desc("counter")
        .draw()?;

    let of = |client| samples.iter().filter(|sample| sample.client == client).collect::<Vec<_>>();
    let locked_out = CLIENTS.iter().flat_map(|&client| {
        let spells = spells(&of(client), end, |sample| sample.locked_out.is_some());
        let locked_out = spells.into_iter().filter(|&(_, locked_out)| locked_out);
        locked_out
            .map(move |(time, _)| Rectangle::new([(time.start, 0.0), (time.end, ceiling)], color(client).mix(0.12).filled()))
    });
    chart
        .draw_series(locked_out)?
        .label("locked out")
        .legend(|(x, y)| Rectangle::new([(x, y - 5), (x + 20, y + 5)], COLORS[COLORS.len() - 1].mix(0.12).filled()));
    for client in CLIENTS {
        let counters = spells(&of(client), end, |sample| sample.counter as f64);
        let line = counters.into_iter().flat_map(|(time, counter)| [(time.start, counter), (time.end, counter)]);
        chart
            .draw_series(LineSeries::new(line, color(client).stroke_width(2)))?
            .label(client)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color(client).stroke_width(2)));
    }
    chart.draw_series(LineSeries::new([(0.0, threshold), (end, threshold)], LIMIT.stroke_width(2)))?;
    let name = TextStyle::from(("sans-serif", 14).into_font()).color(&LIMIT).pos(Pos::new(HPos::Left, VPos::Bottom));
    let named = |text: String, height| Text::new(text, (0.006 * end, height), name.clone());
    chart.draw_series([named(format!("threshold {threshold}"), threshold)])?;
    if options.ban.is_none() {
        chart.draw_series(DashedLineSeries::new([(0.0, ceiling), (end, ceiling)], 6, 4, LIMIT.stroke_width(2)))?;
        chart.draw_series([named(format!("ceiling {ceiling}"), ceiling)])?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.9))
        .border_style(INK.mix(0.3))
        .label_font(("sans-serif", 14).into_font().color(&INK))
        .draw()?;
    Ok(())
}

/// A row for each client, with a tick for each attempt.
fn draw_attempts(area: &Area<'_>, attempts: &[Attempt], options: &Options) -> Outcome {
    let rows = CLIENTS.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption("Attempts: served (green, high) and denied (red, low)", ("sans-serif", 20).into_font().color(&INK))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(24)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(0.0..options.run.as_secs_f64(), rows..0.0)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK)
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .y_labels(2 * CLIENTS.len() + 1) // also between two rows, where none is named
        .y_label_formatter(&|&height| if height.fract() == 0.5 { CLIENTS[height as usize].to_owned() } else { String::new() })
        .draw()?;
    let ticks = attempts.iter().map(|attempt| {
        let (at, row) = (attempt.at.as_secs_f64(), row(attempt.client) as f64);
        let (span, color) = if attempt.served { (0.1..0.55, SERVED) } else { (0.5..0.9, LIMIT) };
        PathElement::new([(at, row + span.start), (at, row + span.end)], color.stroke_width(2))
    });
    chart.draw_series(ticks)?;
    Ok(())
}

/// From when to when something about a client was the same.
fn spells<T: PartialEq>(samples: &[&Sample], end: f64, what: impl Fn(&Sample) -> T) -> Vec<(Range<f64>, T)> {
    let spells = samples.chunk_by(|one, next| what(one) == what(next));
    let until = |last: &Sample| (last.at + SAMPLE).as_secs_f64().min(end);
    spells.map(|spell| (spell[0].at.as_secs_f64()..until(spell[spell.len() - 1]), what(spell[0]))).collect()
}

fn row(client: Client) -> usize {
    CLIENTS.iter().position(|&known| known == client).unwrap_or(0)
}

fn color(client: Client) -> RGBColor {
    COLORS[row(client)]
}

/// Counters are whole; a tick between two of them goes unnamed.
fn whole(value: &f64) -> String {
    if (value - value.round()).abs() < 1e-6 { format!("{value:.0}") } else { String::new() }
}
