use serde::{Deserialize, Serialize};

use super::key::{Key, RunId};
use super::ranges::Ranges;
use crate::{CheckpointState, PartitionStrategy};

/// What is kept under a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Under [`Key::Meta`].
    Meta(Box<Meta>),
    /// Under [`Key::Generation`].
    Generation(Generation),
    /// Under [`Key::Worker`].
    Worker(Box<WorkerRecord>),
    /// Under [`Key::Indices`].
    Indices(Vec<usize>),
    /// Under [`Key::Checkpoint`].
    Checkpoint(Box<CheckpointState>),
    /// Under [`Key::Deal`] and [`Key::Dealt`].
    Deal(Box<DealRecord>),
    /// Under [`Key::Bell`].
    Bell,
    /// Under [`Key::Owner`] and [`Key::Alive`].
    Owner(Owner),
    /// Under [`Key::Run`].
    Run(Run),
}

/// What a job is. Whoever joins it must mean the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of everything that is kept: [`JOB_FORMAT`].
    pub format: u32,
    /// Workers there may be.
    pub world_size: u32,
    /// Samples of the data set, and what tells it from others; 0 if nothing does.
    pub samples: u64,
    /// See `samples`.
    pub fingerprint: u64,
    /// Tells labels or keys that the order depends on from others.
    pub facts: u64,
    /// What the order is shuffled by.
    pub shuffle_seed: Option<u64>,
    /// How samples are divided; `None` where workers only report how they do.
    pub strategy: Option<PartitionStrategy>,
}

impl Meta {
    /// What differs from what another process means by the job, if anything does.
    pub fn check(&self, other: &Self) -> Result<(), String> {
        fn same<T: PartialEq + std::fmt::Debug>(what: &str, ours: &T, theirs: &T) -> Result<(), String> {
            if ours == theirs {
                Ok(())
            } else {
                Err(format!("its {what} is {theirs:?}, here it is {ours:?}"))
            }
        }
        same("format", &self.format, &other.format)?;
        same("world size", &self.world_size, &other.world_size)?;
        same("number of samples", &self.samples, &other.samples)?;
        if self.fingerprint != 0 && other.fingerprint != 0 {
            same("data fingerprint", &self.fingerprint, &other.fingerprint)?;
        }
        same("fingerprint of labels or keys", &self.facts, &other.facts)?;
        same("shuffle seed", &self.shuffle_seed, &other.shuffle_seed)?;
        same("strategy", &self.strategy, &other.strategy)
    }
}

/// The version of what a job keeps.
pub const JOB_FORMAT: u32 = 1;

/// A start of the job: from the beginning, or from where it was restored to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Tells it from others, also from those that were written at the same time and did not come to be.
    pub id: u64,
    /// How many there were before.
    pub number: u64,
    /// The epoch that it begins in.
    pub epoch: u64,
}

/// How a worker does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Tells this process from others that had the rank before.
    pub session: u64,
    /// The rank.
    pub rank: u32,
    /// Where it runs, for people.
    pub name: String,
    /// The start of the job that it takes part in, and the epoch that it is in.
    pub generation: u64,
    /// See `generation`.
    pub epoch: u64,
    /// Whether it waits for work.
    pub is_waiting: bool,
    /// Whether it left by itself.
    pub has_left: bool,
    /// Samples handed out, and how many a second, once that is known.
    pub samples: u64,
    /// See `samples`.
    pub rate: Option<f64>,
    /// Where its stream stands.
    pub position: u64,
    /// When it said so, by its own clock, in milliseconds since 1970; 0 if it never did.
    pub heartbeat_ms: u64,
}

/// Who has a run, or a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process.
    pub session: u64,
    /// Its rank.
    pub rank: u32,
}

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredRun")]
pub struct Run {
    /// One past its last sample.
    pub end: u64,
    /// Samples of the run that are done, numbered as the strategy gives them to its origin.
    pub done: Ranges,
    /// The process that wrote this, and the how-manieth of its writes it is.
    pub by: u64,
    /// See `by`.
    pub seq: u64,
    /// The trainer's step that it belongs to, if one was named.
    pub step: Option<u64>,
    /// Who did what, so that it can be done again.
    pub parts: Vec<Part>,
}

