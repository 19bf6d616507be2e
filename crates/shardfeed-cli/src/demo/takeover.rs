use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed::{ParquetDataset, StreamCoordinator, StreamingConfig, StreamingShardLoader, WorkerStatus};

use super::promises::{Wrong, ensure};

const WORKERS: usize = 3;
const KILLED: usize = 1;
/// Short, so that nobody watching the demo waits for long; not so short that a busy machine ends it.
const LEASE: Duration = Duration::from_secs(2);
const COMMIT_EVERY: usize = 50;

/// Three workers share the rows of a data set; one is killed in the middle, without a word.
pub(super) fn check(data: &Path) -> Result<String, Wrong> {
    let config = |rank| {
        Ok::<_, shardfeed::Error>(
            StreamingConfig::new(WORKERS, rank)?
                .with_shuffle_seed(7)
                .with_fault_tolerance(2)
                .with_lease(LEASE),
        )
    };
    let rows = ParquetDataset::open(data)?;
    let coordinator = Arc::new(StreamCoordinator::new(config(0)?)?);
    let loaders = (0..WORKERS)
        .map(|rank| {
            Ok(StreamingShardLoader::new(rows.clone(), config(rank)?)?
                .with_coordinator(Arc::clone(&coordinator)))
        })
        .collect::<Result<Vec<_>, shardfeed::Error>>()?;
    coordinator.wait_for_workers(Duration::from_secs(30))?;
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = loaders
            .into_iter()
            .enumerate()
            .map(|(rank, loader)| scope.spawn(move || work(rank, loader)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Wrong("a worker panicked".to_owned()))))
            .collect::<Result<Vec<Done>, Wrong>>()
    })?;
    let health = coordinator.get_worker_health(KILLED)?.map(|health| health.status);
    ensure(health == Some(WorkerStatus::Failed), "nobody noticed that a worker was killed")?;
    // What is kept says who did what: each row by one worker, once.
    let committed = (0..WORKERS)
        .map(|rank| Ok(coordinator.assignment(0, rank)?.len()))
        .sum::<Result<u64, shardfeed::Error>>()?;
    let counted: usize = done.iter().map(|done| done.committed).sum();
    let all = shardfeed::Dataset::len(&rows);
    ensure(committed == all as u64 && counted == all, "rows were lost or done twice")?;
    let ended = done.iter().map(|done| done.ended).max();
    let after = ended.zip(done[KILLED].killed).map_or(Duration::ZERO, |(ended, killed)| ended - killed);
    let (left, uncommitted) = (done[KILLED].committed, done[KILLED].uncommitted);
    Ok(format!(
        "{all} rows, each committed once; worker {KILLED} was killed after {left} and {uncommitted} more that it had not \
         committed: those were done again, and all was done {after:.1?} later (leases of {LEASE:?})"
    ))
}

struct Done {
    committed: usize,
    uncommitted: usize,
    killed: Option<Instant>,
    ended: Instant,
}

fn work(rank: usize, loader: StreamingShardLoader<ParquetDataset>) -> Result<Done, Wrong> {
    let (mut committed, mut fresh) = (0, 0);
    loop {
        let is_end = loader.next()?.is_none();
        fresh += usize::from(!is_end);
        if rank == KILLED && committed + fresh == 630 {
            loader.abandon();
            return Ok(Done {
                committed,
                uncommitted: fresh,
                killed: Some(Instant::now()),
                ended: Instant::now(),
            });
        }
        if fresh == COMMIT_EVERY || is_end && fresh > 0 {
            loader.commit()?;
            committed += std::mem::take(&mut fresh);
        } else if is_end {
            return Ok(Done { committed, uncommitted: 0, killed: None, ended: Instant::now() });
        }
    }
}
