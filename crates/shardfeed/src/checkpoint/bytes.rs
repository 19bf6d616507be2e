use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::directory::{CHANGED, FileFacts, open_at_once};
use super::options::{DirectIo, Stop};

/// Ranges from which it pays to pass the cache by.
const DIRECT_MIN: usize = 512 << 10;

/// Bytes that are read before somebody looks whether to go on: what may still come to where it belongs after a wish that it end.
const PORTION: usize = 4 << 20;

/// Bytes of a read that passes the cache by, and of the memory that it goes to first. More do not make it faster.
pub(crate) const BOUNCE_BYTES: u64 = 8 << 20;

/// What memory, places and lengths must be multiples of there. Some disks take less, none takes more.
const ALIGNMENT: usize = 4096;

/// One thread's view of a file: its bytes by place, past the system's cache where that is faster.
pub(crate) struct FileBytes {
    file: File,
    /// The same without the cache; `None` where it is not tried, or refused.
    direct: Option<File>,
    choice: DirectIo,
    /// Where such reads go first: memory at places that suit the disk.
    bounce: Vec<u8>,
    stop: Option<Stop>,
    /// Bytes that were asked of the system.
    pub(crate) bytes_read: u64,
    pub(crate) bytes_direct: u64,
}

impl FileBytes {
    pub(crate) fn open(facts: &FileFacts, choice: DirectIo, bounce: Vec<u8>) -> Result<Self, String> {
        let file = facts.open()?;
        let is_large = facts.len >= DIRECT_MIN as u64;
        let direct = if choice == DirectIo::Never || !is_large { None } else { open_direct(facts) };
        Ok(Self { file, direct, choice, bounce, stop: None, bytes_read: 0, bytes_direct: 0 })
    }

    /// Reads fail from when somebody wishes so.
    pub(crate) fn stopped_by(self, stop: Option<Stop>) -> Self {
        Self { stop, ..self }
    }

    /// Whether it stayed what it was while it was read.
    pub(crate) fn check(&self, facts: &FileFacts) -> Result<(), String> {
        match facts.is_same(&self.file) {
            Ok(true) => Ok(()),
            _ => Err(CHANGED.to_owned()),
        }
    }

    /// Memory for the next file.
    pub(crate) fn into_bounce(self) -> Vec<u8> {
        self.bounce
    }

    /// Fills all of `into` with what lies at `offset`.
    pub(crate) fn read(&mut self, mut offset: u64, into: &mut [u8]) -> Result<(), String> {
        self.go_on()?;
        self.bytes_read += into.len() as u64;
        if into.len() >= DIRECT_MIN
            && self.direct.is_some()
            && !(self.choice == DirectIo::Auto && self.is_cached(offset, into.len()))
        {
            match self.read_direct(offset, into) {
                Ok(()) => {
                    self.bytes_direct += into.len() as u64;
                    self.forget_looks(offset, into.len());
                    return Ok(());
                }
                // Some file systems refuse only now. If it is something else, the ordinary way meets it too, and says it.
                Err(_) => self.direct = None,
            }
        }
        for portion in into.chunks_mut(PORTION) {
            self.go_on()?;
            self.file
                .read_exact_at(portion, offset)
                .map_err(|error| cannot(&error, offset, portion.len()))?;
            offset += portion.len() as u64;
        }
        Ok(())
    }

    fn go_on(&self) -> Result<(), String> {
        self.stop.as_ref().map_or(Ok(()), Stop::check)
    }

    /// A range as memory of its own. Files may say that they are larger than any memory.
    pub(crate) fn read_all(&mut self, range: Range<u64>) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        make_room(&mut bytes, range.end - range.start)?;
        self.read(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// The checksum of a range, which is read a portion at a time.
    pub(crate) fn checksum(&mut self, range: Range<u64>) -> Result<u32, String> {
        const PORTION: u64 = 1 << 20;
        let mut hasher = crc32fast::Hasher::new();
        let mut portion = vec![0; (range.end - range.start).min(PORTION) as usize];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(PORTION) as usize;
            self.read(at, &mut portion[..len])?;
            hasher.update(&portion[..len]);
            at += len as u64;
        }
        Ok(hasher.finalize())
    }

