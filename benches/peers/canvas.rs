//! What all drawings have in common: the area, the ink and the letters.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), Box<dyn Error>>;

pub(crate) const INK: RGBColor = RGBColor(45, 55, 72);

pub(crate) fn text(area: &Area<'_>, at: (i32, i32), text: &str, size: u32, side: HPos) -> Drawn {
    let style = ("sans-serif", size)
        .into_font()
        .color(&INK)
        .pos(Pos::new(side, VPos::Center));
    area.draw_text(text, &style, at)?;
    Ok(())
}
