//! The checkpoint reader against torch's, against itself, and against damage.

#[path = "../common/mod.rs"]
mod common;

#[path = "../hostile/children.rs"]
mod children; // numbered cases       -> outcomes, in processes that may hang, die or take memory

mod support;
mod writer; // checkpoints made by hand, right or wrong on purpose

mod fixtures;
mod torch;
mod convert;
mod corpus; // what fuzzers begin with
mod damage; // every kind of damage is found, with its place
mod failing_disk; // reads that are cut short, interrupted, or fail
mod economy; // how much is read for what is wanted, and from where
mod hostile; // checkpoints that mean harm, files that change under a reader
mod mutations; // random damage
mod parts; // parts of chunks, to places of their own
mod checksums; // of items in parts   -> every changed byte is found, and read once
mod readers; // one plan after another, on threads of one's own
mod agree; // random checkpoints, parts and ways to read -> what was written
