use std::fmt;
use std::path::PathBuf;

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
