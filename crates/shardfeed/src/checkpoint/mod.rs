//! Reading PyTorch's distributed checkpoints, and Hugging Face's safetensors directories: in parallel, by byte range,
//! without Python, and without executing anything that they hold.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # shardfeed::checkpoint::write_sample(dir.path())?;
//! # let path = dir.path();
//! use shardfeed::checkpoint::{Checkpoint, ReadPlan};
//!
//! let checkpoint = Checkpoint::open(path)?; // a directory with .metadata and *.distcp, or with *.safetensors
//! for tensor in checkpoint.tensors() {
//!     println!("{} {} {:?}", tensor.name, tensor.dtype, tensor.shape);
//! }
//! let weight = checkpoint.read("model.weight")?; // all of it, or a part:
//! let rows = checkpoint.read_slice("model.weight", &[1..3, 0..4])?;
//! assert_eq!(weight.bytes[16..48], rows.bytes);
//!
//! // Many at once, into memory of one's own.
//! let (mut weight, mut bias) = (vec![0; 64], vec![0; 8]);
//! let mut plan = ReadPlan::new();
//! plan.read("model.weight", &mut weight);
//! plan.read_slice("model.bias", &[2..4], &mut bias);
//! checkpoint.read_into(plan)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod workers; // cores, files, memory  -> how many threads
mod options; // what users ask for
mod directory; // a path              -> files that stay in it
mod opened; // metadata and files     -> tensors by name
mod hugging_face; // safetensors      -> the same
mod bytes; // a file                  -> its bytes, past the system's cache where that is faster
mod undo; // transformed items        -> as they were
mod locate; // an item                -> how its tensor lies in its file
mod destination; // memory            -> windows that threads write to
mod wanted; // what users ask for     -> parts of chunks, and where they go
mod sequential; // the same, one after another: what the other is compared with
mod checksums; // items in parts       -> compared when all of their bytes have come
mod parallel; // wanted parts         -> reads on threads
mod read; // names                    -> tensors
mod stored_order; // chunks              -> their dimensions as they lie in files
mod plan_reader; // many plans        -> reads on one thread, which keeps its files open
mod raw; // items                     -> their bytes, whatever they are
mod verify; // a checkpoint           -> everything that is wrong with it
mod number; // elements              -> numbers, and those of other types
mod slabs; // a tensor               -> pieces that fit in little memory
mod diff; // two checkpoints         -> what is not the same
mod convert; // a checkpoint         -> safetensors files
mod sample; // a small checkpoint, for the demo, the examples and the tests

pub use crate::failures::{Failures, ItemFailure};
pub use checksums::Checksums;
pub use convert::{ConvertOptions, Converted, convert_checkpoint};
pub use diff::{CheckpointDiff, Difference, DifferenceKind, diff_checkpoints};

pub use opened::{Checkpoint, OpenOptions};
pub use options::{DirectIo, ReadOptions, ReadProgress, Stop, TellProgress};
pub use plan_reader::PlanReader;
pub use raw::RawItem;
pub use read::{ReadStats, TensorData, object_bytes_max};
pub use sample::write_sample;
pub use verify::{CheckpointReport, Problem, ProblemKind, verify_checkpoint};
pub use wanted::{PlacedPart, ReadPlan};
pub use workers::{default_read_workers, memory_aware_workers, optimal_workers};

pub use shardfeed_plan::checkpoint::{
    Dtype, Global, Id, Metadata, Node, Object, Part, PathPart, Pickle, PickleError, Placement, RunLimits,
    StoredChunk, StoredItem, StoredObject, StoredTensor,
};
