use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
    ///
    /// Where it lies is asked of what was opened, not of its path: that may be a link to somewhere else a moment later. Whoever opens
    /// it afterwards compares whether it is still the same.
    pub(crate) fn look_at(&self, name: &str) -> Result<FileFacts, String> {
        let path = self.root.join(name);
        let cannot = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => "the file is missing; copy the checkpoint again".to_owned(),
            _ => format!("cannot look at it: {error}"),
        };
        let file = touch(&path).map_err(cannot)?;
        if let Some(root) = &self.real_root {
            let real = place_of(&file, &path).map_err(cannot)?;
            if !real.starts_with(root) {
                return Err(format!(
                    "it is a link to {}, outside of the checkpoint, and is not read; allow that if you trust it (follow_links)",
                    real.display()
                ));
            }
        }
        let facts = file.metadata().map_err(cannot)?;
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

    /// Paths of the files in it and in its folders, sorted, and of folders that may not be listed. Links to folders are not followed.
    pub(crate) fn names_within(&self) -> Result<(Vec<String>, Vec<String>)> {
        /// Folders of a checkpoint; more are something else, and are left alone.
        const FOLDERS_MAX: usize = 10_000;
        let (mut names, mut closed, mut folders) = (Vec::new(), Vec::new(), vec![String::new()]);
        let mut at = 0;
        while at < folders.len() {
            let listed = match self.list(&folders[at]) {
                // As `lost+found` may be: what is in it is nobody's of this checkpoint.
                Err(_) if at > 0 => {
                    closed.push(folders[at].trim_end_matches('/').to_owned());
                    Vec::new()
                }
                listed => listed?,
            };
            for (name, is_folder) in listed {
                if !is_folder {
                    names.push(name);
                } else if folders.len() < FOLDERS_MAX {
                    folders.push(format!("{name}/"));
                }
            }
            at += 1;
        }
        names.sort_unstable();
        closed.sort_unstable();
        Ok((names, closed))
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

/// Holds on to whatever a path leads to, without opening it: pipes would wait for somebody, devices would begin to do something.
#[cfg(target_os = "linux")]
fn touch(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?.into())
}

#[cfg(not(target_os = "linux"))]
fn touch(path: &Path) -> std::io::Result<File> {
    open_at_once(path, 0)
}

/// Opens a file to be read. A pipe in its place keeps nobody waiting; somebody who has a lease on the file, and has to give it up
/// first, is waited for.
pub(crate) fn open_at_once(path: &Path, flags: i32) -> std::io::Result<File> {
    let open = |flags| File::options().read(true).custom_flags(flags).open(path);
    match open(flags | libc::O_NONBLOCK) {
        // Of a pipe it is never said.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => open(flags),
        opened => opened,
    }
}

/// Where something lies that was found by a path. Systems without `/proc` are asked for the path once more: there, a link that is changed
/// at that moment could still lead elsewhere.
fn place_of(file: &File, path: &Path) -> std::io::Result<PathBuf> {
    let all = Path::new("/proc/self/fd");
    if all.exists() {
        std::fs::read_link(all.join(file.as_raw_fd().to_string()))
    } else {
        path.canonicalize()
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
        let file = open_at_once(&self.path, 0).map_err(cannot)?;
        if !self.is_same(&file).map_err(cannot)? {
            return Err(CHANGED.to_owned());
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    #[test]
    fn links_that_change_meanwhile_lead_nowhere_else() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(inside.path().join("own"), "own").unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        symlink("own", inside.path().join("file")).unwrap();
        let directory = Directory::open(inside.path(), false).unwrap();
        let own = directory.look_at("own").unwrap().identity;
        let is_over = AtomicBool::new(false);
        let looks: Vec<Result<bool, String>> = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (file, next) = (inside.path().join("file"), inside.path().join("next"));
                for target in [outside.path().join("secret"), "own".into()].iter().cycle() {
                    symlink(target, &next).unwrap();
                    std::fs::rename(&next, &file).unwrap();
                    if is_over.load(Relaxed) {
                        break;
                    }
                }
            });
            let look = |_| directory.look_at("file").map(|facts| facts.identity == own);
            let looks = (0..100_000).map(look).collect();
            is_over.store(true, Relaxed);
            looks
        });
        assert!(!looks.contains(&Ok(false)), "what lies outside was seen");
        assert!(looks.contains(&Ok(true)), "both were there");
        let reasons = looks.into_iter().filter_map(Result::err);
        assert!(reasons.clone().count() > 0, "both were there");
        reasons.for_each(|reason| assert!(reason.contains("outside of the checkpoint"), "{reason}"));
    }

    #[test]
    fn a_pipe_is_no_file_and_nobody_waits_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(directory.path().join("pipe")).status().unwrap();
        assert!(made.success());
        let opened = Directory::open(directory.path(), false).unwrap();
        assert_eq!(opened.look_at("pipe").unwrap_err(), "it is no file");
        // And one that takes a file's place.
        let file = directory.path().join("file");
        std::fs::write(&file, "some bytes").unwrap();
        let facts = opened.look_at("file").unwrap();
        std::fs::rename(directory.path().join("pipe"), &file).unwrap();
        assert_eq!(facts.open().unwrap_err(), CHANGED);
    }
}
