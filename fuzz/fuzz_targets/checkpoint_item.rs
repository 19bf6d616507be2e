#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks/checkpoint_item.rs"]
mod item;

fuzz_target!(|bytes: &[u8]| item::check(bytes));
