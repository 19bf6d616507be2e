use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;

use crate::args::Failure;

/// A job whose ranks are processes of their own: each runs `shardfeed data stream`.
pub struct Job<'a> {
    pub data: &'a Path,
    pub seq_len: u32,
    pub global_batch: u32,
    pub seed: u64,
    pub world_size: u32,
    /// Stop after so many steps.
    pub steps: Option<u64>,
    /// Continue from this file.
    pub resume_from: Option<&'a Path>,
    /// Each rank leaves its state here, as `rank-N.json`.
    pub states: PathBuf,
}

/// One step of one rank, as `data stream --json` prints it.
#[derive(Deserialize)]
struct StepLine {
    step: u64,
    real_rows: u64,
    digest: String,
}

/// One step of the whole job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub number: u64,
    pub sequences: u64,
    /// The ranks' digests added up.
    pub digest: u64,
}

impl Job<'_> {
    /// Runs all ranks at once. The steps are those of the job; an error if ranks saw unequally many.
    pub fn run(&self) -> Result<Vec<Step>, Failure> {
        let ranks =
            (0..self.world_size).map(|rank| self.start(rank)).collect::<Result<Vec<Child>, Failure>>()?;
        let mut job: Option<Vec<Step>> = None;
        for (rank, child) in ranks.into_iter().enumerate() {
            let output = child.wait_with_output()?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(Failure::Other(format!("rank {rank} failed: {why}")));
            }
            let steps = read_steps(&output.stdout)?;
            match &mut job {
                None => job = Some(steps),
                Some(job) if job.len() == steps.len() => {
                    for (all, one) in job.iter_mut().zip(steps) {
                        if all.number != one.number {
                            return Err(Failure::Other(format!("rank {rank} is at another step")));
                        }
                        all.sequences += one.sequences;
                        all.digest = all.digest.wrapping_add(one.digest);
                    }
                }
                Some(job) => {
                    let (this, others) = (steps.len(), job.len());
                    return Err(Failure::Other(format!("rank {rank} saw {this} steps, others {others}")));
                }
            }
        }
        Ok(job.unwrap_or_default())
    }

    /// Where a rank leaves its state.
    pub fn state_of(&self, rank: u32) -> PathBuf {
        self.states.join(format!("rank-{rank}.json"))
    }

    fn start(&self, rank: u32) -> Result<Child, Failure> {
        std::fs::create_dir_all(&self.states)?;
        if let Some(state) = self.resume_from {
            std::fs::copy(state, self.state_of(rank))?;
        }
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["data", "stream", "--json", "--threads", "1"])
            .arg(self.data)
            .arg("--state")
            .arg(self.state_of(rank))
            .arg(format!("--seq-len={}", self.seq_len))
            .arg(format!("--global-batch={}", self.global_batch))
            .arg(format!("--seed={}", self.seed))
            .arg(format!("--rank={rank}"))
            .arg(format!("--world-size={}", self.world_size))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(steps) = self.steps {
            command.arg(format!("--steps={steps}"));
        }
        Ok(command.spawn()?)
    }
}

fn read_steps(stdout: &[u8]) -> Result<Vec<Step>, Failure> {
    let unreadable = |what: String| Failure::Other(format!("a rank printed something unreadable: {what}"));
    let text = std::str::from_utf8(stdout).map_err(|error| unreadable(error.to_string()))?;
    text.lines()
        .map(|line| {
            let line: StepLine = serde_json::from_str(line).map_err(|error| unreadable(error.to_string()))?;
            let digest =
                u64::from_str_radix(&line.digest, 16).map_err(|error| unreadable(error.to_string()))?;
            Ok(Step { number: line.step, sequences: line.real_rows, digest })
        })
        .collect()
}
