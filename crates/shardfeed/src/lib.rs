//! Shardfeed feeds distributed training: it streams pre-tokenized Parquet to every rank of a job, in an order that
//! is a pure function of the data and a seed, and resumes from one number at any world size.
//!
//! ```
//! # use shardfeed::sample::{SampleData, write_sample};
//! # let dir = tempfile::tempdir()?;
//! # write_sample(dir.path(), &SampleData::default())?;
//! # let data = dir.path();
//! use shardfeed::{Rank, TokenLoader};
//!
//! let mut loader = TokenLoader::builder(data, 128, 16) // tokens of a sequence, sequences of a step
//!     .rank(Rank::new(0, 2)?)
//!     .seed(7)
//!     .build()?;
//! while let Some(batch) = loader.next_batch()? {
//!     assert_eq!(batch.input_ids().len(), 8 * 128); // this rank's half of the step
//!     # if batch.step == 3 { break; }
//! }
//! let saved = loader.state().to_json(); // one number and what makes it safe: under 1 KiB, the same on every rank
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The modules are listed in the order in which data flows; each uses only those above it.
#![deny(unsafe_code)]

mod failures; // what is wrong with items of a checkpoint, all of it in one report
mod error; // what happened, to what, and what to do
mod foreign; // code that may panic      -> a result
mod thrift; // foreign bytes            -> what they claim is true
mod parallel; // items                   -> results, on threads
mod progress; // work done on threads    -> told in order
mod source; // a directory, glob or list -> paths with canonical names
mod footer; // one file                  -> its token column and row groups
mod page_memory; // a page's claim       -> a buffer for it, or a refusal
mod soundness; // row groups read once   -> which of them are damaged
mod dataset; // a manifest and paths     -> checked, positioned reads
mod record; // a row group               -> checksums of its pages
mod decode; // a row group               -> tokens and row starts, from any token on
mod cache; // a manifest                <-> a file kept between runs
mod scan; // a source                    -> DataSet, cached on disk
mod large_pages; // memory               -> in larger pages
mod slot; // room for a sequence         -> its tokens, and where rows begin
mod line_reader; // the line of an epoch -> decoded sequences, one after another
mod array; // a batch let go of          -> memory for the next
mod batch; // sequences                  -> labels, positions, documents
mod stats; // what threads did          -> what a loader did
mod engine; // steps                     -> batches, on threads, within a byte budget
mod explain; // a step                   -> files, row groups, rows, tokens
mod verify; // a source                  -> every damaged place
mod state_file; // a state              <-> a file, whole or not at all
mod streaming_config; // what users of shard loaders ask for
mod coordinator; // workers             -> how they do, where they stand, who takes over
mod loader; // engine and state          -> one rank's stream; whole files -> LMBatches
mod shard; // any data set            -> one worker's samples
mod table; // rows of any columns     -> records, by index
pub mod checkpoint; // a distributed checkpoint -> tensors, on threads, by byte range
pub mod sample; // made-up data for the demo, the examples and the tests

pub use array::Array;
pub use batch::{Batch, BatchArrays, Dtype, IGNORE_LABEL, IdArray, Ids, LabelStyle};
pub use cache::CachePolicy;
pub use coordinator::{StreamCoordinator, WorkerHealth, WorkerRow};
pub use dataset::{DataSet, ReadCounts};
pub use decode::{RowGroupCursor, Segment};
pub use error::{Error, Result};
pub use explain::{SequenceOrigin, StepOrigin, TokenOrigin};
pub use line_reader::OnCorrupt;
pub use loader::{
    LMBatch, LMBatches, MEMORY_BUDGET_DEFAULT, NextBatch, ShardConfig, StreamingParquetLoader, TokenLoader,
    TokenLoaderBuilder,
};
pub use scan::{ScanOptions, ScanReport, scan};
pub use shard::{
    Dataset, Element, StreamingShardIterator, StreamingShardLoader, StreamingStats, Tensor, TensorDataset,
    read_checkpoint, write_checkpoint,
};
pub use source::Source;
pub use state_file::{read_state, write_state};
pub use stats::LoaderStats;
pub use streaming_config::StreamingConfig;
pub use table::{ParquetDataset, ParquetDatasetBuilder, Record, Value};
pub use verify::{Damage, VerifyOptions, VerifyReport, is_exactly_once, verify};

pub use shardfeed_plan::lease::{DealRecord, JobState, WorkerStatus};
pub use shardfeed_plan::{
    Assignment, Basis, CheckpointError, CheckpointState, DataFile, Deal, DealError, Deals, EpochOrder,
    EpochPlan, FileShardError, Fingerprint, IdType, Manifest, MemoryNeeds, Packing, PageChecksum,
    PageChecksums, PartitionError, PartitionStrategy, PlanError, PlanReport, Rank, RankError, RankLoad,
    RankMemory, RowGroup, SAMPLES_WITH_TABLE_MAX, SettingsError, SettingsRequest, ShuffleQuality, SkipsError,
    Spread, StateError, StreamSettings, StreamState, Tail, TokenColumn, WORLD_SIZE_MAX, key, mix,
};

/// The examples of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So are those of the guide to coordination.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/coordination.md")]
struct Coordination;

/// So are those of the guide to checkpoints.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/checkpoints.md")]
struct Checkpoints;
