//! The corpora of the fuzzers: the inputs of each in a file of this folder.

use std::panic::{RefUnwindSafe, catch_unwind};

/// The inputs of a corpus, each on a line, as `escape_ascii` writes them.
pub(crate) fn inputs(corpus: &str) -> impl Iterator<Item = Vec<u8>> {
    fn byte(rest: &mut std::str::Bytes<'_>) -> Option<u8> {
        let first = rest.next()?;
        if first != b'\\' {
            return Some(first);
        }
        Some(match rest.next()? {
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'x' => {
                let digits = String::from_iter([rest.next()?, rest.next()?].map(char::from));
                u8::from_str_radix(&digits, 16).ok()?
            }
            escaped => escaped,
        })
    }
    corpus.lines().map(|line| {
        let mut rest = line.bytes();
        std::iter::from_fn(|| byte(&mut rest)).collect()
    })
}

/// Checks all inputs of a corpus.
#[track_caller]
pub(crate) fn replay(corpus: &str, check: impl Fn(&[u8]) + RefUnwindSafe) {
    let inputs: Vec<_> = inputs(corpus).collect();
    assert!(inputs.len() > 40, "{} inputs", inputs.len());
    let failed: Vec<_> = inputs
        .iter()
        .filter(|input| catch_unwind(|| check(input)).is_err())
        .map(|input| input.escape_ascii().to_string())
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
