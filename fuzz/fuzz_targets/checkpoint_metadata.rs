#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks/checkpoint_metadata.rs"]
mod metadata;

fuzz_target!(|bytes: &[u8]| metadata::check(bytes));
