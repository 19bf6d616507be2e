//! Checkpoints of samples in files: whole or not at all, and told from damaged ones.

use std::path::Path;

use shardfeed_plan::{CheckpointError, CheckpointState};

use crate::cache::write_whole;
use crate::{Error, Result};

/// Writes a checkpoint so that the file holds the old one or the new one, never half of it.
pub fn write_checkpoint(path: &Path, state: &CheckpointState) -> Result<()> {
    let json = state.to_json();
    let check = crc32fast::hash(json.as_bytes());
    write_whole(path, format!("{json}\n{check:08x}\n").as_bytes())
        .map_err(|error| Error::io(path, "write the checkpoint", error))
}

/// Reads a checkpoint.
pub fn read_checkpoint(path: &Path) -> Result<CheckpointState> {
    let refused = |source| Error::CheckpointFile { path: path.to_owned(), source };
    let damaged = |reason: &str| refused(CheckpointError::Damaged(reason.to_owned()));
    let bytes = std::fs::read(path).map_err(|error| Error::io(path, "read the checkpoint", error))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is no text"))?;
    let (json, check) = text.trim_end().split_once('\n').ok_or_else(|| damaged("it is cut short"))?;
    if check != format!("{:08x}", crc32fast::hash(json.as_bytes())) {
        return Err(damaged("its checksum is another"));
    }
    CheckpointState::from_json(json).map_err(refused)
}
