use serde::{Deserialize, Serialize};

use crate::{BatchChange, Fingerprint, SettingsError, Skips, StepNumbers, StreamSettings};

/// Version of the algorithm that orders sequences. Another one would deliver other steps for the same state.
pub const ALGORITHM_VERSION: u32 = 1;
/// Version of the state's stored form.
pub const STATE_FORMAT: u32 = 1;

/// Where a stream stands: one number, `position`, and the facts that make it safe to continue there.
///
/// It is the same on every rank, under 1 KiB as JSON, and counts what was handed to the trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// The data set it belongs to.
    pub fingerprint: Fingerprint,
    /// The settings that define its order.
    pub settings: StreamSettings,
    /// The epoch.
    pub epoch: u64,
    /// Index, in the epoch's order, of the next sequence to hand out. The number of sequences means: all
    /// delivered, end not yet announced.
    pub position: u64,
    /// How steps are numbered in this epoch.
    pub steps: StepNumbers,
    /// Positions left out of this epoch.
    pub skips: Skips,
}

/// A state that cannot be continued, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Not JSON, or not of our shape.
    #[error("not a Shardfeed state: {0}")]
    Malformed(String),
    /// Written by another release.
    #[error(
        "the state has format {found}, this release reads format {STATE_FORMAT}; use the release that wrote it"
    )]
    Format {
        /// The format of the state.
        found: u64,
    },
    /// The same position would mean another sequence.
    #[error(
        "the state was made with version {found} of the order, this release has version {ALGORITHM_VERSION}; \
         continue with the release that wrote it, or start the next epoch anew"
    )]
    Algorithm {
        /// The version of the state.
        found: u32,
    },
    /// Changed after it was saved.
    #[error("the state is damaged: its checksum does not match its content; load an earlier one")]
    Damaged,
    /// Numbers that contradict each other.
    #[error("the state contradicts itself: {0}")]
    Contradiction(String),
    /// Settings that define no order.
    #[error("the state's settings are impossible: {0}")]
    Settings(#[from] SettingsError),
    /// Another data set.
    #[error(
        "the state belongs to another data set: its fingerprint is {state}, this one's is {data}; \
         files were added, removed, renamed or rewritten since it was saved"
    )]
    OtherData {
        /// Saved fingerprint.
        state: Fingerprint,
        /// The loader's.
        data: Fingerprint,
    },
    /// The loader was told otherwise.
    #[error(
        "the state was saved with {setting} {saved}, this loader was given {setting} {given}; leave it out to use the state's"
    )]
    OtherSetting {
        /// Name of the setting.
        setting: &'static str,
        /// The state's value.
        saved: String,
        /// The loader's value.
        given: String,
    },
    /// Past the end of the epoch.
    #[error(
        "the state stands at position {position}, but the epoch has {sequences} sequences; it was not saved over this \
         data set with these settings, so load another one"
    )]
    PastEnd {
        /// Saved position.
        position: u64,
        /// Sequences there are.
        sequences: u64,
    },
}

impl StreamState {
    /// The beginning of an epoch.
    pub fn start(fingerprint: Fingerprint, settings: StreamSettings, epoch: u64, global_batch: u32) -> Self {
        Self {
            fingerprint,
            settings,
            epoch,
            position: 0,
            steps: StepNumbers::new(global_batch),
            skips: Skips::default(),
        }
    }

    /// As if so many steps had been handed out, of an epoch of `sequences`; at most to its end.
    pub fn pass_over(&mut self, steps: u64, sequences: u64) {
        let live = steps.saturating_mul(u64::from(self.steps.global_batch()));
        if live > 0 {
            let left = self.skips.live_within(self.position.min(sequences)..sequences);
            self.position = if live >= left { sequences } else { self.skips.nth_live(self.position, live) };
        }
    }

