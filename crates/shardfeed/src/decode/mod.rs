//! A row group to tokens and row starts, from any token on.
//!
//! Levels are read here, run by run; values are left to the `parquet` crate, which sees each page as a flat column
//! without levels. So tokens can be read in portions of any size, also from the middle of a row, and pages before
//! the first token wanted are passed over without being decompressed.

mod levels; // levels of a page     -> runs
mod inflate; // a compressed page   -> no more bytes than it claims
mod values; // values of a page     -> token ids
mod pages; // a column chunk        -> its pages, none larger than allowed
mod cursor; // pages                -> segments of rows, and their tokens

pub use cursor::{RowGroupCursor, Segment};