/// Samples `start..end` of a run, done by one worker one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The worker.
    pub rank: u32,
    /// When it joined, as the store counts: a worker that joins again has a larger one.
    pub joined: u64,
    /// Where in the worker's stream the first of them was.
    pub at: u64,
    /// The first.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

#[derive(Deserialize)]
struct StoredRun {
    end: u64,
    done: Ranges,
    by: u64,
    seq: u64,
    step: Option<u64>,
    parts: Vec<Part>,
}

impl TryFrom<StoredRun> for Run {
    type Error = String;

    fn try_from(stored: StoredRun) -> Result<Self, String> {
        let StoredRun { end, done, by, seq, step, parts } = stored;
        if done.end() > end {
            return Err(format!("done up to {} of {end}", done.end()));
        }
        let is_part = |part: &&Part| {
            part.start < part.end && part.end <= end && part.at.checked_add(part.end - part.start).is_some()
        };
        if let Some(part) = parts.iter().find(|part| !is_part(part)) {
            return Err(format!("{}..{} is no part of it", part.start, part.end));
        }
        Ok(Self { end, done, by, seq, step, parts })
    }
}

/// What is left of an epoch, dealt again: which runs end earlier. What lies beyond is for those who have too little.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DealRecord {
    /// The how-manieth of its epoch.
    pub number: u64,
    /// Samples a second of each worker that was there, when it was dealt.
    pub rates: Vec<(u32, Option<f64>)>,
    /// Samples left for each of them, before and after.
    pub left: Vec<(u32, u64, u64)>,
    /// Where runs are to be cut.
    pub cuts: Vec<Cut>,
}

/// A run is to end at the first of these, and be cut at the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredCut")]
pub struct Cut {
    /// The run.
    pub run: RunId,
    /// Ascending, after the run's beginning. Empty: not at all.
    pub at: Vec<u64>,
}

#[derive(Deserialize)]
struct StoredCut {
    run: RunId,
    at: Vec<u64>,
}

impl TryFrom<StoredCut> for Cut {
    type Error = String;

    fn try_from(StoredCut { run, at }: StoredCut) -> Result<Self, String> {
        let is_ascending = at.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || at.first().is_some_and(|&first| first <= run.start) {
            return Err(format!("a run from {} on cannot be cut at {at:?}", run.start));
        }
        Ok(Self { run, at })
    }
}

impl Part {
    /// Whether the worker did the other right after this.
    fn is_before(&self, other: &Self) -> bool {
        (self.rank, self.joined, self.end) == (other.rank, other.joined, other.start)
            && self.at + (self.end - self.start) == other.at
    }
}

impl Run {
    /// Of which nothing is done.
    pub fn new(end: u64) -> Self {
        Self { end, ..Self::default() }
    }

    /// Whether all of it is done, where it begins at `start`.
    pub fn is_done(&self, start: u64) -> bool {
        self.left(start).is_empty()
    }

    /// What is not.
    pub fn left(&self, start: u64) -> Ranges {
        self.done.gaps(start, self.end)
    }

    /// The part from `start` to `end` of it, as a run of its own.
    pub fn within(&self, start: u64, end: u64) -> Self {
        let mut run = Self { end, done: self.done.within(start, end), parts: Vec::new(), ..*self };
        for part in &self.parts {
            let (first, last) = (part.start.max(start), part.end.min(end));
            if first < last {
                run.parts.push(Part { at: part.at + (first - part.start), start: first, end: last, ..*part });
            }
        }
        run
    }

    /// A worker did more of it.
    pub fn add(&mut self, part: Part) {
        self.done.insert(part.start, part.end);
        let mut part = part;
        // What was done out of turn closes up.
        while let Some(index) =
            self.parts.iter().position(|other| other.is_before(&part) || part.is_before(other))
        {
            let other = self.parts.remove(index);
            let first = if other.start < part.start { other } else { part };
            part = Part { end: other.end.max(part.end), ..first };
        }
        self.parts.push(part);
    }
}

/// What is kept under a key cannot be what was written there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is kept under {path} cannot be read: {reason}; it was written by another program or release")]
pub struct RecordError {
    /// The key's path.
    pub path: String,
    /// What is wrong.
    pub reason: String,
}

