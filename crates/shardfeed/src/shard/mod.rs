//! Samples of any data set, divided among workers: [`StreamingShardLoader`] and what it is made of.

mod tensor; // elements            -> an array of a shape
mod dataset; // an index           -> a sample
mod checkpoint_file; // a checkpoint <-> a file, whole or not at all
mod queue; // positions            -> each to one caller, some loaded ahead
mod stream; // a position          -> an index
mod meter; // loads and waits      -> averages
mod leased; // a lease               -> samples, and what was done of them
mod loader; // all of these        -> one worker's samples

/// What the queue is built on; its tests put another scheduler here.
mod sync {
    pub use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}

pub use checkpoint_file::{read_checkpoint, write_checkpoint};
pub use dataset::{Dataset, TensorDataset};
pub use loader::{StreamingShardIterator, StreamingShardLoader};
pub use meter::StreamingStats;
pub use tensor::{Element, Tensor};
