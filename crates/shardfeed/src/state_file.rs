//! States in files: whole or not at all, whatever happens while one is written.

use std::path::Path;

use shardfeed_plan::StreamState;

use crate::cache::write_whole;
use crate::{Error, Result};

/// Writes a state so that the file holds the old one or the new one, never half of it.
pub fn write_state(path: &Path, state: &StreamState) -> Result<()> {
    write_whole(path, state.to_json().as_bytes()).map_err(|error| Error::io(path, "write the state", error))
}

/// Reads a state.
pub fn read_state(path: &Path) -> Result<StreamState> {
    let json = std::fs::read_to_string(path).map_err(|error| Error::io(path, "read the state", error))?;
    StreamState::from_json(json.trim_end())
        .map_err(|source| Error::StateFile { path: path.to_owned(), source })
}
