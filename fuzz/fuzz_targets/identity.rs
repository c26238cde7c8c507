#![no_main]

#[allow(dead_code)]
#[path = "../../tests/integration/fuzzed/checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::identity(bytes));
