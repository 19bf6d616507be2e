use serde::{Deserialize, Serialize};

use super::key::RunId;
use super::ranges::Ranges;
use super::record::{JOB_FORMAT, Meta, Run};
use super::table::Table;
use crate::{Assignment, Stretch};

/// Where a whole job stands: to be saved with the model, and restored with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredJobState")]
pub struct JobState {
    /// The job that it is of.
    pub job: Meta,
    /// The epoch.
    pub epoch: u64,
    /// Samples that the strategy gives each worker, as far as they were begun, and which of them are done.
    begun: Vec<(u64, Ranges)>,
}

#[derive(Deserialize)]
struct StoredJobState {
    job: Meta,
    epoch: u64,
    begun: Vec<(u64, Ranges)>,
}

impl TryFrom<StoredJobState> for JobState {
    type Error = String;

    fn try_from(StoredJobState { job, epoch, begun }: StoredJobState) -> Result<Self, String> {
        if job.format != JOB_FORMAT {
            return Err(format!("a job of format {}, this release reads {JOB_FORMAT}", job.format));
        }
        if begun.len() != job.world_size as usize {
            return Err(format!("what {} workers did, of {}", begun.len(), job.world_size));
        }
        let mut all = 0_u64;
        for (origin, (len, done)) in begun.iter().enumerate() {
            if done.end() > *len {
                return Err(format!("sample {} of worker {origin} is done, who has {len}", done.end() - 1));
            }
            all = all
                .checked_add(*len)
                .filter(|&all| all <= job.samples)
                .ok_or("more samples than there are")?;
        }
        Ok(Self { job, epoch, begun })
    }
}

impl JobState {
    /// Of a job, as a table of an epoch has it.
    pub fn new(job: Meta, epoch: u64, table: &Table) -> Self {
        let mut begun = vec![(0, Ranges::default()); job.world_size as usize];
        for (id, (run, _)) in &table.runs {
            if let Some((len, done)) = begun.get_mut(id.origin as usize) {
                *len = (*len).max(run.end);
                done.extend(&run.done);
            }
        }
        Self { job, epoch, begun }
    }

    /// How many samples are done.
    pub fn processed_count(&self) -> u64 {
        self.begun.iter().map(|(_, done)| done.count()).sum()
    }

    /// The runs to begin with.
    pub fn runs(&self) -> Vec<(RunId, Run)> {
        let begun = (0..).zip(&self.begun).filter(|(_, (_, done))| !done.is_empty());
        let run = |(len, done): &(u64, Ranges)| Run { done: done.clone(), ..Run::new(*len) };
        begun.map(|(origin, begun)| (RunId { origin, start: 0 }, run(begun))).collect()
    }
}

impl Table {
    /// What a worker did in this epoch, in the order in which it did it: what a loader of that rank adopts to do it again.
    pub fn assignment(&self, rank: u32) -> Assignment {
        let parts =
            self.runs.iter().flat_map(|(id, (run, _))| run.parts.iter().map(|part| (id.origin, *part)));
        let mut mine: Vec<_> = parts.filter(|(_, part)| part.rank == rank).collect();
        mine.sort_by_key(|(_, part)| (part.joined, part.at));
        let stretches = mine.into_iter();
        stretches.map(|(origin, part)| Stretch { origin, start: part.start, end: part.end }).collect()
    }
}
