//! Workers of a job that know of each other: in the process, or on etcd.

mod clock; // time that goes on while the machine sleeps
mod store; // what workers share     -> asked, answered, watched
mod local; // the same in the process
mod url; // etcd://host:2379/job     -> where, who, without showing secrets
#[cfg(feature = "etcd")]
mod etcd; // the same on etcd
mod kept; // checkpoints of a worker -> the last one stays
mod session; // a worker's machine   -> driven by a thread
mod health; // records               -> how workers do
mod stream_coordinator; // all of these -> a job
#[cfg(test)]
mod conformance; // each store       -> the same answers as the one in memory

pub use health::{WorkerHealth, WorkerRow};
pub(crate) use session::{News, Session, Standing, Work};
pub use stream_coordinator::StreamCoordinator;