impl Value {
    /// As JSON.
    pub fn encode(&self) -> String {
        match self {
            Self::Meta(meta) => json(meta),
            Self::Generation(generation) => json(generation),
            Self::Worker(worker) => json(worker),
            Self::Indices(indices) => json(indices),
            Self::Checkpoint(state) => json(state),
            Self::Deal(deal) => json(deal),
            Self::Bell => "null".to_owned(),
            Self::Owner(owner) => json(owner),
            Self::Run(run) => json(run),
        }
    }

    /// What is kept under a key.
    pub fn decode(key: &Key, bytes: &[u8]) -> Result<Self, RecordError> {
        let value = match key {
            Key::Meta => serde_json::from_slice(bytes).map(Self::Meta),
            Key::Generation => serde_json::from_slice(bytes).map(Self::Generation),
            Key::Worker(_) => serde_json::from_slice(bytes).map(Self::Worker),
            Key::Indices(_) => serde_json::from_slice(bytes).map(Self::Indices),
            Key::Checkpoint(_) => serde_json::from_slice(bytes).map(Self::Checkpoint),
            Key::Deal(_) | Key::Dealt(..) => serde_json::from_slice(bytes).map(Self::Deal),
            Key::Bell(_) => Ok(Self::Bell),
            Key::Alive(_) | Key::Owner(..) => serde_json::from_slice(bytes).map(Self::Owner),
            Key::Run(..) => serde_json::from_slice(bytes).map(Self::Run),
        };
        let refused = |reason: String| RecordError { path: key.path(), reason };
        let value = value.map_err(|error| refused(error.to_string()))?;
        match (key, &value) {
            (Key::Run(_, id), Self::Run(run))
                if run.end <= id.start
                    || run.done.as_slice().first().is_some_and(|&(start, _)| start < id.start) =>
            {
                Err(refused(format!("it ends at {} or is done before it begins at {}", run.end, id.start)))
            }
            (Key::Worker(rank), Self::Worker(worker)) if worker.rank != *rank => {
                Err(refused(format!("it is of worker {}", worker.rank)))
            }
            (Key::Alive(rank), Self::Owner(owner)) if owner.rank != *rank => {
                Err(refused(format!("it is of worker {}", owner.rank)))
            }
            _ => Ok(value),
        }
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and names")
}

#[cfg(test)]
mod tests {
    use super::super::key::Scope;
    use super::*;

    const SCOPE: Scope = Scope { generation: 0, epoch: 1 };
    const ID: RunId = RunId { origin: 2, start: 100 };

