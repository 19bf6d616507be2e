use std::time::SystemTime;

use shardfeed_plan::lease::{Table, Vitals, WorkerRecord, WorkerStatus, status};

use super::clock::from_unix_ms;

/// How a worker of a job does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkerHealth {
    /// The worker.
    pub rank: usize,
    /// Whether it works, waits, is slow, has failed, or was never heard of.
    pub status: WorkerStatus,
    /// When it said so last, by its own clock. 1970 if it never did.
    pub last_heartbeat: SystemTime,
    /// Samples that it handed out.
    pub samples_processed: u64,
    /// How many a second, over the last half minute in which it had something to do; 0 as long as nobody knows.
    pub average_throughput: f64,
}

/// A worker in the table of a job.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkerRow {
    /// How it does.
    pub health: WorkerHealth,
    /// Where it runs.
    pub name: String,
    /// Whether it left by itself.
    pub has_left: bool,
    /// The epoch that it is in.
    pub epoch: u64,
    /// Where its stream stands in it.
    pub position: u64,
    /// What its lease was granted for and how much of it is left, in milliseconds; `None` if it has none.
    pub lease_ms: Option<(u64, u64)>,
    /// Whose samples it has beside its own.
    pub took_over: Vec<usize>,
}

impl Default for WorkerHealth {
    fn default() -> Self {
        unknown(0)
    }
}

fn vitals(table: &Table, record: &WorkerRecord) -> Vitals {
    let is_there =
        table.workers.get(&record.rank).is_some_and(|there| there.record.session == record.session);
    let was_heard = record.heartbeat_ms > 0;
    Vitals { was_heard, is_there, is_waiting: record.is_waiting, rate: record.rate }
}

/// How a worker does that is known.
pub(super) fn health_of(table: &Table, rank: u32) -> Option<WorkerHealth> {
    let record = table.records.get(&rank)?;
    let others = table.records.values().filter(|other| other.rank != rank);
    let others: Vec<Vitals> = others.map(|other| vitals(table, other)).collect();
    Some(WorkerHealth {
        rank: rank as usize,
        status: status(&vitals(table, record), &others),
        last_heartbeat: from_unix_ms(record.heartbeat_ms),
        samples_processed: record.samples,
        average_throughput: record.rate.unwrap_or(0.0),
    })
}

/// One that was registered and never heard of.
pub(super) fn unknown(rank: u32) -> WorkerHealth {
    WorkerHealth {
        rank: rank as usize,
        status: WorkerStatus::Unknown,
        last_heartbeat: SystemTime::UNIX_EPOCH,
        samples_processed: 0,
        average_throughput: 0.0,
    }
}
