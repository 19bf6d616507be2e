use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use shardfeed::{
    CachePolicy, Dtype, LabelStyle, OnCorrupt, Packing, Rank, SettingsRequest, Source, StreamState, Tail,
    TokenLoader, TokenLoaderBuilder, read_state,
};

use crate::output::scan_bar;

/// What one rank streams.
#[derive(Args, Clone, Debug)]
pub struct LoaderArgs {
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// This rank, from 0.
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// How many ranks there are.
    #[arg(long, default_value_t = 1)]
    pub world_size: u32,
}

/// What a data set is and how it becomes a stream, for any rank.
#[derive(Args, Clone, Debug)]
pub struct SettingsArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// Tokens of a sequence. [default: 2048, or the state's]
    #[arg(long)]
    pub seq_len: Option<u32>,
    /// Sequences of a step, over all ranks. [default: 8, or the state's]
    #[arg(long)]
    pub global_batch: Option<u32>,
    /// Another seed, another order. [default: 0, or the state's]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Begin with this epoch; a state must stand in it. [default: 0, or the state's]
    #[arg(long)]
    pub epoch: Option<u64>,
    /// Read in file order.
    #[arg(long)]
    pub no_shuffle: bool,
    /// "concat" joins rows and cuts them, "pad" keeps them apart. [default: concat, or the state's]
    #[arg(long)]
    pub packing: Option<Packing>,
    /// The id that ends each document. [default: none, or the state's]
    #[arg(long)]
    pub eos_id: Option<u32>,
    /// The token where there is none.
    #[arg(long, default_value_t = 0)]
    pub pad_id: u32,
    /// What happens to a last step that is not full: "pad", "drop", "wrap" or "error".
    #[arg(long, default_value = "pad")]
    pub tail: Tail,
    /// What happens to a damaged row group: "error", or "mask", which makes its tokens padding without labels.
    #[arg(long, default_value = "error")]
    pub on_corrupt: OnCorrupt,
    /// "shifted" labels hold the next token, "unshifted" ones a copy.
    #[arg(long, default_value = "shifted")]
    pub labels: LabelStyle,
    /// "int64" or "int32".
    #[arg(long, default_value = "int64")]
    pub dtype: Dtype,
    /// Places of the epoch read at once. [default: from the global batch, or the state's]
    #[arg(long)]
    pub lanes: Option<u32>,
    /// Sequences among which a lane shuffles. [default: 131,072 tokens' worth, or the state's]
    #[arg(long)]
    pub window: Option<u32>,
    /// Threads that decode. [default: the cores, at most 8]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Bytes to stay within, for example 512M or 2G. [default: 8G; only what the settings need is taken]
    #[arg(long, value_parser = bytes)]
    pub memory_budget: Option<u64>,
    /// Continue from the state in this file, if it is there.
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
}

/// Where the data is.
#[derive(Args, Clone, Debug)]
pub struct DataArgs {
    /// A directory, a file, a quoted glob such as 'data/**/*.parquet', or several files.
    #[arg(required = true)]
    pub source: Vec<String>,
    /// Keep the manifest in this file. [default: .shardfeed/manifest in the directory, or the user's cache]
    #[arg(long, value_name = "FILE")]
    pub cache: Option<PathBuf>,
    /// Keep no manifest, and use none.
    #[arg(long, conflicts_with = "cache")]
    pub no_cache: bool,
}

impl DataArgs {
    pub fn source(&self) -> Source {
        match self.source.as_slice() {
            [one] => Source::from(one),
            several => Source::from(several.to_vec()),
        }
    }

    pub fn cache(&self) -> CachePolicy {
        match &self.cache {
            _ if self.no_cache => CachePolicy::Off,
            Some(path) => CachePolicy::At(path.clone()),
            None => CachePolicy::Auto,
        }
    }
}

impl LoaderArgs {
    /// The loader, standing where the state says; and whether there was one.
    pub fn loader(&self) -> Result<(TokenLoader, bool), Failure> {
        self.settings.loader(Rank::new(self.rank, self.world_size).map_err(shardfeed::Error::from)?)
    }
}

impl SettingsArgs {
    /// The state to continue from, if its file is there.
    pub fn saved_state(&self) -> Result<Option<StreamState>, Failure> {
        Ok(self.state.as_deref().map(read_if_there).transpose()?.flatten())
    }