    /// What was written stays readable, byte for byte.
    #[test]
    fn golden_records() {
        let run = Run {
            end: 200,
            done: Ranges::try_from(vec![(100, 150), (152, 160)]).unwrap(),
            by: 77,
            seq: 5,
            step: Some(12),
            parts: vec![Part { rank: 1, joined: 9, at: 40, start: 100, end: 150 }],
        };
        let worker = WorkerRecord {
            session: 77,
            rank: 1,
            name: "host 4711".to_owned(),
            generation: 0,
            epoch: 1,
            is_waiting: false,
            has_left: false,
            samples: 190,
            rate: Some(12.5),
            position: 90,
            heartbeat_ms: 1_700_000_000_000,
        };
        let deal = DealRecord {
            number: 1,
            rates: vec![(0, Some(2.0)), (1, None)],
            left: vec![(0, 10, 5), (1, 0, 5)],
            cuts: vec![Cut { run: ID, at: vec![110, 120] }],
        };
        let meta = Meta {
            format: JOB_FORMAT,
            world_size: 4,
            samples: 1000,
            fingerprint: 7,
            facts: 0,
            shuffle_seed: Some(42),
            strategy: Some(PartitionStrategy::RoundRobin),
        };
        // What a worker hands on is what it writes into files: `checkpoint_state.rs` has the other golden ones.
        let checkpoint = r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":42,"rank":1,"timestamp":1700000000,"world_size":2,"step":7,"strategy":"round_robin","samples":20,"fingerprint":99,"facts":0,"processed":[[0,4]],"assignment":null}"#;
        let golden = [
            (
                Key::Checkpoint(1),
                Value::Checkpoint(Box::new(CheckpointState::from_json(checkpoint).unwrap())),
                checkpoint,
            ),
            (
                Key::Run(SCOPE, ID),
                Value::Run(run),
                r#"{"end":200,"done":[[100,150],[152,160]],"by":77,"seq":5,"step":12,"parts":[{"rank":1,"joined":9,"at":40,"start":100,"end":150}]}"#,
            ),
            (
                Key::Worker(1),
                Value::Worker(Box::new(worker)),
                r#"{"session":77,"rank":1,"name":"host 4711","generation":0,"epoch":1,"is_waiting":false,"has_left":false,"samples":190,"rate":12.5,"position":90,"heartbeat_ms":1700000000000}"#,
            ),
            (
                Key::Owner(SCOPE, ID),
                Value::Owner(Owner { session: 77, rank: 1 }),
                r#"{"session":77,"rank":1}"#,
            ),
            (
                Key::Deal(SCOPE),
                Value::Deal(Box::new(deal)),
                r#"{"number":1,"rates":[[0,2.0],[1,null]],"left":[[0,10,5],[1,0,5]],"cuts":[{"run":{"origin":2,"start":100},"at":[110,120]}]}"#,
            ),
            (
                Key::Generation,
                Value::Generation(Generation { id: 5, number: 1, epoch: 2 }),
                r#"{"id":5,"number":1,"epoch":2}"#,
            ),
            (
                Key::Meta,
                Value::Meta(Box::new(meta)),
                r#"{"format":1,"world_size":4,"samples":1000,"fingerprint":7,"facts":0,"shuffle_seed":42,"strategy":"round_robin"}"#,
            ),
            (Key::Bell(SCOPE), Value::Bell, "null"),
            (Key::Indices(0), Value::Indices(vec![3, 1]), "[3,1]"),
        ];
        for (key, value, json) in golden {
            assert_eq!(value.encode(), json);
            assert_eq!(Value::decode(&key, json.as_bytes()), Ok(value));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
        let wrong = [
            (Key::Run(SCOPE, ID), r#"{"end":100,"done":[],"by":1,"seq":1,"step":null,"parts":[]}"#),
            (Key::Run(SCOPE, ID), r#"{"end":200,"done":[[90,101]],"by":1,"seq":1,"step":null,"parts":[]}"#),
            (Key::Run(SCOPE, ID), r#"{"end":200,"done":[[190,201]],"by":1,"seq":1,"step":null,"parts":[]}"#),
            (Key::Run(SCOPE, ID), r#"{"end":200,"done":[[150,120]],"by":1,"seq":1,"step":null,"parts":[]}"#),
            (
                Key::Deal(SCOPE),
                r#"{"number":1,"rates":[],"left":[],"cuts":[{"run":{"origin":2,"start":100},"at":[100]}]}"#,
            ),
            (
                Key::Worker(3),
                r#"{"session":77,"rank":1,"name":"","generation":0,"epoch":1,"is_waiting":false,"has_left":false,"samples":1,"rate":null,"position":9,"heartbeat_ms":0}"#,
            ),
            (Key::Owner(SCOPE, ID), "{"),
        ];
        for (key, json) in wrong {
            let refused = Value::decode(&key, json.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(&key.path()), "{refused}");
        }
    }

    #[test]
    fn what_is_done_in_a_row_is_one_part() {
        let mut run = Run::new(100);
        run.add(Part { rank: 0, joined: 1, at: 10, start: 0, end: 5 });
        run.add(Part { rank: 0, joined: 1, at: 15, start: 5, end: 9 });
        // Another thread was faster.
        run.add(Part { rank: 0, joined: 1, at: 41, start: 10, end: 12 });
        run.add(Part { rank: 0, joined: 1, at: 40, start: 9, end: 10 });
        run.add(Part { rank: 2, joined: 8, at: 43, start: 12, end: 20 });
        let parts: Vec<_> = run.parts.iter().map(|part| (part.rank, part.at, part.start, part.end)).collect();
        assert_eq!(parts, [(0, 10, 0, 9), (0, 40, 9, 12), (2, 43, 12, 20)]);
        let within = run.within(7, 15);
        let parts: Vec<_> = within.parts.iter().map(|part| (part.at, part.start, part.end)).collect();
        assert_eq!(
            (parts, within.done.as_slice()),
            (vec![(17, 7, 9), (40, 9, 12), (43, 12, 15)], &[(7, 15)][..])
        );
    }
}