    /// `Ok` when this state could have come about: its settings define an order and its numbers fit together.
    pub fn check(&self) -> Result<(), StateError> {
        self.settings.check()?;
        let contradiction = |what: String| Err(StateError::Contradiction(what));
        let skipped_to = self.skips.ranges().last().map_or(0, |range| range.end);
        if self.position.max(skipped_to) > POSITION_MAX {
            let position = self.position;
            return contradiction(format!(
                "it stands at position {position} or skips to {skipped_to}, past any data set"
            ));
        }
        let changes = self.steps.changes();
        let is_possible = |change: &BatchChange| {
            change.global_batch > 0 && change.position <= self.position && change.step <= change.position
        };
        let is_ordered =
            changes.windows(2).all(|pair| pair[0].position < pair[1].position && pair[0].step < pair[1].step);
        let is_counted = (1..=StepNumbers::CHANGES_MAX).contains(&changes.len());
        if !is_counted || !is_ordered || !changes.iter().all(is_possible) {
            return contradiction("its changes of the global batch are out of order".to_owned());
        }
        Ok(())
    }

    /// `Ok` when this state can be continued over the data set with this fingerprint and this many sequences.
    pub fn check_data(&self, data: Fingerprint, sequences: u64) -> Result<(), StateError> {
        if self.fingerprint != data {
            return Err(StateError::OtherData { state: self.fingerprint, data });
        }
        let last_skipped = self.skips.ranges().last().map_or(0, |range| range.end);
        let position = self.position.max(last_skipped);
        if position > sequences {
            return Err(StateError::PastEnd { position, sequences });
        }
        Ok(())
    }

    /// The stored form: one line of JSON, the same bytes for the same state.
    pub fn to_json(&self) -> String {
        let mut stored = Stored::of(self);
        stored.check = stored.checksum();
        serde_json::to_string(&stored).expect("plain values")
    }

    /// Reads the stored form. Refuses what was not written by [`Self::to_json`] of this version.
    pub fn from_json(json: &str) -> Result<Self, StateError> {
        let malformed = |error: serde_json::Error| StateError::Malformed(error.to_string());
        if json.len() > STATE_LEN_MAX {
            return Err(StateError::Malformed(format!("{} bytes, a state has at most 1024", json.len())));
        }
        // The version first: of another one, no other field is known.
        let version: StoredVersion = serde_json::from_str(json).map_err(malformed)?;
        if version.shardfeed_state != u64::from(STATE_FORMAT) {
            return Err(StateError::Format { found: version.shardfeed_state });
        }
        let stored: Stored = serde_json::from_str(json).map_err(malformed)?;
        if stored.check != stored.checksum() {
            return Err(StateError::Damaged);
        }
        if stored.algorithm != ALGORITHM_VERSION {
            return Err(StateError::Algorithm { found: stored.algorithm });
        }
        stored.into_state()
    }
}

/// White space that another program may have added is allowed for.
const STATE_LEN_MAX: usize = 16 * 1024;
/// Keeps sums within 64 bits.
const POSITION_MAX: u64 = 1 << 62;

#[derive(Deserialize)]
struct StoredVersion {
    shardfeed_state: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    shardfeed_state: u32,
    algorithm: u32,
    fingerprint: String,
    seed: u64,
    epoch: u64,
    position: u64,
    seq_len: u32,
    packing: String,
    eos_id: Option<u32>,
    shuffle: bool,
    lanes: u32,
    window: u32,
    /// `[position, step, global_batch]` per change.
    batches: Vec<(u64, u64, u32)>,
    /// `[position, length]` per range.
    skipped: Vec<(u64, u64)>,
    /// CRC-32 of all the above.
    check: String,
}

