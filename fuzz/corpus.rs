//! A corpus of `tests/integration/fuzzed` has an input on each line. libFuzzer wants a folder with a file for each.
//!
//! `corpus unpack FILE FOLDER` and `corpus pack FILE FOLDER`

use std::{env, fs, io};

#[allow(dead_code)]
#[path = "../tests/integration/fuzzed/corpus.rs"]
mod corpus;

fn main() -> io::Result<()> {
    let words: Vec<_> = env::args().collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        ["unpack", file, folder] => {
            for (nth, input) in corpus::inputs(&fs::read_to_string(file)?).enumerate() {
                fs::write(format!("{folder}/{nth}"), input)?;
            }
            Ok(())
        }
        ["pack", file, folder] => {
            let files = fs::read_dir(folder)?.map(|file| fs::read(file?.path()));
            let mut lines = files
                .map(|bytes| Ok(format!("{}\n", bytes?.escape_ascii())))
                .collect::<io::Result<Vec<_>>>()?;
            lines.sort();
            fs::write(file, lines.concat())
        }
        _ => Err(io::Error::other("corpus unpack|pack FILE FOLDER")),
    }
}
