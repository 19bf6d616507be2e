//! Where manifests are kept between runs. Only ever a shortcut: one that is broken, foreign or cannot be written
//! costs a scan, nothing else.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use shardfeed_plan::{Manifest, decode_manifest, encode_manifest, key};

use crate::source::Source;

/// Where the manifest is kept for the next start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// Beside the data, in `.shardfeed/manifest`, where all ranks find it; if the directory is read-only, or the
    /// source is a glob or list, in the user's cache directory.
    #[default]
    Auto,
    /// In this file.
    At(PathBuf),
    /// Nowhere.
    Off,
}

/// Files to try, the preferred one first.
pub(crate) fn places(source: &Source, base: &Path, policy: &CachePolicy) -> Vec<PathBuf> {
    match policy {
        CachePolicy::Off => Vec::new(),
        CachePolicy::At(path) => vec![path.clone()],
        CachePolicy::Auto => {
            let beside =
                matches!(source, Source::Directory(_)).then(|| base.join(".shardfeed").join("manifest"));
            beside.into_iter().chain(user_cache(source, base)).collect()
        }
    }
}

fn user_cache(source: &Source, base: &Path) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    let base = if base.as_os_str().is_empty() { Path::new(".") } else { base };
    let absolute = std::fs::canonicalize(base).ok()?;
    // A list of ten thousand files is not a file name: what tells sources apart is hashed.
    let mut text = absolute.to_string_lossy().into_owned();
    text.push('\0');
    match source {
        Source::Directory(_) => {}
        Source::Glob(pattern) => text.push_str(pattern),
        Source::Files(paths) => paths.iter().for_each(|path| {
            text.push_str(&path.to_string_lossy());
            text.push('\0');
        }),
    }
    let words: Vec<u64> = text
        .as_bytes()
        .chunks(8)
        .map(|chunk| chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)))
        .collect();
    Some(root.join("shardfeed").join(format!("{:016x}.manifest", key(&words))))
}

/// A manifest that was kept.
pub(crate) struct Kept {
    pub place: PathBuf,
    pub manifest: Manifest,
}

/// Every manifest that can be read, the preferred place's first, and why others cannot.
pub(crate) fn read_all(places: &[PathBuf]) -> (Vec<Kept>, Vec<String>) {
    let (mut kept, mut notes) = (Vec::new(), Vec::new());
    for place in places {
        match std::fs::read(place) {
            Ok(bytes) => match decode_manifest(&bytes) {
                Ok(manifest) => kept.push(Kept { place: place.clone(), manifest }),
                Err(error) => notes.push(format!("{}: {error}; scanned again", place.display())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => notes.push(format!("{}: {error}", place.display())),
        }
    }
    (kept, notes)
}

/// Writes to the first place that takes it, and says why others did not.
pub(crate) fn write_first(places: &[PathBuf], manifest: &Manifest) -> (Option<PathBuf>, Vec<String>) {
    let mut notes = Vec::new();
    let bytes = if places.is_empty() { Vec::new() } else { encode_manifest(manifest) };
    for place in places {
        match write_whole(place, &bytes) {
            Ok(()) => return (Some(place.clone()), notes),
            Err(error) => notes.push(format!("{}: cannot be written: {error}", place.display())),
        }
    }
    (None, notes)
}

/// Ranks are threads of one process, processes, or processes of the same number in containers: temporary files are
/// named by all that tells them apart.
static WRITES: AtomicU64 = AtomicU64::new(0);

/// Readers see the old file or the new one, never half of it, also when many ranks write at once. What was written is
/// still there after the power failed.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_in_steps(path, bytes, || ())
}

/// So that a name in it is there after the power failed. Not every system lets directories be opened or synced, and the file itself is
/// safe by then; a disk that fails is another matter.
fn sync_directory(dir: &Path) -> io::Result<()> {
    let Ok(dir) = File::open(dir) else { return Ok(()) };
    dir.sync_all().or_else(|error| match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied => Ok(()),
        _ => Err(error),
    })
}

/// The same. `step` is called before, between and after the calls of the system that change something.
pub(crate) fn write_in_steps(path: &Path, bytes: &[u8], mut step: impl FnMut()) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    name.push(format!(".{}-{}-{now}.tmp", std::process::id(), WRITES.fetch_add(1, Relaxed)));
    let temporary = dir.join(name);
    step();
    let written = File::create_new(&temporary).and_then(|mut file| {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        for half in [first, second] {
            step();
            file.write_all(half)?;
        }
        step();
        file.sync_all()
    });
    step();
    match written.and_then(|()| std::fs::rename(&temporary, path)) {
        Ok(()) => {
            step();
            let synced = sync_directory(dir);
            step();
            synced
        }
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            Err(error)
        }
    }
}
