use super::opened::Checkpoint;
use super::options::ReadOptions;
use super::parallel::Kept;
use super::read::ReadStats;
use super::wanted::ReadPlan;
use crate::error::Result;

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
        let options = ReadOptions { num_workers: Some(1), ..self.options.clone() };
        PlanReader { checkpoint: self, options, kept: Kept::default() }
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
