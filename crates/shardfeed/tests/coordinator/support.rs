use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed::{Dataset, Error, Result, StreamCoordinator, StreamingConfig, StreamingShardLoader};

/// Samples that are their own index.
#[derive(Clone, Debug)]
pub struct Numbers {
    pub len: usize,
    /// How long each takes.
    pub delay: Duration,
}

impl Dataset for Numbers {
    type Sample = usize;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<usize> {
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        Ok(index)
    }
}

/// Short enough for tests that wait for its end, long enough for machines that are busy with others.
pub const LEASE: Duration = Duration::from_secs(2);

pub fn config(world_size: usize, rank: usize) -> StreamingConfig {
    StreamingConfig::new(world_size, rank).unwrap().with_lease(LEASE).with_prefetch_buffer_size(4)
}

pub fn loader(
    dataset: &Numbers,
    config: StreamingConfig,
    coordinator: &Arc<StreamCoordinator>,
) -> StreamingShardLoader<Numbers> {
    StreamingShardLoader::new(dataset.clone(), config).unwrap().with_coordinator(Arc::clone(coordinator))
}

/// Samples that were handed out and committed, up to the end of the epoch or `limit`, committing every `every`. What was handed
/// out and not committed is not returned.
pub fn work(
    loader: &StreamingShardLoader<Numbers>,
    every: usize,
    limit: usize,
) -> Result<Vec<usize>, (Vec<usize>, Error)> {
    let (mut committed, mut fresh) = (Vec::new(), Vec::new());
    loop {
        let next = match loader.next() {
            Ok(next) => next,
            Err(error) => return Err((committed, error)),
        };
        let is_end = next.is_none();
        fresh.extend(next);
        if fresh.len() >= every || is_end && !fresh.is_empty() {
            if let Err(error) = loader.commit() {
                return Err((committed, error));
            }
            committed.append(&mut fresh);
            if is_end {
                continue;
            }
        }
        if is_end || committed.len() >= limit {
            return Ok(committed);
        }
    }
}

/// Waits for something that must come, and says what if it does not.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < until, "{what} did not happen within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}
