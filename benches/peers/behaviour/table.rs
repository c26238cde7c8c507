//! The two tables: one of places, one of rates. A row is a question, and a cell what happened in a run.

use std::time::Duration;

use crate::limiters::{Contestant, OfPlaces, OfRates};

/// A cell of a limiter that lacks what is asked.
pub(crate) const NO_COST: &str = "– a request has no cost";

pub(crate) enum Row {
    OfPlaces(Line),
    OfRates(Line),
}

pub(crate) struct Line {
    question: String,
    answers: Vec<String>,
}

impl Row {
    pub(crate) fn of_places(question: &str, ask: impl Fn(OfPlaces) -> String) -> Self {
        Self::OfPlaces(Line::new(question, ask))
    }

    pub(crate) fn of_rates(question: &str, ask: impl Fn(OfRates) -> String) -> Self {
        Self::OfRates(Line::new(question, ask))
    }
}

impl Line {
    fn new<C: Contestant>(question: &str, ask: impl Fn(C) -> String) -> Self {
        let answer = |contestant: &C| {
            eprintln!("  {}", contestant.name());
            ask(*contestant)
        };
        Self {
            question: question.to_owned(),
            answers: C::ALL.iter().map(answer).collect(),
        }
    }
}

pub(crate) fn print(rows: &[Row]) {
    let lines = |of: fn(&Row) -> Option<&Line>| rows.iter().filter_map(of).collect::<Vec<_>>();
    print_lines::<OfPlaces>(&lines(|row| match row {
        Row::OfPlaces(line) => Some(line),
        Row::OfRates(_) => None,
    }));
    print_lines::<OfRates>(&lines(|row| match row {
        Row::OfRates(line) => Some(line),
        Row::OfPlaces(_) => None,
    }));
}

fn print_lines<C: Contestant>(lines: &[&Line]) {
    if lines.is_empty() {
        return;
    }
    let names: Vec<_> = C::ALL.iter().map(|contestant| contestant.name()).collect();
    println!("| what happens when … | {} |", names.join(" | "));
    println!("|---|{}", "---|".repeat(names.len()));
    for line in lines {
        println!("| {} | {} |", line.question, line.answers.join(" | "));
    }
    println!();
}

/// A time in few digits.
pub(crate) fn brief(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (number, decimals, unit) = match seconds {
        0.0 => (0.0, 0, "ms"),
        ..0.001 => (1e6 * seconds, 0, "µs"),
        ..0.01 => (1e3 * seconds, 1, "ms"),
        ..1.0 => (1e3 * seconds, 0, "ms"),
        ..100.0 => (seconds, 2, "s"),
        _ => (seconds, 0, "s"),
    };
    let digits = format!("{number:.decimals$}");
    let digits = match digits.split_once('.') {
        Some(_) => digits.trim_end_matches('0').trim_end_matches('.'),
        None => &digits,
    };
    format!("{digits} {unit}")
}

/// A number with a comma before the last three digits.
pub(crate) fn grouped(number: usize) -> String {
    match number {
        ..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    }
}
