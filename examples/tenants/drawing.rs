//! The drawing: the share of each tenant over time, for each limit, before and after, with the fair shares.

use std::path::Path;
use std::time::Duration;

use common::Human;
use common::plot::{self, Area, INK, Line};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::load::{ARRIVAL, END, Run};
use crate::shares::THREE_TENANTS;

const SIZE: (u32, u32) = (1_100, 720);
/// Shares are measured over spans of this length.
const BIN: Duration = Duration::from_millis(500);
/// The colour of each tenant.
const COLORS: [RGBColor; 3] = [
    RGBColor(240, 180, 70),
    RGBColor(105, 160, 215),
    RGBColor(200, 204, 210),
];

/// Writes the drawing to the file: a row for each limit.
pub(crate) fn draw(pairs: &[[Run; 2]], path: &Path) -> plot::Outcome {
    let headline = "Three tenants share a limiter: gold has weight 3, late arrives halfway, flood fills the queue";
    let caption = "Left: in order of arrival. Right: each tenant is a flow. Dashed: fair shares. Percentages: while all three ask.";
    plot::write(path, SIZE, (headline, caption), |sheet| {
        let areas = sheet.split_evenly((pairs.len(), 2));
        for (row, [before, after]) in areas.chunks(2).zip(pairs) {
            draw_shares(&row[0], before, "before")?;
            draw_shares(&row[1], after, "after")?;
        }
        Ok(())
    })
}

fn draw_shares(area: &Area<'_>, run: &Run, when: &str) -> plot::Outcome {
    let (policy, first_wait) = (run.policy, Human(run.first_wait(&run.tenants[1])));
    let title = format!("{policy}, {when}: late's first request waits {first_wait}");
    let (unit, end) = (format!("% of the {}", run.shared.name()), END.as_secs_f64());
    let mut chart = plot::chart(area, &title, &unit, end, 100.0)?;
    // Each area covers the lower part of the area that was drawn before it.
    for (nth, color) in COLORS.iter().enumerate().rev() {
        let bins = (0..END.div_duration_f64(BIN) as u32).map(|bin| BIN * bin..BIN * (bin + 1));
        let steps = bins.flat_map(|bin| {
            let shares = run.tenants[..=nth]
                .iter()
                .map(|tenant| run.share(tenant, &bin));
            let top = shares.sum::<f64>() * 100.0;
            [(bin.start.as_secs_f64(), top), (bin.end.as_secs_f64(), top)]
        });
        chart.draw_series(AreaSeries::new(steps, 0.0, color.filled()))?;
    }
    let (style, arrival) = (
        plot::text(15, INK).pos(Pos::new(HPos::Center, VPos::Center)),
        ARRIVAL.as_secs_f64(),
    );
    let mut below = [0.0; 2];
    for tenant in &run.tenants {
        let fair = [Duration::ZERO, ARRIVAL].map(|at| run.fair_share(tenant, at) * 100.0);
        let label = format!(
            "{} {:.0} %",
            tenant.name,
            run.share(tenant, &THREE_TENANTS) * 100.0
        );
        let middle = (0.75 * end, below[1] + fair[1] * 0.6);
        chart.draw_series([Text::new(label, middle, style.clone())])?;
        below = [below[0] + fair[0], below[1] + fair[1]];
        let [two, three] = below;
        Line {
            label: None,
            points: vec![(0.0, two), (arrival, two), (arrival, three), (end, three)],
            color: INK,
            dashed: true,
        }
        .draw(&mut chart)?;
    }
    Ok(())
}
