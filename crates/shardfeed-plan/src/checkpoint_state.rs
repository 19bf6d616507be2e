use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Assignment, DealtOrder, Facts, Needs, Partition, PartitionStrategy, Rank};

/// Where one worker's stream of samples stands, and what must be the same to go on there.
///
/// Small whatever was processed: that is kept as ranges of positions in the worker's own order, one of them unless
/// several threads were at work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct CheckpointState {
    /// Version of the stored form: [`CHECKPOINT_FORMAT`].
    format: u32,
    /// The epoch.
    pub epoch: u64,
    /// The first position of the worker's order that was not handed out.
    pub position: usize,
    /// What the order is shuffled by.
    pub shuffle_seed: Option<u64>,
    /// The worker.
    pub rank: usize,
    /// When the checkpoint was taken, in seconds since 1970.
    pub timestamp: u64,
    /// Workers there were.
    pub world_size: usize,
    /// The trainer's step that it belongs to, if one was named.
    pub step: Option<u64>,
    /// How samples are divided.
    pub strategy: PartitionStrategy,
    /// Samples of the data set, and what else tells it from others; 0 if nothing does.
    pub samples: usize,
    /// See `samples`.
    pub fingerprint: u64,
    /// Tells the labels or keys that the order depends on from others; 0 if it depends on none.
    facts: u64,
    /// Ranges of positions that were handed out, ascending and apart.
    processed: Vec<(u64, u64)>,
    /// What the worker has, if samples were dealt again.
    assignment: Option<Assignment>,
    /// Who gets which samples, as long as somebody knows that saw the data.
    #[serde(skip)]
    partition: Option<Partition>,
}

/// The same as it is stored, before anything in it is believed.
#[derive(Deserialize)]
struct Unchecked {
    format: u32,
    epoch: u64,
    position: usize,
    shuffle_seed: Option<u64>,
    rank: usize,
    timestamp: u64,
    world_size: usize,
    step: Option<u64>,
    strategy: PartitionStrategy,
    samples: usize,
    fingerprint: u64,
    facts: u64,
    processed: Vec<(u64, u64)>,
    assignment: Option<Assignment>,
}

impl TryFrom<Unchecked> for CheckpointState {
    type Error = String;

    fn try_from(stored: Unchecked) -> Result<Self, String> {
        if stored.format != CHECKPOINT_FORMAT {
            return Err(CheckpointError::Format { found: stored.format }.to_string());
        }
        let (mut end, mut gaps) = (None, 0_u64);
        for &(start, stop) in &stored.processed {
            gaps = gaps.saturating_add(start.saturating_sub(end.unwrap_or(0)));
            if start >= stop || end.is_some_and(|end| start <= end) {
                return Err(format!(
                    "processed positions {start}..{stop} cannot follow others up to {end:?}"
                ));
            }
            end = Some(stop);
        }
        if gaps > GAPS_MAX {
            return Err(format!("{gaps} positions between those that were processed"));
        }
        if stored.position as u64 != position(&stored.processed) {
            return Err(format!("position {} is not where the processed ones end", stored.position));
        }
        Ok(Self {
            format: stored.format,
            epoch: stored.epoch,
            position: stored.position,
            shuffle_seed: stored.shuffle_seed,
            rank: stored.rank,
            timestamp: stored.timestamp,
            world_size: stored.world_size,
            step: stored.step,
            strategy: stored.strategy,
            samples: stored.samples,
            fingerprint: stored.fingerprint,
            facts: stored.facts,
            processed: stored.processed,
            assignment: stored.assignment,
            partition: None,
        })
    }
}

/// The version of the stored form of a [`CheckpointState`].
pub const CHECKPOINT_FORMAT: u32 = 1;

/// What a stream is, as far as it must be the same for a checkpoint to go on in it.
#[derive(Clone, Copy, Debug)]
pub struct StreamIdentity<'a> {
    /// The worker.
    pub rank: Rank,
    /// What the order is shuffled by.
    pub shuffle_seed: Option<u64>,
    /// How samples are divided.
    pub strategy: &'a PartitionStrategy,
    /// Samples of the data set.
    pub samples: u64,
    /// What else tells it from others; 0 if nothing does.
    pub fingerprint: u64,
    /// Tells the labels or keys that the order depends on from others: see [`Facts::fingerprint`].
    pub facts: u64,
}

/// Where a stream stands.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The epoch.
    pub epoch: u64,
    /// Ranges of positions that were handed out, ascending and apart.
    pub processed: Vec<(u64, u64)>,
    /// What the worker has, if samples were dealt again.
    pub assignment: Option<Assignment>,
    /// The trainer's step.
    pub step: Option<u64>,
    /// In seconds since 1970.
    pub timestamp: u64,
}

