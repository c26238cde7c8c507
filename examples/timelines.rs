//! What each limit admits over time: the same attempts, before limits of about 5 a second.
//!
//! ```text
//! cargo run --example timelines
//! cargo run --example timelines -- "8/s burst 2" "window 8/s and 4 concurrent"    # your own
//! ```
//!
//! A caller tries every 50 ms, from 0.75 s to 3.25 s and again from 4.75 s on. It holds what it gets for 0.4 s. The limits decide by
//! tokio's paused clock, so the example takes a moment, and each run has the same result. It prints how many attempts were granted, and
//! the most that were granted within any second, and draws both in `target/timelines.svg`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use common::plot::{self, Area, INK};
use common::{exit_code, say};
use plotters::prelude::*;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{Limiter, Policy};

const POLICIES: [&str; 8] = [
    "2 concurrent",
    "throttle every 200ms",
    "5/s",
    "window 5/s",
    "sliding log 5/s",
    "sliding counter 5/s",
    "penalty 10 falling 5/s ban 1s",
    "2 concurrent and window 3/s",
];
const ATTEMPTS: [(u64, u64); 2] = [(750, 3_250), (4_750, 5_750)];
const EVERY: u64 = 50;
const HOLD: Duration = Duration::from_millis(400);
const SECOND: u64 = 1_000;
const END: u64 = 6_000;
const GRANTED: RGBColor = RGBColor(50, 125, 95);
const DENIED: RGBColor = RGBColor(214, 150, 140);

/// Draws what policies admit over time
#[derive(Debug, Parser)]
struct Options {
    /// Policies, each as text
    #[arg(default_values_t = POLICIES.map(String::from))]
    policies: Vec<String>,
    /// File for the drawing
    #[arg(long, value_name = "FILE", default_value = "target/timelines.svg")]
    svg: PathBuf,
}

/// The instants of the attempts, in milliseconds.
struct Timeline {
    policy: Policy,
    granted: Vec<u64>,
    denied: Vec<u64>,
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let mut timelines = Vec::new();
    for text in &options.policies {
        let timeline = Timeline::of(text.parse()?).await?;
        say!("{}", timeline.summary());
        timelines.push(timeline);
    }
    draw(&timelines, &options.svg)?;
    say!("drawing  {}", options.svg.display());
    Ok(ExitCode::SUCCESS)
}

impl Timeline {
    async fn of(policy: Policy) -> Result<Self, Box<dyn Error>> {
        let limiter = Limiter::new(policy.clone())?;
        let start = Instant::now();
        let (mut granted, mut denied) = (Vec::new(), Vec::new());
        for at in ATTEMPTS
            .into_iter()
            .flat_map(|(from, to)| (from..to).step_by(EVERY as usize))
        {
            sleep_until(start + Duration::from_millis(at)).await;
            match limiter.try_acquire() {
                Ok(permit) => {
                    granted.push(at);
                    tokio::spawn(async move {
                        sleep(HOLD).await;
                        permit.release();
                    });
                }
                Err(_) => denied.push(at),
            }
        }
        Ok(Self {
            policy,
            granted,
            denied,
        })
    }

    fn summary(&self) -> String {
        let within = |from: u64| {
            self.granted
                .iter()
                .filter(|at| (from..from + SECOND).contains(at))
                .count()
        };
        let most = self.granted.iter().map(|at| within(*at)).max().unwrap_or(0);
        let (granted, attempts) = (self.granted.len(), self.granted.len() + self.denied.len());
        format!(
            "{}: {granted} of {attempts} granted, at most {most} within a second",
            self.policy
        )
    }
}

/// A strip for each policy: what was granted above the line, what was denied below it.
fn draw(timelines: &[Timeline], path: &Path) -> plot::Outcome {
    let size = (860, 90 + 74 * timelines.len() as u32);
    let headline = "The same attempts before different limits";
    let caption = "One attempt every 50 ms. Above the line, green: granted. Below it, red: denied. Numbers: seconds.";
    plot::write(path, size, (headline, caption), |sheet| {
        for (area, timeline) in sheet
            .split_evenly((timelines.len(), 1))
            .iter()
            .zip(timelines)
        {
            draw_strip(area, timeline)?;
        }
        Ok(())
    })
}

fn draw_strip(area: &Area<'_>, timeline: &Timeline) -> plot::Outcome {
    let mut chart = ChartBuilder::on(area)
        .caption(timeline.summary(), plot::text(15, INK))
        .margin(4)
        .margin_right(20)
        .margin_left(12)
        .x_label_area_size(16)
        .build_cartesian_2d(0.0..END as f64 / 1_000.0, -0.6..1.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_labels(7)
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .axis_style(TRANSPARENT)
        .label_style(plot::text(12, INK))
        .x_label_formatter(&|seconds| format!("{seconds:.0}"))
        .draw()?;
    let line = |from: (f64, f64), to: (f64, f64), color: RGBColor| {
        PathElement::new(vec![from, to], color.stroke_width(3))
    };
    let ticks = |instants: &[u64], to: f64, color: RGBColor| {
        let at = |at: &u64| *at as f64 / 1_000.0;
        let tick = |at: f64| line((at, 0.0), (at, to), color);
        instants.iter().map(at).map(tick).collect::<Vec<_>>()
    };
    chart.draw_series(ticks(&timeline.denied, -0.5, DENIED))?;
    chart.draw_series(ticks(&timeline.granted, 1.0, GRANTED))?;
    let base = [(0.0, 0.0), (END as f64 / 1_000.0, 0.0)];
    chart.draw_series(LineSeries::new(base, INK))?;
    Ok(())
}