    /// Whether a range is in the system's cache, as far as three looks into it tell. Where the system does not say, it is taken for cached.
    #[cfg(target_os = "linux")]
    fn is_cached(&self, offset: u64, len: usize) -> bool {
        let mut byte = [0];
        [0, len / 2, len - 1].into_iter().all(|at| {
            let look = rustix::io::preadv2(
                &self.file,
                &mut [io::IoSliceMut::new(&mut byte)],
                offset + at as u64,
                rustix::io::ReadWriteFlags::NOWAIT,
            );
            !matches!(look, Err(rustix::io::Errno::AGAIN))
        })
    }

    #[cfg(not(target_os = "linux"))]
    #[allow(clippy::unused_self)]
    fn is_cached(&self, _offset: u64, _len: usize) -> bool {
        true
    }

    /// Looking into the cache makes the system read there, and who looks next would take what it finds for a file that is cached.
    #[cfg(target_os = "linux")]
    fn forget_looks(&self, offset: u64, len: usize) {
        if self.choice == DirectIo::Auto {
            // Advice: where it is not taken, a later read is slower and as right.
            let len = std::num::NonZeroU64::new(len as u64);
            let _ = rustix::fs::fadvise(&self.file, offset, len, rustix::fs::Advice::DontNeed);
        }
    }

    #[cfg(not(target_os = "linux"))]
    #[allow(clippy::unused_self)]
    fn forget_looks(&self, _offset: u64, _len: usize) {}

    fn read_direct(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        const BOUNCE: usize = BOUNCE_BYTES as usize;
        let Some(direct) = &self.direct else { return Err(ErrorKind::InvalidInput.into()) };
        make_room(&mut self.bounce, (BOUNCE + ALIGNMENT) as u64).map_err(io::Error::other)?;
        let skipped = self.bounce.as_ptr().align_offset(ALIGNMENT);
        let bounce = &mut self.bounce[skipped..skipped + BOUNCE];
        let mut done = 0;
        while done < into.len() {
            let place = offset + done as u64;
            let before = (place % ALIGNMENT as u64) as usize;
            let wanted = (before + into.len() - done).next_multiple_of(ALIGNMENT).min(BOUNCE);
            let got = match direct.read_at(&mut bounce[..wanted], place - before as u64) {
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            // The last block of a file may be shorter; a read that brings nothing new has passed its end.
            let useful = got.saturating_sub(before).min(into.len() - done);
            if useful == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if self.stop.as_ref().is_some_and(|stop| stop.check().is_err()) {
                // The ordinary way looks, too, and says so.
                return Err(ErrorKind::Interrupted.into());
            }
            into[done..done + useful].copy_from_slice(&bounce[before..before + useful]);
            done += useful;
        }
        Ok(())
    }
}

/// Makes memory at least so large, if there is as much.
pub(crate) fn make_room(bytes: &mut Vec<u8>, len: u64) -> Result<(), String> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if let Some(more) = len.checked_sub(bytes.len()) {
        let too_much = |_| format!("{len} bytes are more than this machine has memory for");
        bytes.try_reserve_exact(more).map_err(too_much)?;
        bytes.resize(len, 0);
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn open_direct(facts: &FileFacts) -> Option<File> {
    let file = open_at_once(&facts.path, libc::O_DIRECT).ok()?;
    // It is opened by its path, a second time.
    facts.is_same(&file).is_ok_and(|is_same| is_same).then_some(file)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_facts: &FileFacts) -> Option<File> {
    None
}

fn cannot(error: &io::Error, offset: u64, len: usize) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => {
            format!("{len} bytes at byte {offset} reach past the end of the file; it is cut short")
        }
        _ => format!("cannot read {len} bytes at byte {offset}: {error}"),
    }
}
