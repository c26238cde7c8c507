//! Prints the public API of a crate, an item a line, from the JSON that rustdoc has written of it.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let json = std::env::args_os().nth(1).ok_or("which file?")?;
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()?;
    for item in api.items() {
        println!("{item}");
    }
    Ok(())
}
