use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Error, Result};

/// What is said of a file that is no longer what it was.
pub(crate) const CHANGED: &str = "it changed after the checkpoint was opened; open it again, and do not write into checkpoints that are in use";

/// The directory of a checkpoint, and what its files were like when it was opened.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    root: PathBuf,
    /// With all links followed; what may be read lies below. `None` if links may lead anywhere.
    real_root: Option<PathBuf>,
}

/// What a file was like when the checkpoint was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    modified: Option<SystemTime>,
    /// Its device and its number there: clocks of file systems stand still for milliseconds, in which a file may be replaced.
    identity: (u64, u64),
}

impl Directory {
    pub(crate) fn open(root: &Path, follow_links: bool) -> Result<Self> {
        let real_root = root.canonicalize().map_err(|error| Error::io(root, "open it", error))?;
        Ok(Self { root: root.to_owned(), real_root: (!follow_links).then_some(real_root) })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Looks at a file by its path within the directory. The reason is one for people.
    pub(crate) fn look_at(&self, name: &str) -> Result<FileFacts, String> {
        let path = self.root.join(name);
        let cannot = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => "the file is missing; copy the checkpoint again".to_owned(),
            _ => format!("cannot look at it: {error}"),
        };
        if let Some(root) = &self.real_root {
            let real = path.canonicalize().map_err(cannot)?;
            if !real.starts_with(root) {
                return Err(format!(
                    "it is a link to {}, outside of the checkpoint, and is not read; allow that if you trust it (follow_links)",
                    real.display()
                ));
            }
        }
        let facts = std::fs::metadata(&path).map_err(cannot)?;
        if !facts.is_file() {
            return Err("it is no file".to_owned());
        }
        Ok(FileFacts::new(path, &facts))
    }

    /// All of a small file.
    pub(crate) fn read_small(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, String> {
        let facts = self.look_at(name)?;
        if facts.len > bytes_max {
            return Err(format!(
                "{} bytes are more than the {bytes_max} that are read of such a file",
                facts.len
            ));
        }
        let cannot = |error: std::io::Error| format!("cannot read it: {error}");
        let mut bytes = Vec::new();
        // It may have grown since.
        facts.open()?.take(bytes_max).read_to_end(&mut bytes).map_err(cannot)?;
        Ok(bytes)
    }

    /// Names of the files in it, sorted; those of folders within are not looked at.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self.list("")?.into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Paths of the files in it and in its folders, sorted. Links to folders are not followed.
    pub(crate) fn names_within(&self) -> Result<Vec<String>> {
        /// Folders of a checkpoint; more are something else, and are left alone.
        const FOLDERS_MAX: usize = 10_000;
        let (mut names, mut folders) = (Vec::new(), vec![String::new()]);
        let mut at = 0;
        while at < folders.len() {
            for (name, is_folder) in self.list(&folders[at])? {
                if !is_folder {
                    names.push(name);
                } else if folders.len() < FOLDERS_MAX {
                    folders.push(format!("{name}/"));
                }
            }
            at += 1;
        }
        names.sort_unstable();
        Ok(names)
    }

    /// What is in a folder, whose path is empty or ends with a slash, and whether it is a folder.
    fn list(&self, folder: &str) -> Result<Vec<(String, bool)>> {
        let path = self.root.join(folder);
        let cannot = |error| Error::io(&path, "list it", error);
        let mut listed = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // Names that are not UTF-8 are none of a checkpoint's.
            if let Ok(name) = entry.file_name().into_string() {
                listed.push((format!("{folder}{name}"), is_folder));
            }
        }
        Ok(listed)
    }
}

impl FileFacts {
    fn new(path: PathBuf, facts: &std::fs::Metadata) -> Self {
        let identity = (facts.dev(), facts.ino());
        Self { path, len: facts.len(), modified: facts.modified().ok(), identity }
    }

    /// Whether a file that was opened by its path is still the one that was looked at.
    pub(crate) fn is_same(&self, file: &File) -> std::io::Result<bool> {
        Ok(*self == Self::new(self.path.clone(), &file.metadata()?))
    }

    /// Opens it, if it is still what it was.
    pub(crate) fn open(&self) -> Result<File, String> {
        let cannot = |error: std::io::Error| format!("cannot open it: {error}");
        let file = File::open(&self.path).map_err(cannot)?;
        if !self.is_same(&file).map_err(cannot)? {
            return Err(CHANGED.to_owned());
        }
        Ok(file)
    }
}
