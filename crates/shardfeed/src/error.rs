use std::io;
use std::path::PathBuf;

use crate::failures::Failures;
use shardfeed_plan::{
    CheckpointError, FileShardError, ManifestError, PartitionError, RankError, SettingsError, SkipsError,
    StateError,
};

/// What went wrong, with which file, row group, row or rank, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A directory or file cannot be read.
    #[error("{}: cannot {action}: {source}; {}", path.display(), advice(.source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried, for example "open it".
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A directory, glob or list without Parquet files.
    #[error(
        "{what}: no .parquet files found; give a directory that holds some, a glob such as 'data/**/*.parquet', or a list"
    )]
    NoFiles {
        /// The directory or glob.
        what: String,
    },
    /// A glob that is not one.
    #[error("{pattern}: not a glob: {reason}")]
    Glob {
        /// The glob.
        pattern: String,
        /// Why not.
        reason: String,
    },
    /// Truncated, empty, or not Parquet at all.
    #[error("{}: not a readable Parquet file: {reason}; it is cut short, damaged, or of another format: write it again, or remove it", path.display())]
    NotParquet {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        reason: String,
    },
    /// No token column, or one of another type.
    #[error("{}: {reason}; Shardfeed reads a column input_ids (or token_ids) that is a list of u16, u32, i32, i64 or u64", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The column and what was found.
        reason: String,
    },
    /// A file that is not what was scanned.
    #[error("{}: changed after it was scanned ({what}); scan the data set again, and do not write into files that are in use", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A row group that cannot be decoded.
    #[error("{}: row group {row_group} is damaged: {reason}; restore the file from its source", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The row group within the file.
        row_group: u32,
        /// What was found.
        reason: String,
    },
    /// A row that holds something that is not a token id.
    #[error("{}: row group {row_group}, row {row}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The row group within the file.
        row_group: u32,
        /// The row within the row group.
        row: u64,
        /// What was found, and what to do.
        reason: String,
    },
    /// An id that 32-bit batches cannot hold.
    #[error(
        "position {position} of the epoch holds token id {id}, which does not fit int32; use dtype int64"
    )]
    Int32 {
        /// Position in the epoch's order.
        position: u64,
        /// The id.
        id: u32,
    },
    /// Nothing to deliver.
    #[error(
        "{what}: the data set has no tokens ({files} files, {rows} rows); check that these are the right files"
    )]
    NoTokens {
        /// The source.
        what: String,
        /// Files there are.
        files: usize,
        /// Rows there are.
        rows: u64,
    },
    /// The memory budget cannot hold what the settings need.
    #[error("the memory budget is {given} bytes, these settings need at least {needed}: {because}")]
    Budget {
        /// What was allowed.
        given: u64,
        /// What is needed.
        needed: u64,
        /// Where it goes.
        because: String,
    },
    /// A number that cannot be meant.
    #[error("{0}")]
    Invalid(String),
    /// The tail that the user forbade.
    #[error(
        "{sequences} sequences {of} and a step takes {global_batch}, so the last step would be short; \
         choose tail \"pad\", or another global batch"
    )]
    Tail {
        /// How many sequences there are.
        sequences: u64,
        /// Of what: the rest of this epoch, or a whole one.
        of: &'static str,
        /// Sequences of a step.
        global_batch: u32,
    },
    /// A step that does not exist.
    #[error(
        "step {step} is not in epoch {epoch}: it was skipped, lies past the last step, or was delivered before more than 8 changes of the global batch"
    )]
    NoStep {
        /// The step.
        step: u64,
        /// The epoch.
        epoch: u64,
    },
    /// See [`RankError`].
    #[error(transparent)]
    Rank(#[from] RankError),
    /// See [`SettingsError`].
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// See [`StateError`].
    #[error(transparent)]
    State(#[from] StateError),
    /// See [`StateError`], with the file.
    #[error("{}: {source}", path.display())]
    StateFile {
        /// The file.
        path: PathBuf,
        /// Why it is refused.
        source: StateError,
    },
    /// See [`PartitionError`].
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// See [`CheckpointError`].
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// See [`CheckpointError`], with the file.
    #[error("{}: {source}", path.display())]
    CheckpointFile {
        /// The file.
        path: PathBuf,
        /// Why it is refused.
        source: CheckpointError,
    },
    /// A coordinator that does not answer, or refuses.
    #[error("{store}: {reason}")]
    Coordinator {
        /// Which, without secrets.
        store: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A worker that is out: it hands out nothing more.
    #[error(
        "worker {rank} is out of the job at {store}: {reason}; discard what was not committed, and join again with a new coordinator and loader"
    )]
    Fenced {
        /// The worker.
        rank: usize,
        /// The coordinator, without secrets.
        store: String,
        /// Why.
        reason: String,
    },
    /// A directory that is no distributed checkpoint, or one whose metadata are not believed.
    #[error("{}: {reason}", path.display())]
    CheckpointRefused {
        /// The directory, or the file that describes it.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// Files of a distributed checkpoint that are missing, cut short or damaged.
    #[error(transparent)]
    CheckpointDamaged(#[from] Failures),
    /// See [`SkipsError`].
    #[error(transparent)]
    Skips(#[from] SkipsError),
    /// See [`ManifestError`].
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// See [`FileShardError`], with the directory.
    #[error("{}: {source}", path.display())]
    FileShard {
        /// The directory.
        path: PathBuf,
        /// Both numbers.
        source: FileShardError,
    },
}

/// A result with our [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path, or put it back if it was there before",
        io::ErrorKind::PermissionDenied => "check who may read and write it",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "the disk is full: remove something",
        _ => "check the path and the disk, and try again",
    }
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.into(), action, source }
    }
}
