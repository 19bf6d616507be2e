//! The protocol's sources, with rules that can be broken.
#![allow(dead_code)] // Not everything is called here.

#[path = "../../../src/lease/key.rs"]
pub mod key;
#[path = "../../../src/lease/kv.rs"]
pub mod kv;
#[path = "../../../src/lease/ranges.rs"]
pub mod ranges;
#[path = "../../../src/lease/record.rs"]
pub mod record;
pub mod rules;
#[path = "../../../src/lease/table.rs"]
pub mod table;
#[path = "../../../src/lease/worker/mod.rs"]
pub mod worker;
