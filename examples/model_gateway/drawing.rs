//! The drawing: tokens used over time, with and without settling, against what the limit allows.

use common::Human;
use common::plot::{self, GREEN, Line, RED};
use indicatif::HumanCount;
use plotters::prelude::*;

use crate::gateway::Run;
use crate::options::Options;

const SIZE: (u32, u32) = (800, 520);
const KEPT: RGBColor = RGBColor(70, 130, 190);

/// Writes the drawing to the file that the options name.
pub(crate) fn draw(kept: &Run, settled: &Run, options: &Options) -> plot::Outcome {
    let [max_tokens, estimate] = [options.max_tokens, options.estimate()].map(HumanCount);
    let caption = format!(
        "A call reserves {estimate} tokens for its answer, which has {max_tokens} at most, and mostly far fewer."
    );
    plot::write(
        &options.svg,
        SIZE,
        (
            "Calls to a model: settling gives back what an estimate did not use",
            &caption,
        ),
        |sheet| {
            let end = kept.elapsed.max(settled.elapsed).as_secs_f64();
            let (burst, all) = (options.burst() as f64, kept.allowed.max(settled.allowed));
            let mut chart = plot::chart(
                sheet,
                &options.policy().to_string(),
                "tokens used since the start",
                end,
                all * 1.05,
            )?;
            let allowed = format!(
                "allowed: {} at once, and {} each {}",
                HumanCount(options.burst()),
                HumanCount(options.tokens),
                Human(options.minute)
            );
            Line {
                label: Some(&allowed),
                points: vec![(0.0, burst), (end, all)],
                color: RED,
                dashed: true,
            }
            .draw(&mut chart)?;
            for (run, name, color) in [(settled, "settled", GREEN), (kept, "estimate kept", KEPT)] {
                let label = format!(
                    "{name}: {:.0} % of the allowed, {} calls",
                    run.percent(),
                    HumanCount(run.calls.len() as u64)
                );
                Line {
                    label: Some(&label),
                    points: used(run),
                    color,
                    dashed: false,
                }
                .draw(&mut chart)?;
            }
            plot::legend(&mut chart, SeriesLabelPosition::UpperLeft)
        },
    )
}

/// The tokens of all answers so far.
fn used(run: &Run) -> Vec<(f64, f64)> {
    let sums = run.calls.iter().scan(0, |sum, call| {
        *sum += call.used;
        Some((call.answered.as_secs_f64(), *sum as f64))
    });
    [(0.0, 0.0)].into_iter().chain(sums).collect()
}
