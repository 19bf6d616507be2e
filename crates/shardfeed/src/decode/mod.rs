//! A row group to tokens and row starts, from any token on.
//!
//! Levels are read here, run by run; values are left to the `parquet` crate, which sees each page as a flat column
//! without levels. So tokens can be read in portions of any size, also from the middle of a row, and pages before
//! the first token wanted are passed over without being decompressed.

mod cursor; // pages                -> segments of rows, and their tokens
mod levels; // levels of a page     -> runs
mod values; // values of a page     -> token ids

pub use cursor::{RowGroupCursor, Segment};
