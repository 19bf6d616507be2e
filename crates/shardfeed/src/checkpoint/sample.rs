use std::path::Path;

use crate::error::{Error, Result};

/// A checkpoint that torch wrote: `testdata/checkpoints/sample.py` says how.
const FILES: [(&str, &[u8]); 2] = [
    (".metadata", include_bytes!("sample/.metadata")),
    ("__0_0.distcp", include_bytes!("sample/__0_0.distcp")),
];

/// Writes a small checkpoint into a directory, to try things with. It was saved by torch.
pub fn write_sample(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(|error| Error::io(directory, "create it", error))?;
    for (name, bytes) in FILES {
        let path = directory.join(name);
        std::fs::write(&path, bytes).map_err(|error| Error::io(&path, "write it", error))?;
    }
    Ok(())
}