impl Stored {
    fn of(state: &StreamState) -> Self {
        let settings = &state.settings;
        Self {
            shardfeed_state: STATE_FORMAT,
            algorithm: ALGORITHM_VERSION,
            fingerprint: state.fingerprint.to_string(),
            seed: settings.seed,
            epoch: state.epoch,
            position: state.position,
            seq_len: settings.seq_len,
            packing: settings.packing.name().to_owned(),
            eos_id: settings.eos_id,
            shuffle: settings.shuffle,
            lanes: settings.lanes,
            window: settings.window,
            batches: state
                .steps
                .changes()
                .iter()
                .map(|change| (change.position, change.step, change.global_batch))
                .collect(),
            skipped: state
                .skips
                .ranges()
                .iter()
                .map(|range| (range.start, range.end - range.start))
                .collect(),
            check: String::new(),
        }
    }

    fn checksum(&self) -> String {
        let unchecked = Self {
            fingerprint: self.fingerprint.clone(),
            packing: self.packing.clone(),
            batches: self.batches.clone(),
            skipped: self.skipped.clone(),
            check: String::new(),
            ..*self
        };
        let json = serde_json::to_vec(&unchecked).expect("plain values");
        format!("{:08x}", crc32fast::hash(&json))
    }

    fn into_state(self) -> Result<StreamState, StateError> {
        let contradiction = |what: &str| StateError::Contradiction(what.to_owned());
        let settings = StreamSettings {
            seq_len: self.seq_len,
            packing: self.packing.parse().map_err(StateError::Malformed)?,
            eos_id: self.eos_id,
            seed: self.seed,
            shuffle: self.shuffle,
            lanes: self.lanes,
            window: self.window,
        };
        let mut skips = Skips::default();
        for &(start, len) in &self.skipped {
            let end = start.checked_add(len).filter(|&end| end <= POSITION_MAX && len > 0);
            let end = end.ok_or_else(|| contradiction("a skipped range is empty or past any data set"))?;
            skips.add(start..end).map_err(|error| StateError::Contradiction(error.to_string()))?;
        }
        if skips.ranges().len() != self.skipped.len() {
            return Err(contradiction("its skipped ranges touch or overlap"));
        }
        let changes: Vec<BatchChange> = self
            .batches
            .iter()
            .map(|&(position, step, global_batch)| BatchChange { position, step, global_batch })
            .collect();
        let state = StreamState {
            fingerprint: self.fingerprint.parse().map_err(StateError::Malformed)?,
            settings,
            epoch: self.epoch,
            position: self.position,
            steps: StepNumbers::from_changes(changes),
            skips,
        };
        state.check().map(|()| state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packing;

    fn sample() -> StreamState {
        let settings = StreamSettings::auto(2048, Packing::Concat, Some(2), 7, 64);
        let fingerprint = "00112233445566778899aabbccddeeff".parse().unwrap();
        let mut state = StreamState::start(fingerprint, settings, 3, 64);
        state.position = 4242;
        state.steps.change(640, 48);
        state.skips.add(5000..6000).unwrap();
        state
    }

    const SAMPLE_JSON: &str = r#"{"shardfeed_state":1,"algorithm":1,"fingerprint":"00112233445566778899aabbccddeeff","seed":7,"epoch":3,"position":4242,"seq_len":2048,"packing":"concat","eos_id":2,"shuffle":true,"lanes":64,"window":64,"batches":[[0,0,64],[640,10,48]],"skipped":[[5000,1000]],"check":"4c633046"}"#;

    #[test]
    fn the_stored_form_is_golden_and_reads_back() {
        assert_eq!(sample().to_json(), SAMPLE_JSON);
        assert_eq!(StreamState::from_json(SAMPLE_JSON), Ok(sample()));
    }

    #[test]
    fn white_space_and_the_order_of_fields_do_not_matter() {
        let value: serde_json::Value = serde_json::from_str(SAMPLE_JSON).unwrap();
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        assert_eq!(StreamState::from_json(&pretty), Ok(sample()));
    }

    #[test]
    fn the_largest_state_stays_under_a_kibibyte() {
        let mut state = sample();
        state.settings.seed = u64::MAX;
        state.settings.eos_id = Some(u32::MAX);
        state.epoch = 999_999;
        // A trillion sequences: two thousand trillion tokens of 2048 a sequence.
        for i in 0..40 {
            state.steps.change(900_000_000_000 + i * 1_000_000, 1000 + i as u32);
        }
        state.skips = Skips::default();
        for i in 0..Skips::MAX as u64 {
            state
                .skips
                .add(950_000_000_000 + i * 1_000_000..950_000_000_000 + i * 1_000_000 + 99_000)
                .unwrap();
        }
        state.position = 999_999_999_999;
        let json = state.to_json();
        assert!(json.len() < 1024, "{} bytes: {json}", json.len());
        assert_eq!(StreamState::from_json(&json), Ok(state));
    }

    #[test]
    fn every_changed_character_is_noticed() {
        for at in 0..SAMPLE_JSON.len() {
            for replacement in ["", "0", "1", "9", "x", ",", "\""] {
                let mut damaged = SAMPLE_JSON.to_owned();
                damaged.replace_range(at..=at, replacement);
                if damaged != SAMPLE_JSON {
                    assert!(StreamState::from_json(&damaged).is_err(), "{damaged}");
                }
            }
            assert!(StreamState::from_json(&SAMPLE_JSON[..at]).is_err());
        }
    }

    /// A state written by hand, with a right checksum.
    fn with(change: impl Fn(&mut Stored)) -> Result<StreamState, StateError> {
        let mut stored = Stored::of(&sample());
        change(&mut stored);
        stored.check = stored.checksum();
        StreamState::from_json(&serde_json::to_string(&stored).unwrap())
    }

    #[test]
    fn states_made_by_hand_are_refused_with_a_reason() {
        assert_eq!(with(|_| ()), Ok(sample()));
        assert_eq!(with(|s| s.shardfeed_state = 2), Err(StateError::Format { found: 2 }));
        assert_eq!(with(|s| s.algorithm = 9), Err(StateError::Algorithm { found: 9 }));
        for impossible in [
            with(|s| s.lanes = 0),
            with(|s| s.lanes = u32::MAX),
            with(|s| s.window = 0),
            with(|s| s.seq_len = 0),
            with(|s| s.shuffle = false),
        ] {
            assert!(matches!(impossible, Err(StateError::Settings(_))), "{impossible:?}");
        }
        for contradiction in [
            with(|s| s.position = u64::MAX),
            with(|s| s.batches.clear()),
            with(|s| s.batches[0].2 = 0),
            with(|s| s.batches[1].0 = u64::MAX),
            with(|s| s.batches.reverse()),
            with(|s| s.batches = vec![(0, 5, 1)]),
            with(|s| s.batches = (0..9).map(|i| (i, i, 1)).collect()),
            with(|s| s.skipped[0].1 = 0),
            with(|s| s.skipped[0] = (u64::MAX, 1)),
            with(|s| s.skipped = vec![(1, 5), (3, 4)]),
            with(|s| s.skipped = (0..17).map(|i| (i * 10, 1)).collect()),
        ] {
            assert!(matches!(contradiction, Err(StateError::Contradiction(_))), "{contradiction:?}");
        }
        for malformed in [with(|s| s.packing = "zip".into()), with(|s| s.fingerprint = "zz".into())] {
            assert!(matches!(malformed, Err(StateError::Malformed(_))), "{malformed:?}");
        }
        for text in ["", "null", "[]", "{}", "{\"shardfeed_state\":1}", &"[".repeat(20_000)] {
            assert!(matches!(StreamState::from_json(text), Err(StateError::Malformed(_))), "{text}");
        }
    }

    #[test]
    fn another_data_set_and_a_position_past_its_end_are_refused() {
        let state = sample();
        assert_eq!(state.check_data(state.fingerprint, 6000), Ok(()));
        let message = state.check_data(Fingerprint([0; 16]), 6000).unwrap_err().to_string();
        assert!(message.contains("another data set") && message.contains("00112233"), "{message}");
        assert!(matches!(state.check_data(state.fingerprint, 5999), Err(StateError::PastEnd { .. })));
    }
}
