use crate::StateError;

/// How rows become sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Rows are joined, with an optional end-of-document id after each, and cut every `seq_len` tokens.
    Concat,
    /// A row is a sequence of its own; one longer than `seq_len` is several.
    Pad,
}

impl Packing {
    /// The word used in states and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Concat => "concat",
            Self::Pad => "pad",
        }
    }
}

impl std::str::FromStr for Packing {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "concat" => Ok(Self::Concat),
            "pad" => Ok(Self::Pad),
            other => Err(format!("unknown packing {other:?}; it is \"concat\" or \"pad\"")),
        }
    }
}

/// More lanes than any job needs; bounds what a hostile state can make us allocate.
pub const LANES_MAX: u32 = 1 << 20;

/// Tokens of a lane's window when nobody chooses one.
const WINDOW_TOKENS: u32 = 1 << 17;
/// Fewer lanes than this make batches of too few row groups.
const LANES_MIN: u32 = 64;

/// The numbers that, with a manifest and an epoch, define an order. Two streams with equal settings over equal
/// manifests deliver the same sequences in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// How rows become sequences.
    pub packing: Packing,
    /// Follows each row: on the line with `Concat`, as a label only with `Pad`.
    pub eos_id: Option<u32>,
    /// Another seed, another order.
    pub seed: u64,
    /// Whether row groups and sequences are shuffled; if not, there is one lane and it runs in file order.
    pub shuffle: bool,
    /// How many places of the epoch are read at once.
    pub lanes: u32,
    /// Sequences among which a lane shuffles.
    pub window: u32,
}

/// Settings that define no order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A sequence without tokens.
    #[error("seq_len is 0; give the number of tokens of a sequence, for example 2048")]
    NoTokens,
    /// No lanes, or more than anybody can hold.
    #[error("lanes is {0}; it goes from 1 to {LANES_MAX}, and a multiple of the global batch reads least")]
    Lanes(u32),
    /// A window without sequences.
    #[error("window is 0; it is the number of sequences among which a lane shuffles, at least 1")]
    NoWindow,
    /// One lane in file order is what `shuffle = false` means.
    #[error(
        "shuffle is off, so lanes and window are 1, but {lanes} lanes and a window of {window} were given"
    )]
    Unshuffled {
        /// Lanes given.
        lanes: u32,
        /// Window given.
        window: u32,
    },
}

impl StreamSettings {
    /// Shuffled settings with automatic lanes and window for this global batch.
    pub fn auto(seq_len: u32, packing: Packing, eos_id: Option<u32>, seed: u64, global_batch: u32) -> Self {
        Self {
            seq_len,
            packing,
            eos_id,
            seed,
            shuffle: true,
            lanes: Self::auto_lanes(global_batch),
            window: Self::auto_window(seq_len),
        }
    }

    /// A multiple of the global batch, so that no rank reads what another reads, and at least 64, so that a
    /// batch draws from many row groups.
    pub fn auto_lanes(global_batch: u32) -> u32 {
        let batch = global_batch.clamp(1, LANES_MAX);
        batch * LANES_MIN.div_ceil(batch)
    }

    /// About 131,072 tokens, whatever the length of a sequence.
    pub fn auto_window(seq_len: u32) -> u32 {
        (WINDOW_TOKENS / seq_len.max(1)).max(2)
    }

    /// `Ok` when these settings define an order.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.seq_len == 0 {
            return Err(SettingsError::NoTokens);
        }
        if self.lanes == 0 || self.lanes > LANES_MAX {
            return Err(SettingsError::Lanes(self.lanes));
        }
        if self.window == 0 {
            return Err(SettingsError::NoWindow);
        }
        if !self.shuffle && (self.lanes, self.window) != (1, 1) {
            return Err(SettingsError::Unshuffled { lanes: self.lanes, window: self.window });
        }
        Ok(())
    }

    /// Units of the line that one sequence takes: tokens with `Concat`, pieces of rows with `Pad`.
    pub fn units_per_sequence(&self) -> u64 {
        match self.packing {
            Packing::Concat => u64::from(self.seq_len),
            Packing::Pad => 1,
        }
    }
}

/// What a user asked for; `None` means: whatever fits, or whatever the state says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SettingsRequest {
    pub seq_len: u32,
    pub packing: Option<Packing>,
    /// `Some(None)` asks for no end-of-document id.
    pub eos_id: Option<Option<u32>>,
    pub seed: Option<u64>,
    pub shuffle: Option<bool>,
    pub lanes: Option<u32>,
    pub window: Option<u32>,
}

