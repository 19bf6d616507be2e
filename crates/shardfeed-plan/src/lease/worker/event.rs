use super::super::key::{Keys, RunId};
use super::super::kv::{Entry, Txn};
use super::super::ranges::Ranges;
use super::super::record::Cut;
use crate::CheckpointState;

/// What happens to a worker.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time passed.
    Tick,
    /// Something changed that may concern it.
    Hint,
    /// What became of the request that was sent last.
    Answer(Answer),
    /// It begins an epoch, in which the strategy gives each worker so many samples.
    Begin {
        /// The epoch.
        epoch: u64,
        /// Samples of each worker.
        lens: Vec<u64>,
    },
    /// These samples are done.
    Commit {
        /// What was handed out so far of the runs that it has; what was committed before may be among it.
        done: Vec<Done>,
        /// The trainer's step.
        step: Option<u64>,
        /// To be kept with it.
        checkpoint: Option<Box<CheckpointState>>,
    },
    /// Nothing beyond the first of these was or will be handed out of the run. Empty: it cannot be cut.
    Shrunk(Cut),
    /// It leaves the job.
    Leave,
}

/// Samples `start..end` of those that were `origin`'s at first, handed out from position `at` of the worker's stream on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Whose they were.
    pub origin: u32,
    /// Position of the first.
    pub at: u64,
    /// The first.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A lease.
    Granted(u64),
    /// The lease goes on.
    Alive,
    /// The lease ended.
    LeaseGone,
    /// What was read.
    Read(Vec<Entry>),
    /// It was written, by this change.
    Applied(u64),
    /// Something was not as the write said.
    Refused,
    /// It never left: nothing happened.
    NotSent,
    /// No answer: it may have happened, may yet happen, or not.
    Unknown,
}

/// What is asked of the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A lease of so many milliseconds.
    Grant(u64),
    /// The lease is to go on.
    KeepAlive(u64),
    /// The lease is to end.
    Revoke(u64),
    /// What is there.
    Read(Vec<Keys>),
    /// A write.
    Write(Txn),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ask the store.
    Send(Request),
    /// Hand these samples of a run out.
    Deliver {
        /// The run.
        run: RunId,
        /// Those that are not done.
        left: Ranges,
    },
    /// Hand out nothing beyond the first of these, if that is still possible, and say [`Event::Shrunk`].
    Shrink {
        /// The run, and where.
        cut: Cut,
        /// One past the run's last sample.
        end: u64,
    },
    /// What was to be committed is.
    Committed,
    /// These are likely to be taken over: what comes first of each could be kept at hand.
    Warm(Vec<(RunId, u64)>),
    /// The epoch is done, by all workers together.
    Over,
    /// It is out: nothing more may be handed out, and what was not committed is not done.
    End(End),
}

/// Why a worker is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Somebody else has what it had.
    Fenced(RunId),
    /// The job was restored: other positions hold.
    Restored,
    /// Another process has the rank.
    RankTaken,
    /// It left.
    Left,
}

/// How a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Samples handed out.
    pub samples: u64,
    /// How many a second, once it is known.
    pub rate: Option<f64>,
    /// Where its stream stands, and in which epoch.
    pub position: u64,
    /// See `position`.
    pub epoch: u64,
    /// In milliseconds since 1970.
    pub unix_ms: u64,
}
