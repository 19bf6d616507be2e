//! Who has which work, as workers come, slow down and die: a protocol over a store that compares before it writes.
//!
//! The epoch's work is divided into [runs](RunId) of consecutive samples. Each has a [record](Run) of how far it is, which
//! outlives everybody, and an [owner](Owner), which vanishes with its lease. [`Worker`] is one worker's part; what it decides by
//! is a [`Table`]. `docs/coordination.md` says why it is safe.

mod ranges; // numbers              -> as ranges
mod key; // where something is kept <-> text
mod record; // what is kept         <-> JSON
mod kv; // writes                   -> changes, in memory
mod rules; // what makes it safe
mod table; // everything kept       -> who should take what
mod job_state; // a table             <-> what is saved with a model
mod health; // reports               -> how a worker does
mod worker; // time and events      -> what to ask, and to do

pub use health::{RateMeter, Vitals, WINDOW_MS, WorkerStatus, status};
pub use job_state::JobState;
pub use key::{Key, Keys, RunId, Scope};
pub use kv::{Compare, Entry, LeaseGone, Memory, Txn};
pub use ranges::Ranges;
pub use record::{
    Cut, DealRecord, Generation, JOB_FORMAT, Meta, Owner, Part, RecordError, Run, Value, WorkerRecord,
};
pub use table::{Claimer, Present, Table};
pub use worker::{Action, Answer, Done, End, Event, Report, Request, Times, Worker, WorkerSettings};
