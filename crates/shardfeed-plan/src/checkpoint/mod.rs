//! Distributed checkpoints: what is stored where, and which bytes a reader has to fetch for what it wants.
//!
//! Nothing here opens a file. Metadata come in as bytes and go out as checked values; what an item of a file holds is
//! found by asking a function for ranges of it; a wish for tensors becomes runs of bytes and where each of them goes.

mod dtype; // the type of an element  -> its size and its names
mod pickle; // a pickle              -> inert values: nothing is ever called
mod cover; // boxes                  -> whether they fill a larger one, and which overlap
mod metadata; // `.metadata`        -> tensors, chunks, where each lies
mod zip; // the bytes of an item     -> its records
mod item; // an item's records      -> how a tensor lies in it
mod safetensors; // a header         -> tensors and their bytes
mod placement; // elements in memory -> whether they lie over each other
mod copying; // a box of a chunk     -> strided runs of bytes, from where to where
mod runs; // many copies            -> reads: sorted, joined, split
mod summing; // bytes in pieces      -> their checksum, each byte looked at once

pub use copying::{Copying, Dim, Fix};
pub use cover::{Cover, Part, cover, overlapping};
pub use dtype::Dtype;
pub use item::{ItemError, TensorItem, TensorView};
pub use metadata::{
    Metadata, MetadataError, PathPart, StoredChunk, StoredItem, StoredObject, StoredTensor, safe_path,
};
pub use pickle::{Global, Id, Made, Node, Object, Pickle, PickleError};
pub use placement::{Placed, Placement};
pub use runs::{Piece, Run, RunLimits, plan_runs};
pub use safetensors::{HEADER_BYTES_MAX, SafetensorsEntry, SafetensorsHeader};
pub use summing::Summing;
pub use zip::{Record, ZipError, ZipItem};