impl SettingsRequest {
    /// Fills in what was not asked for. Lanes follow the global batch.
    pub fn resolve(&self, global_batch: u32) -> Result<StreamSettings, SettingsError> {
        let shuffle = self.shuffle.unwrap_or(true);
        let unless_in_file_order = |auto| if shuffle { auto } else { 1 };
        let settings = StreamSettings {
            seq_len: self.seq_len,
            packing: self.packing.unwrap_or(Packing::Concat),
            eos_id: self.eos_id.flatten(),
            seed: self.seed.unwrap_or(0),
            shuffle,
            lanes: self
                .lanes
                .unwrap_or_else(|| unless_in_file_order(StreamSettings::auto_lanes(global_batch))),
            window: self
                .window
                .unwrap_or_else(|| unless_in_file_order(StreamSettings::auto_window(self.seq_len))),
        };
        settings.check().map(|()| settings)
    }

    /// `Ok` when nothing that was asked for contradicts a state's settings.
    pub fn check_against(&self, saved: &StreamSettings) -> Result<(), StateError> {
        fn same<T: PartialEq + std::fmt::Display>(
            setting: &'static str,
            given: Option<T>,
            saved: &T,
        ) -> Result<(), StateError> {
            match given {
                Some(given) if given != *saved => Err(StateError::OtherSetting {
                    setting,
                    saved: saved.to_string(),
                    given: given.to_string(),
                }),
                _ => Ok(()),
            }
        }
        same("seq_len", Some(self.seq_len), &saved.seq_len)?;
        same("packing", self.packing.map(Packing::name), &saved.packing.name())?;
        let words = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
        same("eos_id", self.eos_id.map(words), &words(saved.eos_id))?;
        same("seed", self.seed, &saved.seed)?;
        same("shuffle", self.shuffle, &saved.shuffle)?;
        same("lanes", self.lanes, &saved.lanes)?;
        same("window", self.window, &saved.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_adopted_unless_something_explicit_differs() {
        let saved = StreamSettings::auto(2048, Packing::Concat, Some(2), 7, 100);
        let silent = SettingsRequest { seq_len: 2048, ..Default::default() };
        assert_eq!(silent.check_against(&saved), Ok(()));
        for (request, word) in [
            (SettingsRequest { seq_len: 1024, ..silent.clone() }, "seq_len"),
            (SettingsRequest { packing: Some(Packing::Pad), ..silent.clone() }, "packing"),
            (SettingsRequest { eos_id: Some(None), ..silent.clone() }, "eos_id"),
            (SettingsRequest { seed: Some(8), ..silent.clone() }, "seed"),
            (SettingsRequest { shuffle: Some(false), ..silent.clone() }, "shuffle"),
            (SettingsRequest { lanes: Some(64), ..silent.clone() }, "lanes"),
            (SettingsRequest { window: Some(1), ..silent.clone() }, "window"),
        ] {
            let message = request.check_against(&saved).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        let explicit = SettingsRequest { seed: Some(7), lanes: Some(100), eos_id: Some(Some(2)), ..silent };
        assert_eq!(explicit.check_against(&saved), Ok(()));
    }

    #[test]
    fn without_shuffling_there_is_one_lane_in_file_order() {
        let request = SettingsRequest { seq_len: 8, shuffle: Some(false), ..Default::default() };
        let settings = request.resolve(64).unwrap();
        assert_eq!((settings.lanes, settings.window, settings.seed), (1, 1, 0));
        assert!(SettingsRequest { lanes: Some(2), ..request }.resolve(64).is_err());
    }

    #[test]
    fn automatic_lanes_are_a_multiple_of_the_global_batch_and_no_more_than_needed() {
        for batch in (1..=1024).chain([1025, 1536, 4096, 100_000, LANES_MAX]) {
            let lanes = StreamSettings::auto_lanes(batch);
            assert!(lanes.is_multiple_of(batch) && lanes >= 64 && lanes < batch + 64.max(batch), "{batch}");
        }
        assert_eq!(StreamSettings::auto_lanes(0), 64);
        assert_eq!(StreamSettings::auto_lanes(u32::MAX), LANES_MAX);
    }

    #[test]
    fn impossible_settings_say_what_to_give() {
        let good = StreamSettings::auto(2048, Packing::Concat, None, 7, 64);
        assert_eq!((good.lanes, good.window, good.check()), (64, 64, Ok(())));
        assert!(StreamSettings { seq_len: 0, ..good.clone() }.check().is_err());
        assert!(StreamSettings { lanes: 0, ..good.clone() }.check().is_err());
        assert!(StreamSettings { window: 0, ..good.clone() }.check().is_err());
        let message = StreamSettings { shuffle: false, ..good }.check().unwrap_err().to_string();
        assert!(message.contains("64 lanes"), "{message}");
    }
}