/// Why a checkpoint is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Not the stored form of a checkpoint.
    #[error("not a checkpoint: {0}; use one written by this program, or begin anew")]
    Damaged(String),
    /// Written by another release.
    #[error(
        "a checkpoint of format {found}, this release reads {CHECKPOINT_FORMAT}; use the release that wrote it"
    )]
    Format {
        /// What it says.
        found: u32,
    },
    /// Of another stream.
    #[error(
        "the checkpoint is of another stream: its {what} is {theirs}, here it is {ours}; give the same, or begin anew"
    )]
    Differs {
        /// What differs.
        what: &'static str,
        /// In the checkpoint.
        theirs: String,
        /// In the stream.
        ours: String,
    },
    /// Positions cannot be told from the checkpoint alone.
    #[error(
        "which samples were processed depends on the {0} of the data set, which this checkpoint does not have; \
         restore it into a loader and ask that one's checkpoint"
    )]
    NeedsData(&'static str),
    /// The same, by looking at more samples than that is worth.
    #[error(
        "which samples were processed depends on the hashes of {samples} samples, and without the data set at most {max} are looked at; \
         restore the checkpoint into a loader and ask that one's checkpoint"
    )]
    NeedsHashes {
        /// How many.
        samples: u64,
        /// How many are.
        max: u64,
    },
}

impl CheckpointState {
    /// The checkpoint of a stream that stands there.
    pub fn new(stream: &StreamIdentity, progress: Progress, partition: &Partition) -> Self {
        let Progress { epoch, processed, assignment, step, timestamp } = progress;
        Self {
            format: CHECKPOINT_FORMAT,
            epoch,
            position: position(&processed) as usize,
            shuffle_seed: stream.shuffle_seed,
            rank: stream.rank.index() as usize,
            timestamp,
            world_size: stream.rank.world_size() as usize,
            step,
            strategy: stream.strategy.clone(),
            samples: stream.samples as usize,
            fingerprint: stream.fingerprint,
            facts: stream.facts,
            processed,
            assignment,
            partition: Some(partition.clone()),
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and names")
    }

    /// From JSON. Everything is checked that can be without the stream, as whenever one is deserialized.
    pub fn from_json(json: &str) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged = |error: serde_json::Error| CheckpointError::Damaged(error.to_string());
        // First, since another version may have other fields.
        let Version { format } = serde_json::from_str(json).map_err(damaged)?;
        if format != CHECKPOINT_FORMAT {
            return Err(CheckpointError::Format { found: format });
        }
        serde_json::from_str(json).map_err(damaged)
    }

    /// Refuses to go on in another stream, or past its end.
    pub fn check(&self, stream: &StreamIdentity) -> Result<(), CheckpointError> {
        fn same<T: PartialEq + std::fmt::Debug>(
            what: &'static str,
            theirs: &T,
            ours: &T,
        ) -> Result<(), CheckpointError> {
            if theirs == ours {
                return Ok(());
            }
            Err(CheckpointError::Differs { what, theirs: format!("{theirs:?}"), ours: format!("{ours:?}") })
        }
        same("rank", &self.rank, &(stream.rank.index() as usize))?;
        same("world size", &self.world_size, &(stream.rank.world_size() as usize))?;
        same("shuffle seed", &self.shuffle_seed, &stream.shuffle_seed)?;
        same("strategy", &self.strategy, stream.strategy)?;
        same("number of samples", &(self.samples as u64), &stream.samples)?;
        if self.fingerprint != 0 && stream.fingerprint != 0 {
            same("data fingerprint", &self.fingerprint, &stream.fingerprint)?;
        }
        same("fingerprint of labels or keys", &self.facts, &stream.facts)?;
        if self.position as u64 != position(&self.processed) {
            return Err(CheckpointError::Damaged(format!(
                "position {} is not where the processed ones end",
                self.position
            )));
        }
        Ok(())
    }

    /// Ranges of positions in the worker's order that were handed out: from, up to and without. Ascending and apart.
    pub fn processed(&self) -> &[(u64, u64)] {
        &self.processed
    }

    /// How many samples were handed out.
    pub fn processed_count(&self) -> u64 {
        self.processed.iter().map(|(start, end)| end - start).sum()
    }

    /// What the worker has, if samples were dealt again.
    pub fn assignment(&self) -> Option<&Assignment> {
        self.assignment.as_ref()
    }

