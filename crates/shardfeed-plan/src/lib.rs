//! What Shardfeed decides: which tokens a rank delivers, in which order, from facts alone.
//!
//! Nothing here opens a file, asks a clock or starts a thread; equal inputs give equal outputs on any machine.
//! The modules follow a question from the outside in: *what does rank 3 deliver at step 48,211?*
//!
//! ```
//! use shardfeed_plan::{EpochOrder, Packing, Rank, Skips, StreamSettings, Tail};
//!
//! // Four row groups of 100, 50, 0 and 250 tokens; sequences of 16 tokens; 8 sequences a step.
//! let settings = StreamSettings::auto(16, Packing::Concat, None, 7, 8);
//! let order = EpochOrder::new(&[100, 50, 0, 250], &settings, 0);
//! assert_eq!(order.sequences(), 25);
//!
//! let step = order.step_at(16, &Skips::default(), 8, Tail::Pad).unwrap();
//! let mine = step.positions(Rank::new(1, 3).unwrap());
//! assert_eq!(mine.len(), 3); // ranks 0 and 1 of three hold 3 of the 8 sequences, rank 2 holds 2
//! ```
#![deny(unsafe_code)]

mod rank; // a process of the job     -> its share of n things
mod permute; // a key                 -> a shuffle that never changes between releases
mod permutation; // a key            -> the same of any number of things, asked one by one
mod checksums; // row groups          -> what was recorded of their pages
mod manifest; // files                -> row groups in one canonical order, and a fingerprint
mod stored_manifest; // Manifest     <-> bytes
mod settings; // what a user asks     -> the numbers that define an order
mod line; // row groups               -> one line of units, cut into row-group spans
mod lanes; // a position              -> a sequence on the line
mod skips; // ranges left out         -> which positions are live
mod order; // an epoch                -> steps, and each rank's slice of them
mod step_numbers; // steps            -> numbers that skips and changed batches leave alone
mod state; // where a stream stands  <-> JSON, and what must match to continue there
mod report; // an epoch               -> what each rank reads and holds, without running it
mod files; // whole files             -> who owns which, in which order
mod partition; // samples             -> who gets which, in which order
mod assignment; // samples of one worker, in the order in which it takes them
mod deals; // throughputs              -> what is left, dealt again
mod dealt_order; // what is dealt     -> samples, one after another
mod checkpoint_state; // where a worker's samples stand <-> JSON, and what must match to go on there
pub mod checkpoint; // distributed checkpoints -> which bytes to read, and where they go
pub mod lease; // time and events       -> who has which work, as workers come, slow down and die

pub use assignment::{Assignment, Stretch};
pub use checkpoint_state::{CHECKPOINT_FORMAT, CheckpointError, CheckpointState, Progress, StreamIdentity};
pub use checksums::{PageChecksum, PageChecksums};
pub use deals::{Deal, DealError, Deals};
pub use dealt_order::DealtOrder;
pub use files::{FileOrder, FileShardError};
pub use lanes::{LaneWalk, Lanes, Place};
pub use line::{Line, Span};
pub use manifest::{
    DataFile, Fingerprint, IdType, Manifest, ManifestError, PieceCounts, RowGroup, TokenColumn,
};
pub use order::{EpochOrder, StepPlan, Tail};
pub use partition::{
    Classes, Facts, Needs, Owners, Partition, PartitionError, PartitionStrategy, SAMPLES_WITH_TABLE_MAX,
    SampleOrder, hash_of_index, hash_of_key,
};
pub use permutation::Permutation;
pub use permute::{fisher_yates, key, mix};
pub use rank::{Rank, RankError};
pub use report::{
    Basis, EpochPlan, GLOBAL_BATCH_MAX, MemoryNeeds, PlanError, PlanReport, RankLoad, RankMemory,
    ShuffleQuality, Spread, WORLD_SIZE_MAX, steps_ahead,
};
pub use settings::{LANES_MAX, Packing, SettingsError, SettingsRequest, StreamSettings};
pub use skips::{Skips, SkipsError};
pub use state::{ALGORITHM_VERSION, STATE_FORMAT, StateError, StreamState};
pub use step_numbers::{BatchChange, StepNumbers};
pub use stored_manifest::{StoredManifestError, decode_manifest, encode_manifest};