    /// Tokens of a sequence and sequences of a step: as given, or as the state says, or usual ones.
    pub fn lengths(&self, state: Option<&StreamState>) -> (u32, u32) {
        let seq_len = self.seq_len.or(state.map(|state| state.settings.seq_len)).unwrap_or(2048);
        let global_batch = self.global_batch.or(state.map(|state| state.steps.global_batch())).unwrap_or(8);
        (seq_len, global_batch)
    }

    /// What was asked of the order.
    pub fn request(&self, seq_len: u32) -> SettingsRequest {
        SettingsRequest {
            seq_len,
            packing: self.packing,
            eos_id: self.eos_id.map(Some),
            seed: self.seed,
            shuffle: self.no_shuffle.then_some(false),
            lanes: self.lanes,
            window: self.window,
        }
    }

    fn loader(&self, rank: Rank) -> Result<(TokenLoader, bool), Failure> {
        let state = self.saved_state()?;
        let (seq_len, global_batch) = self.lengths(state.as_ref());
        let mut builder: TokenLoaderBuilder = TokenLoader::builder(self.data.source(), seq_len, global_batch)
            .rank(rank)
            .tail(self.tail)
            .on_corrupt(self.on_corrupt)
            .labels(self.labels)
            .dtype(self.dtype)
            .pad_id(self.pad_id)
            .cache(self.data.cache());
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        if self.no_shuffle {
            builder = builder.shuffle(false);
        }
        if let Some(packing) = self.packing {
            builder = builder.packing(packing);
        }
        if self.eos_id.is_some() {
            builder = builder.eos_id(self.eos_id);
        }
        if let Some(lanes) = self.lanes {
            builder = builder.lanes(lanes);
        }
        if let Some(window) = self.window {
            builder = builder.window(window);
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        if let Some(bytes) = self.memory_budget {
            builder = builder.memory_budget(bytes);
        }
        if let Some(epoch) = self.epoch {
            builder = builder.epoch(epoch);
        }
        let is_resumed = state.is_some();
        if let Some(state) = state {
            builder = builder.resume_from(state);
        }
        let bar = scan_bar("scanning");
        let progress = bar.clone();
        builder = builder.scan_progress(move |done, total| {
            progress.set_length(total);
            progress.set_position(done);
        });
        let loader = builder.build();
        bar.finish_and_clear();
        Ok((loader?, is_resumed))
    }
}

/// The state in a file; `None` only if there is no such file. One that cannot be read is no reason to start over.
fn read_if_there(path: &Path) -> Result<Option<StreamState>, Failure> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => Ok(Some(read_state(path)?)),
    }
}

/// "512M" as a number.
/// A number of bytes, with or without a unit.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text
        .trim_end_matches(['B', 'i'])
        .split_at_checked(text.trim_end_matches(['B', 'i']).len().saturating_sub(1))
    {
        Some((digits, "K" | "k")) => (digits, 1 << 10),
        Some((digits, "M" | "m")) => (digits, 1 << 20),
        Some((digits, "G" | "g")) => (digits, 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no number of bytes, such as 512M"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text} is more than any machine has"))
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The library says why.
    Shardfeed(shardfeed::Error),
    /// The terminal, a child process or a temporary directory.
    Other(String),
    /// Whoever read the output went away.
    Closed,
    /// Somebody pressed Ctrl-C.
    Stopped,
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        use shardfeed::Error::{Budget, Invalid, NoStep, Rank, Settings, Skips, State, StateFile, Tail};
        ExitCode::from(match self {
            Self::Shardfeed(State(_) | StateFile { .. }) => 4,
            Self::Shardfeed(
                Invalid(_) | Rank(_) | Settings(_) | Skips(_) | NoStep { .. } | Tail { .. } | Budget { .. },
            ) => 2,
            Self::Shardfeed(_) => 3,
            Self::Other(_) => 1,
            // As if by the signal that ends other programs then.
            Self::Closed => 141,
            Self::Stopped => 130,
        })
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shardfeed(error) => error.fmt(f),
            Self::Other(text) => f.write_str(text),
            Self::Closed => f.write_str("nobody reads the output any more"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl From<shardfeed::Error> for Failure {
    fn from(error: shardfeed::Error) -> Self {
        Self::Shardfeed(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Other(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_are_read_with_and_without_a_unit() {
        assert_eq!(bytes("123"), Ok(123));
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("7k"), Ok(7 << 10));
        assert!(bytes("").is_err() && bytes("M").is_err() && bytes("99999999999G").is_err());
    }
}