    /// Indexes in the data set of the samples that were handed out, in the worker's order.
    ///
    /// # Panics
    /// If the checkpoint was read from somewhere and its strategy goes by labels or keys of the data, or by the hashes of more than
    /// 16,777,216 samples: see [`try_processed_indices`](Self::try_processed_indices).
    pub fn processed_indices(&self) -> impl Iterator<Item = usize> + use<> {
        self.try_processed_indices().unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same, or why they cannot be told.
    pub fn try_processed_indices(&self) -> Result<impl Iterator<Item = usize> + use<>, CheckpointError> {
        let damaged = |error: crate::PartitionError| CheckpointError::Damaged(error.to_string());
        let partition = match (&self.partition, self.strategy.needs()) {
            (Some(partition), _) => partition.clone(),
            (None, Needs::Labels) => return Err(CheckpointError::NeedsData("labels")),
            (None, Needs::Keys) if self.facts != 0 => return Err(CheckpointError::NeedsData("keys")),
            // Each sample would have to be hashed for each worker: not for numbers that somebody made up.
            (None, Needs::Keys) if self.hashes() > HASHED_MAX => {
                return Err(CheckpointError::NeedsHashes { samples: self.hashes(), max: HASHED_MAX });
            }
            (None, _) => {
                let world_size = u32::try_from(self.world_size).unwrap_or(u32::MAX);
                Partition::new(
                    &self.strategy,
                    self.samples as u64,
                    world_size,
                    self.shuffle_seed,
                    Facts::None,
                )
                .map_err(damaged)?
            }
        };
        let rank = u32::try_from(self.rank).unwrap_or(u32::MAX);
        let order = match &self.assignment {
            Some(assignment) => DealtOrder::new(&partition, self.epoch, assignment.clone()),
            None => {
                let rank = Rank::new(rank, partition.world_size());
                let rank = rank.map_err(|error| CheckpointError::Damaged(error.to_string()))?;
                // Of this worker alone: how many there are is for anybody to make up.
                let order = partition.order(rank, self.epoch);
                let whole = Assignment::whole(rank.index(), order.len());
                DealtOrder::of_orders(rank.world_size(), whole, |_| order.clone())
            }
        }
        .map_err(damaged)?;
        let positions = self.processed.clone().into_iter().flat_map(|(start, end)| start..end);
        Ok(positions.map_while(move |position| Some(order.index(position)?.0 as usize)))
    }

    /// How many samples are looked at, where they are hashed: all, once for each whose samples the worker has.
    fn hashes(&self) -> u64 {
        let stretches = self.assignment.iter().flat_map(Assignment::stretches);
        let origins: BTreeSet<u32> = stretches.map(|stretch| stretch.origin).collect();
        (self.samples as u64).saturating_mul(origins.len().max(1) as u64)
    }
}

/// A second of hashing, and some 350 MB while they are put in order, where one worker has them all.
const HASHED_MAX: u64 = 1 << 24;

/// Far more threads than anybody has: each may leave a position behind that others have passed.
const GAPS_MAX: u64 = 1 << 16;

/// The first that was not handed out.
fn position(processed: &[(u64, u64)]) -> u64 {
    processed.first().filter(|(start, _)| *start == 0).map_or(0, |(_, end)| *end)
}

impl PartialEq for CheckpointState {
    fn eq(&self, other: &Self) -> bool {
        self.to_json() == other.to_json()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Classes, Owners, Stretch};

    /// Twenty samples on two workers, of which the second handed out six.
    fn of(strategy: &PartitionStrategy, facts: Facts, assignment: Option<Assignment>) -> CheckpointState {
        let stream = StreamIdentity {
            rank: Rank::new(1, 2).unwrap(),
            shuffle_seed: (strategy.needs() != Needs::Nothing).then_some(42),
            strategy,
            samples: 20,
            fingerprint: 99,
            facts: facts.fingerprint(),
        };
        let partition = Partition::new(strategy, 20, 2, stream.shuffle_seed, facts).unwrap();
        let step = assignment.is_some().then_some(7);
        let progress = Progress {
            epoch: 3,
            processed: vec![(0, 4), (6, 7)],
            assignment,
            step,
            timestamp: 1_700_000_000,
        };
        CheckpointState::new(&stream, progress, &partition)
    }

