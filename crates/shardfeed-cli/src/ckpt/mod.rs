//! `shardfeed ckpt`: distributed checkpoints, without torch.

mod tree; // names with dots        -> a tree
pub mod inspect; // shardfeed ckpt inspect
pub mod verify; // shardfeed ckpt verify
pub mod diff; // shardfeed ckpt diff
pub mod convert; // shardfeed ckpt convert
pub mod bench; // shardfeed ckpt bench

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use indicatif::ProgressBar;
use shardfeed::checkpoint::{Checkpoint, OpenOptions, TellProgress};

use crate::args::Failure;
use crate::output::scan_bar;

/// Where a checkpoint is.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArgs {
    /// A directory with .metadata and *.distcp files, or with *.safetensors files.
    path: PathBuf,
    #[command(flatten)]
    opening: OpeningArgs,
}

/// How a checkpoint is opened.
#[derive(Args, Clone, Debug)]
pub struct OpeningArgs {
    /// The rank whose metadata to read, of a checkpoint whose ranks saved on their own. [default: those of all]
    #[arg(long)]
    rank: Option<u32>,
    /// Read files that are links out of the directory, as those of Hugging Face's cache are.
    #[arg(long)]
    follow_links: bool,
}

impl OpeningArgs {
    fn options(&self) -> OpenOptions {
        OpenOptions { rank: self.rank, follow_links: self.follow_links }
    }
}

impl CheckpointArgs {
    fn open(&self) -> Result<Checkpoint, Failure> {
        Ok(Checkpoint::open_with(&self.path, &self.opening.options())?)
    }
}

/// A bar, and what moves it.
fn byte_bar(what: &'static str) -> (ProgressBar, TellProgress) {
    let bar = scan_bar(what);
    let moved = bar.clone();
    let tell: TellProgress = Arc::new(move |progress| {
        moved.set_length(progress.bytes_total >> 20);
        moved.set_position(progress.bytes >> 20);
    });
    (bar, tell)
}
