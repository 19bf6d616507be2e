//! A row group to tokens and row starts, from any token on.
//!
//! Pages come from the `parquet` crate, headers parsed, checksums verified, decompressed. From there on tokens are
//! made here, in one pass into the caller's memory: levels are read run by run, indexes unpacked and looked up
//! block by block. So tokens can be read in portions of any size, also from the middle of a row; pages before the
//! first token wanted are passed over without being decompressed; and a page can be let go of and read again.

mod hybrid; // bytes               -> runs of repeated or packed values
mod unpack; // packed bits         -> 32 values at a time
mod levels; // levels of a page    -> runs
mod indexes; // dictionary indexes -> token ids
mod delta; // delta-encoded bytes  -> values
mod foreign_values; // any page    -> token ids, by the crate's own reader
mod values; // values of a page    -> token ids
mod inflate; // a compressed page  -> no more bytes than it claims
mod pages; // a column chunk       -> its pages, none larger than allowed
mod cursor; // pages               -> segments of rows, and their tokens

pub use cursor::{RowGroupCursor, Segment};
pub(crate) use cursor::{damaged_pages, take_prefixed};
pub(crate) use delta::Deltas;
pub(crate) use inflate::Inflate;
pub(crate) use values::Room;
