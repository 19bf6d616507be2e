//! What bad input gets: an error that names the file, row group, row or setting and says what to do. Never a panic,
//! a hang, other tokens than were written, or a stream that stands elsewhere than before.

#[path = "../common/mod.rs"]
mod common;

mod child; // this test again, in a process with its own environment and file systems
mod world; // a data set on disk, and its tokens in memory

mod cache; // manifests kept between runs
mod files; // files that are not what they were, or never were
mod limits; // budgets, ranks, tails, number types
mod memory; // pages that want more than is theirs
mod pages; // flipped bits
mod rows; // wrong columns, wrong ids, no rows
mod states; // states of others, and of nobody
