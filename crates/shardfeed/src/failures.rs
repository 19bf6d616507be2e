use std::fmt;
use std::path::PathBuf;

use shardfeed_plan::checkpoint::Dtype;

/// How the reason begins and goes on when an item holds another type or shape than the metadata say.
const HOLDS: (&str, &str) = ("it holds ", ", and the metadata say ");

/// What is wrong with an item of a checkpoint, or with one of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemFailure {
    /// The file.
    pub path: PathBuf,
    /// The tensor or object that is stored there; empty if it is about the whole file.
    pub item: String,
    /// Where in the file.
    pub offset: u64,
    /// What is wrong, and what to do.
    pub reason: String,
}

impl ItemFailure {
    /// Whether all that is wrong is that the item holds another type or shape than the metadata say, as a planner that converts tensors
    /// saves them. Torch never compares the two.
    pub fn is_other_than_described(&self) -> bool {
        self.reason.starts_with(HOLDS.0) && self.reason.contains(HOLDS.1)
    }
}

/// The reason for an [`ItemFailure`] of which that is said.
pub(crate) fn other_than_described(found: (Dtype, &[u64]), described: (Dtype, &[u64])) -> String {
    let (begin, middle) = HOLDS;
    format!("{begin}{} of shape {:?}{middle}{} of shape {:?}", found.0, found.1, described.0, described.1)
}

/// Everything that was found to be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures(pub Vec<ItemFailure>);

impl fmt::Display for ItemFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if !self.item.is_empty() {
            write!(f, "{} at byte {}: ", self.item, self.offset)?;
        }
        f.write_str(&self.reason)
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More than these nobody reads.
        const SHOWN_MAX: usize = 50;
        if self.0.len() > 1 {
            writeln!(f, "{} things are wrong with the checkpoint:", self.0.len())?;
        }
        for (index, failure) in self.0.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{}{failure}", if index > 0 { "\n" } else { "" })?;
        }
        if self.0.len() > SHOWN_MAX {
            write!(f, "\nand {} more", self.0.len() - SHOWN_MAX)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failures {}
