//! The drawing: the places that each process holds, one above the other, and the grants of each and of all, against the limits.

use std::time::Duration;

use common::Human;
use common::plot::{self, Area, GREEN, INK, Line, RED, swatch};
use plotters::prelude::*;
use tollgate::{Limit, Policy};

use crate::check::{admitted_within, places, returned};
use crate::options::Options;
use crate::record::Run;

const WIDTH: u32 = 1_100;
const HEIGHT: u32 = 420;
/// The colours of the processes, in turn.
const COLORS: [RGBColor; 8] = [
    RGBColor(70, 130, 190),
    RGBColor(225, 150, 40),
    GREEN,
    RGBColor(120, 60, 150),
    RGBColor(110, 180, 200),
    RGBColor(170, 120, 70),
    RGBColor(210, 110, 160),
    RGBColor(130, 140, 60),
];
/// With more processes, they have no labels.
const LABELS: usize = 6;

/// Writes the drawing to the file that the options name.
pub(crate) fn draw(run: &Run, policy: &Policy, options: &Options) -> plot::Outcome {
    let headline = format!("{} processes share: {policy}", run.processes.len());
    let caption = match (returned(policy, run), &run.killed) {
        (Some(returned), Some(killed)) => {
            let places = if returned.held == 1 {
                "1 place".to_owned()
            } else {
                format!("{} places", returned.held)
            };
            let back = returned
                .all
                .map(|all| format!("; {} later others have them", Human(all)))
                .unwrap_or_default();
            format!(
                "{} until process {} is killed while it holds {places}{back}.",
                shares(run, killed.at),
                killed.process + 1
            )
        }
        _ => format!("{}.", shares(run, run.end)),
    };
    let mut charts: Vec<fn(&Area<'_>, &Run, &Policy) -> plot::Outcome> = Vec::new();
    if places(policy).is_some() {
        charts.push(draw_places);
    }
    if admitted_within(policy, 0.0).is_finite() {
        charts.push(draw_grants);
    }
    let size = (WIDTH, 60 + HEIGHT * charts.len().max(1) as u32);
    plot::write(&options.svg, size, (&headline, &caption), |sheet| {
        for (area, chart) in sheet
            .split_evenly((charts.len().max(1), 1))
            .iter()
            .zip(charts)
        {
            chart(area, run, policy)?;
        }
        Ok(())
    })
}

/// Says how the grants until this time are shared.
fn shares(run: &Run, until: Duration) -> String {
    let mut counts = vec![0_u64; run.processes.len()];
    for (process, _) in run.grants().filter(|(_, grant)| grant.at < until) {
        counts[process] += 1;
    }
    let all = counts.iter().sum::<u64>().max(1) as f64;
    let [least, most] = [counts.iter().min(), counts.iter().max()]
        .map(|count| 100.0 * count.copied().unwrap_or_default() as f64 / all);
    format!("Each process gets {least:.0} to {most:.0} % of the grants")
}

fn color(process: usize) -> RGBColor {
    COLORS[process % COLORS.len()]
}

fn name(process: usize) -> String {
    format!("process {}", process + 1)
}

fn draw_places(area: &Area<'_>, run: &Run, policy: &Policy) -> plot::Outcome {
    let (end, limit) = (run.end.as_secs_f64(), places(policy).unwrap_or(0) as f64);
    // Steps: the height of a process is what it and the ones below it hold.
    let mut steps = vec![vec![(0.0, 0.0)]; run.processes.len()];
    for (at, process, change) in run.changes() {
        for steps in &mut steps[process..] {
            let (_, before) = steps[steps.len() - 1];
            steps.extend([
                (at.as_secs_f64(), before),
                (at.as_secs_f64(), before + change as f64),
            ]);
        }
    }
    let highest = steps
        .iter()
        .flatten()
        .map(|&(_, height)| height)
        .fold(limit, f64::max);
    let title = "Places held: each process above the ones before it";
    let mut chart = plot::chart(area, title, "places", end, highest * 2.0)?; // room for the legend
    for (process, steps) in steps.into_iter().enumerate().rev() {
        let series = chart.draw_series(AreaSeries::new(steps, 0.0, color(process).filled()))?;
        if run.processes.len() <= LABELS {
            series
                .label(name(process))
                .legend(move |(x, y)| swatch(x, y, color(process).into()));
        }
    }
    let label = format!("limit {limit}");
    Line {
        label: Some(&label),
        points: vec![(0.0, limit), (end, limit)],
        color: RED,
        dashed: true,
    }
    .draw(&mut chart)?;
    if let Some(killed) = &run.killed {
        let (from, ttl) = (killed.at.as_secs_f64(), ttl(policy));
        let label = format!("process {} was killed here; one TTL", killed.process + 1);
        let span = Rectangle::new(
            [(from, 0.0), ((from + ttl).min(end), highest * 1.1)],
            INK.mix(0.14).filled(),
        );
        chart
            .draw_series([span])?
            .label(label)
            .legend(|(x, y)| swatch(x, y, INK.mix(0.14)));
        Line {
            label: None,
            points: vec![(from, 0.0), (from, highest * 1.1)],
            color: INK,
            dashed: false,
        }
        .draw(&mut chart)?;
    }
    plot::legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// The shortest TTL of the policy, in seconds.
fn ttl(policy: &Policy) -> f64 {
    let ttls = policy.limits().iter().filter_map(|limit| match limit {
        Limit::MaxConcurrency(concurrency) => concurrency.get_ttl(),
        _ => None,
    });
    ttls.min().unwrap_or_default().as_secs_f64()
}

/// Draws grants by the clock of the store, which keeps the rates. That clock is aligned with the clock of this machine so that no
/// grant reaches its holder before it is granted.
fn draw_grants(area: &Area<'_>, run: &Run, policy: &Policy) -> plot::Outcome {
    let end = run.end.as_secs_f64();
    let offset = run
        .grants()
        .map(|(_, grant)| grant.at.as_secs_f64() - grant.fence as f64 / 1e6)
        .fold(f64::INFINITY, f64::min);
    let mut grants: Vec<_> = run
        .grants()
        .map(|(process, grant)| (grant.fence as f64 / 1e6 + offset, process))
        .collect();
    grants.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let first = grants.first().map_or(0.0, |&(at, _)| at);
    let top = (grants.len() as f64 * 1.6).max(1.0);

    let mut chart = plot::chart(
        area,
        "Grants since the start, by the clock of the store",
        "grants",
        end,
        top,
    )?;
    let admitted = (0..=400).map(|step| first + (end - first) * f64::from(step) / 400.0);
    let admitted = admitted
        .map(|at| (at, admitted_within(policy, at - first)))
        .take_while(|&(_, count)| count < top);
    Line {
        label: Some("the most that the rate admits"),
        points: admitted.collect(),
        color: RED,
        dashed: true,
    }
    .draw(&mut chart)?;
    Line {
        label: Some("all processes"),
        points: sums(&grants, end, |_| true),
        color: INK,
        dashed: false,
    }
    .draw(&mut chart)?;
    for process in 0..run.processes.len() {
        let label = name(process);
        let label = (run.processes.len() <= LABELS).then_some(label.as_str());
        let points = sums(&grants, end, |of| of == process);
        Line {
            label,
            points,
            color: color(process),
            dashed: false,
        }
        .draw(&mut chart)?;
    }
    plot::legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

/// How many grants there were until each instant.
fn sums(grants: &[(f64, usize)], end: f64, counted: impl Fn(usize) -> bool) -> Vec<(f64, f64)> {
    let mut sum = 0.0;
    let mut points = vec![(0.0, 0.0)];
    for &(at, _) in grants.iter().filter(|&&(_, process)| counted(process)) {
        points.extend([(at, sum), (at, sum + 1.0)]);
        sum += 1.0;
    }
    points.push((end, sum));
    points
}
