//! `RowGroupCursor` gives, token for token and row for row, what the `parquet` crate's own column reader gives,
//! however it is asked: in portions of any size, reading some and passing over others.

#[path = "../common/mod.rs"]
mod common;

mod reference; // a row group -> rows, by the crate's own reader
mod compare; // a file        -> both readers, compared

mod generated; // files of our own, over the cross of encodings, codecs, pages and types
mod writers; // files of other writers
