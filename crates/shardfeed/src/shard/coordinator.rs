use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shardfeed_plan::CheckpointState;

use super::config::StreamingConfig;
use crate::{Error, Result};

/// Knows the workers of a job and where each of them stands. Lives in the process.
#[derive(Debug)]
pub struct StreamCoordinator {
    config: StreamingConfig,
    workers: Mutex<BTreeMap<usize, Worker>>,
}

#[derive(Debug, Default)]
struct Worker {
    /// What it was told to take; empty: what the strategy gives.
    indices: Vec<usize>,
    checkpoint: Option<CheckpointState>,
}

impl StreamCoordinator {
    /// Of a job without workers yet.
    pub fn new(config: StreamingConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self { config, workers: Mutex::default() })
    }

    /// A worker is there, with the samples that it is to take; none: those that the strategy gives.
    pub fn register_worker(&self, rank: usize, indices: Vec<usize>) -> Result<()> {
        self.check_rank(rank)?;
        self.lock().entry(rank).or_default().indices = indices;
        Ok(())
    }

    /// What a worker was registered with. `None`: nobody registered it.
    pub fn registered_indices(&self, rank: usize) -> Result<Option<Vec<usize>>> {
        self.check_rank(rank)?;
        Ok(self.lock().get(&rank).map(|worker| worker.indices.clone()))
    }

    /// A worker stands there.
    pub fn register_checkpoint(&self, rank: usize, state: CheckpointState) -> Result<()> {
        self.check_rank(rank)?;
        if state.rank != rank {
            return Err(Error::Invalid(format!(
                "a checkpoint of rank {} as that of rank {rank}",
                state.rank
            )));
        }
        self.lock().entry(rank).or_default().checkpoint = Some(state);
        Ok(())
    }

    /// Where a worker stood last.
    pub fn get_checkpoint(&self, rank: usize) -> Result<Option<CheckpointState>> {
        self.check_rank(rank)?;
        Ok(self.lock().get(&rank).and_then(|worker| worker.checkpoint.clone()))
    }

    fn check_rank(&self, rank: usize) -> Result<()> {
        let world_size = self.config.rank().world_size() as usize;
        if rank < world_size {
            return Ok(());
        }
        Err(shardfeed_plan::RankError::OutOfRange { index: rank, world_size }.into())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Worker>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
