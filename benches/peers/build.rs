//! Takes the code of other limiters out of the guide, for `coming_from.rs`.

use std::path::Path;
use std::{env, fs, io};

const GUIDE: &str = "../../src/guide/coming_from.md";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={GUIDE}");
    let guide = fs::read_to_string(GUIDE)?;
    // In the guide, this code is not compiled, because the crate does not depend on its peers.
    let blocks = guide.split("```rust,ignore\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```\n").next());
    let code: String = blocks
        .map(|block| format!("```rust,no_run\n{block}```\n\n"))
        .collect();
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    fs::write(Path::new(&out).join("coming_from.md"), code)
}
