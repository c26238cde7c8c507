//! Reads URLs, one in each line. Blank lines and lines that begin with `#` are skipped.

use std::io::read_to_string;
use std::path::Path;

use reqwest::Url;

/// The URLs in a file or in standard input. A line that is not a URL is an error with the reason.
pub(crate) fn read(input: &Path) -> Result<Vec<Result<Url, String>>, String> {
    let text = if input == Path::new("-") {
        read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(input)
    };
    let text = text.map_err(|error| format!("cannot read {}: {error}", input.display()))?;
    let lines = text
        .lines()
        .map(str::trim)
        .enumerate()
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    Ok(lines
        .map(|(index, line)| {
            parse(line).map_err(|why| format!("line {}: `{line}`: {why}", index + 1))
        })
        .collect())
}

fn parse(line: &str) -> Result<Url, String> {
    let url = Url::parse(line).map_err(|error| error.to_string())?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err("neither http nor https".into())
    }
}
