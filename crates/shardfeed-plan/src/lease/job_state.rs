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
    /// Samples that are done, of those that the strategy gives each worker.
    done: Vec<Ranges>,
}

#[derive(Deserialize)]
struct StoredJobState {
    job: Meta,
    epoch: u64,
    done: Vec<Ranges>,
}

impl TryFrom<StoredJobState> for JobState {
    type Error = String;

    fn try_from(StoredJobState { job, epoch, done }: StoredJobState) -> Result<Self, String> {
        if job.format != JOB_FORMAT {
            return Err(format!("a job of format {}, this release reads {JOB_FORMAT}", job.format));
        }
        if done.len() != job.world_size as usize {
            return Err(format!("what {} workers did, of {}", done.len(), job.world_size));
        }
        let mut count = 0_u64;
        for ranges in &done {
            let sum =
                ranges.as_slice().iter().try_fold(count, |sum, (start, end)| sum.checked_add(end - start));
            count = sum.ok_or("more samples than there are numbers")?;
        }
        if count > job.samples {
            return Err(format!("{count} of {} samples are done", job.samples));
        }
        Ok(Self { job, epoch, done })
    }
}

impl JobState {
    /// Of a job, as a table of an epoch has it.
    pub fn new(job: Meta, epoch: u64, table: &Table) -> Self {
        let mut done = vec![Ranges::default(); job.world_size as usize];
        for (id, (run, _)) in &table.runs {
            if let Some(ranges) = done.get_mut(id.origin as usize) {
                ranges.extend(&run.done);
            }
        }
        Self { job, epoch, done }
    }

    /// How many samples are done.
    pub fn processed_count(&self) -> u64 {
        self.done.iter().map(Ranges::count).sum()
    }

    /// What is done of the samples that the strategy gives a worker.
    pub fn done(&self, origin: u32) -> Option<&Ranges> {
        self.done.get(origin as usize)
    }

    /// The runs to begin with, where the strategy gives each worker so many samples. An error if more are done.
    pub fn runs(&self, lens: &[u64]) -> Result<Vec<(RunId, Run)>, String> {
        let mut runs = Vec::new();
        for ((origin, &len), done) in (0..).zip(lens).zip(&self.done) {
            if done.end() > len {
                return Err(format!("sample {} of worker {origin} is done, who has {len}", done.end() - 1));
            }
            if !done.is_empty() {
                runs.push((RunId { origin, start: 0 }, Run { done: done.clone(), ..Run::new(len) }));
            }
        }
        Ok(runs)
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
