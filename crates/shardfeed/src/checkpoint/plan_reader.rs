use std::sync::Arc;

use super::checksums::Checksums;
use super::opened::Checkpoint;
use super::options::ReadOptions;
use super::parallel::{self, Kept};
use super::read::ReadStats;
use super::wanted::ReadPlan;
use crate::error::{Error, Result};
use crate::failures::Failures;

/// Reads one plan after another on the thread that asks, as one of many: what costs as much as a small read itself is done once. Its file
/// stays open from one plan to the next, and memory of a block and headers of safetensors files are kept. Each plan fails or
/// succeeds by itself; that the file stayed what it was is asked at the end of each.
pub struct PlanReader<'a> {
    checkpoint: &'a Checkpoint,
    options: ReadOptions,
    kept: Kept,
}

impl Checkpoint {
    /// For many small plans, on threads of one's own: each takes a reader for itself.
    pub fn plan_reader(&self) -> PlanReader<'_> {
        self.plan_reader_keeping(Kept::default())
    }

    /// The same for several that bring parts of the same items, if checksums are compared: an item's is, by whoever brings the last of its
    /// bytes, and not for each part. When everything is read, [`compare_rest`](Self::compare_rest) does what is left.
    pub fn plan_reader_with(&self, checksums: &Arc<Checksums>) -> PlanReader<'_> {
        self.plan_reader_keeping(Kept::sharing(Arc::clone(checksums)))
    }

    /// Compares the checksums of items of which only parts were read: reads the rest of them, on as many threads as a read has.
    pub fn compare_rest(&self, checksums: &Checksums) -> Result<()> {
        self.compare_rest_with(checksums, &self.options)
    }

    pub(crate) fn compare_rest_with(&self, checksums: &Checksums, options: &ReadOptions) -> Result<()> {
        let compared = parallel::read_rest(self, checksums, options);
        compared.map_err(|failures| Error::CheckpointDamaged(Failures(failures)))
    }

    fn plan_reader_keeping(&self, kept: Kept) -> PlanReader<'_> {
        let options = ReadOptions { num_workers: Some(1), ..self.options.clone() };
        PlanReader { checkpoint: self, options, kept }
    }
}

impl PlanReader<'_> {
    /// As [`Checkpoint::read_into`] does it.
    pub fn read_into(&mut self, plan: ReadPlan<'_>) -> Result<ReadStats> {
        let read = self.checkpoint.read_into_keeping(plan, &self.options, &self.kept);
        self.kept.let_go_beyond(self.options.limits.block);
        read
    }
}