    #[test]
    fn samples_that_are_too_many_to_be_hashed_are_told_with_what_to_do() {
        let hashed = PartitionStrategy::HashBased { num_partitions: 16, hash_seed: 1 };
        let json = of(&hashed, Facts::None, None).to_json();
        let stored = |samples: &str| CheckpointState::from_json(&json.replace("20,", samples)).unwrap();
        assert_eq!(stored("1048576,").processed_indices().count(), 5);
        let error = stored("16777217,").try_processed_indices().err().unwrap();
        assert_eq!(error, CheckpointError::NeedsHashes { samples: 16_777_217, max: 16_777_216 });
        let message = error.to_string();
        assert!(message.contains("16777217 samples") && message.contains("into a loader"), "{message}");
    }

    /// What was written stays readable, byte for byte: another form is another [`CHECKPOINT_FORMAT`]. Fingerprints of keys and labels
    /// were computed by another program.
    #[test]
    fn golden_states() {
        let hashed = PartitionStrategy::HashBased { num_partitions: 16, hash_seed: u64::MAX };
        let adaptive = PartitionStrategy::Adaptive {
            base_strategy: Box::new(PartitionStrategy::Contiguous),
            rebalance_threshold: 0.1,
        };
        let stretch = |origin, start, end| Stretch { origin, start, end };
        let dealt = [stretch(1, 0, 5), stretch(0, 8, 10)].into_iter().collect();
        let mut owners = Owners::new(16, u64::MAX, 2);
        (0..20_u8).for_each(|row| owners.push(Some(&[row / 2])));
        let mut classes = Classes::new(3);
        (0..20).for_each(|row| classes.push(Some(row % 3)).unwrap());
        let golden = [
            (
                of(&PartitionStrategy::RoundRobin, Facts::None, None),
                r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":null,"rank":1,"timestamp":1700000000,"world_size":2,"step":null,"strategy":"round_robin","samples":20,"fingerprint":99,"facts":0,"processed":[[0,4],[6,7]],"assignment":null}"#,
            ),
            (
                of(&PartitionStrategy::Contiguous, Facts::None, None),
                r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":null,"rank":1,"timestamp":1700000000,"world_size":2,"step":null,"strategy":"contiguous","samples":20,"fingerprint":99,"facts":0,"processed":[[0,4],[6,7]],"assignment":null}"#,
            ),
            (
                of(&hashed, Facts::None, None),
                r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":42,"rank":1,"timestamp":1700000000,"world_size":2,"step":null,"strategy":{"hash_based":{"num_partitions":16,"hash_seed":18446744073709551615}},"samples":20,"fingerprint":99,"facts":0,"processed":[[0,4],[6,7]],"assignment":null}"#,
            ),
            (
                of(&hashed, Facts::Owners(Arc::new(owners)), None),
                r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":42,"rank":1,"timestamp":1700000000,"world_size":2,"step":null,"strategy":{"hash_based":{"num_partitions":16,"hash_seed":18446744073709551615}},"samples":20,"fingerprint":99,"facts":2394431434637954885,"processed":[[0,4],[6,7]],"assignment":null}"#,
            ),
            (
                of(&PartitionStrategy::RangeBased { ranges: vec![(12, 20), (0, 12)] }, Facts::None, None),
                r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":null,"rank":1,"timestamp":1700000000,"world_size":2,"step":null,"strategy":{"range_based":{"ranges":[[12,20],[0,12]]}},"samples":20,"fingerprint":99,"facts":0,"processed":[[0,4],[6,7]],"assignment":null}"#,
            ),
            (
                of(
                    &PartitionStrategy::Stratified { num_classes: 3 },
                    Facts::Classes(Arc::new(classes)),
                    None,
                ),
                r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":42,"rank":1,"timestamp":1700000000,"world_size":2,"step":null,"strategy":{"stratified":{"num_classes":3}},"samples":20,"fingerprint":99,"facts":4075867916305137243,"processed":[[0,4],[6,7]],"assignment":null}"#,
            ),
            (
                of(&adaptive, Facts::None, Some(dealt)),
                r#"{"format":1,"epoch":3,"position":4,"shuffle_seed":null,"rank":1,"timestamp":1700000000,"world_size":2,"step":7,"strategy":{"adaptive":{"base_strategy":"contiguous","rebalance_threshold":0.1}},"samples":20,"fingerprint":99,"facts":0,"processed":[[0,4],[6,7]],"assignment":[{"origin":1,"start":0,"end":5},{"origin":0,"start":8,"end":10}]}"#,
            ),
        ];
        for (state, json) in golden {
            assert_eq!(state.to_json(), json);
            let stored = CheckpointState::from_json(json).unwrap();
            assert_eq!(stored, state);
            assert_eq!(stored.processed_count(), 5);
            // Those that need the data say so.
            if let Ok(indices) = stored.try_processed_indices() {
                assert!(indices.eq(state.processed_indices()), "{json}");
            }
        }
    }
}
