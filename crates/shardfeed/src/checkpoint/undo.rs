use std::io::{self, Read};
use std::ops::Range;

use super::bytes::FileBytes;
use super::directory::CHANGED;

/// Bytes at both ends of what a compressed item holds that are kept: everything about it lies there, nearly always.
const WINDOW: usize = 64 << 10;

/// Bytes that are decompressed at a time.
const PORTION: usize = 256 << 10;

/// Times that an item is decompressed to find what lies in its middle. Torch writes none for which it takes more than a few.
const PASSES_MAX: u32 = 16;

/// Transforms of an item. Torch's own tests stack two; each takes a stream in a stream, with its stack and its memory.
const TRANSFORMS_MAX: usize = 8;

/// Undoes what a writer did to an item, in this order. What comes out may have `bytes_max` bytes at most, so that a small item
/// cannot become much memory.
pub(crate) fn undo(transforms: &[String], stored: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    undone(transforms, stored, bytes_max)?.read_to_end(&mut bytes).map_err(|error| said(&error))?;
    Ok(bytes)
}

/// The same as a stream. No layer gives more than `bytes_max` bytes.
fn undone<'a>(
    transforms: &[String],
    stored: impl Read + 'a,
    bytes_max: u64,
) -> Result<Box<dyn Read + 'a>, String> {
    if transforms.len() > TRANSFORMS_MAX {
        return Err(format!(
            "it was changed by {} transforms, one over another, and {TRANSFORMS_MAX} are the most that are undone; the metadata are damaged, or mean harm",
            transforms.len()
        ));
    }
    let mut bytes: Box<dyn Read + 'a> = Box::new(stored);
    for transform in transforms {
        bytes = match transform.as_str() {
            "stream.zstd/1" => {
                let bytes = zstd::stream::read::Decoder::new(bytes).map_err(|error| said(&error))?;
                Box::new(Limited { bytes, left: bytes_max, bytes_max })
            }
            other => {
                return Err(format!(
                    "it was changed by the transform {other:?}, which is not known here (zstd is: \"stream.zstd/1\")"
                ));
            }
        };
    }
    Ok(bytes)
}

/// Why a stream failed. What our own streams say is for people already.
fn said(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Said>()) {
        Some(Said(reason)) => reason.clone(),
        None => format!("cannot decompress it (zstd): {error}; it is damaged"),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(String);

/// A stream that is refused when it gives more than it may.
struct Limited<R> {
    bytes: R,
    left: u64,
    bytes_max: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(into)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            let max = self.bytes_max;
            io::Error::other(Said(format!(
                "it decompresses to more than the {max} bytes that it can hold; it is damaged, or means harm"
            )))
        })?;
        Ok(count)
    }
}

/// The bytes of an item, one after another.
struct Stored<'f> {
    file: &'f mut FileBytes,
    left: Range<u64>,
}

impl Read for Stored<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = (self.left.end - self.left.start).min(into.len() as u64);
        let into = &mut into[..count as usize];
        self.file.read(self.left.start, into).map_err(|reason| io::Error::other(Said(reason)))?;
        self.left.start += count;
        Ok(count as usize)
    }
}

/// What a compressed item holds, of which little is in memory at a time.
pub(crate) struct Unpacked<'f> {
    file: &'f mut FileBytes,
    item: Range<u64>,
    transforms: &'f [String],
    bytes_max: u64,
    pub(crate) len: u64,
    pub(crate) head: Vec<u8>,
    tail: Vec<u8>,
    passes_left: u32,
}

impl<'f> Unpacked<'f> {
    pub(crate) fn new(
        file: &'f mut FileBytes,
        item: Range<u64>,
        transforms: &'f [String],
        bytes_max: u64,
    ) -> Result<Self, String> {
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        let mut unpacked = Self {
            file,
            item,
            transforms,
            bytes_max,
            len: 0,
            head: Vec::new(),
            tail: Vec::new(),
            passes_left: PASSES_MAX,
        };
        unpacked.len = unpacked.pass(|_, bytes| {
            head.extend_from_slice(&bytes[..bytes.len().min(WINDOW - head.len())]);
            tail.extend_from_slice(bytes);
            tail.drain(..tail.len().saturating_sub(WINDOW));
        })?;
        (unpacked.head, unpacked.tail) = (head, tail);
        Ok(unpacked)
    }

    /// Goes through all of it, and says how long it is.
    fn pass(&mut self, mut each: impl FnMut(u64, &[u8])) -> Result<u64, String> {
        let stored = Stored { file: &mut *self.file, left: self.item.clone() };
        let mut bytes = undone(self.transforms, stored, self.bytes_max)?;
        let mut portion = vec![0; PORTION];
        let mut at = 0;
        loop {
            let count = bytes.read(&mut portion).map_err(|error| said(&error))?;
            if count == 0 {
                return Ok(at);
            }
            each(at, &portion[..count]);
            at += count as u64;
        }
    }

    /// A range of it.
    pub(crate) fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>, String> {
        Ok(self.read_each(&[range])?.pop().expect("one was asked for"))
    }

    /// Ranges of it, in any order: those that are not at its ends are gathered while it is gone through once.
    pub(crate) fn read_each(&mut self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, String> {
        let mut found: Vec<Vec<u8>> = ranges.iter().map(|range| self.at_an_end(range).to_vec()).collect();
        let mut missing: Vec<usize> = (0..ranges.len())
            .filter(|&number| found[number].is_empty() && !ranges[number].is_empty())
            .collect();
        if missing.is_empty() {
            return Ok(found);
        }
        let passes_left = self.passes_left.checked_sub(1);
        self.passes_left =
            passes_left.ok_or("what describes it is spread all over it, as torch never writes it")?;
        missing.sort_by_key(|&number| ranges[number].start);
        let mut first = 0;
        self.pass(|at, bytes| {
            while missing.get(first).is_some_and(|&number| ranges[number].end <= at) {
                first += 1;
            }
            let end = at + bytes.len() as u64;
            for &number in missing[first..].iter().take_while(|&&number| ranges[number].start < end) {
                found[number].extend_from_slice(&bytes[overlap(&ranges[number], at, bytes.len())]);
            }
        })?;
        // Whoever asked counts on as many bytes as there were before.
        if found.iter().zip(ranges).any(|(bytes, range)| bytes.len() as u64 != range.end - range.start) {
            return Err(CHANGED.to_owned());
        }
        Ok(found)
    }

    /// A range, if it lies within what is kept of both ends.
    fn at_an_end(&self, range: &Range<u64>) -> &[u8] {
        let tail_start = self.len - self.tail.len() as u64;
        let (kept, start) = match range {
            range if range.end <= self.head.len() as u64 => (&self.head, range.start),
            range if range.start >= tail_start => (&self.tail, range.start - tail_start),
            _ => return &[],
        };
        &kept[start as usize..(start + range.end - range.start) as usize]
    }

    /// The checksums of ranges that lie one after another.
    pub(crate) fn checksums(&mut self, ranges: &[Range<u64>]) -> Result<Vec<u32>, String> {
        let mut hashers = vec![crc32fast::Hasher::new(); ranges.len()];
        let mut first = 0;
        self.pass(|at, bytes| {
            while ranges.get(first).is_some_and(|range| range.end <= at) {
                first += 1;
            }
            let end = at + bytes.len() as u64;
            let touched = ranges[first..].iter().zip(&mut hashers[first..]);
            for (range, hasher) in touched.take_while(|(range, _)| range.start < end) {
                hasher.update(&bytes[overlap(range, at, bytes.len())]);
            }
        })?;
        Ok(hashers.into_iter().map(crc32fast::Hasher::finalize).collect())
    }
}

/// Which of `len` bytes that begin at `at` are in a range.
fn overlap(range: &Range<u64>, at: u64, len: usize) -> Range<usize> {
    let within = |place: u64| place.saturating_sub(at).min(len as u64) as usize;
    within(range.start)..within(range.end)
}

#[cfg(test)]
mod tests {
    use super::super::directory::Directory;
    use super::super::options::DirectIo;
    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 3).unwrap()
    }

    #[test]
    fn several_frames_and_several_layers() {
        let zstd = "stream.zstd/1".to_owned();
        let frames = [packed(b"one "), packed(b""), packed(b"two")].concat();
        assert_eq!(undo(std::slice::from_ref(&zstd), &frames, 100).unwrap(), b"one two");
        assert_eq!(undo(&[zstd.clone(), zstd.clone()], &packed(&frames), 100).unwrap(), b"one two");
        assert_eq!(undo(&[], b"as it is", 0).unwrap(), b"as it is");
    }

    #[test]
    fn bombs_damage_and_unknown_ones_are_refused() {
        let zstd = ["stream.zstd/1".to_owned()];
        let bomb = packed(&vec![0; 10 << 20]);
        assert!(bomb.len() < 10_000);
        assert!(undo(&zstd, &bomb, 1 << 20).unwrap_err().contains("more than the 1048576 bytes"));
        assert!(undo(&zstd, &bomb[..100], 1 << 30).unwrap_err().contains("cannot decompress"));
        let stacked = vec![zstd[0].clone(); TRANSFORMS_MAX + 1];
        assert!(undo(&stacked, &[], 9).unwrap_err().contains("9 transforms"));
        assert!(undo(&["stream.lz4/1".to_owned()], &[], 9).unwrap_err().contains("\"stream.lz4/1\""));
    }

    #[test]
    fn what_was_written_shorter_meanwhile_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("item");
        let long: Vec<u8> =
            (0..1_u32 << 20).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let stored = packed(&long);
        std::fs::write(&path, &stored).unwrap();
        let facts = Directory::open(directory.path(), false).unwrap().look_at("item").unwrap();
        let mut file = FileBytes::open(&facts, DirectIo::Never, Vec::new()).unwrap();
        let (zstd, middle) = (["stream.zstd/1".to_owned()], 1 << 20..(1 << 20) + 30);
        let mut unpacked = Unpacked::new(&mut file, 0..stored.len() as u64, &zstd, 1 << 30).unwrap();
        assert_eq!(unpacked.read(middle.clone()).unwrap(), long[1 << 20..][..30]);
        // As long as before, but most of it is passed over when it is decompressed.
        let mut short = packed(b"short");
        let rest = stored.len() - short.len() - 8;
        short.extend(
            [&0x184d_2a50_u32.to_le_bytes()[..], &(rest as u32).to_le_bytes(), &vec![0; rest]].concat(),
        );
        std::fs::write(&path, &short).unwrap();
        assert_eq!(unpacked.read(middle).unwrap_err(), CHANGED);
    }

    #[test]
    fn ranges_of_portions_are_found() {
        assert_eq!(overlap(&(10..20), 0, 15), 10..15);
        assert_eq!(overlap(&(10..20), 15, 15), 0..5);
        assert_eq!(overlap(&(10..20), 12, 4), 0..4);
        assert_eq!(overlap(&(10..20), 20, 4), 0..0);
        assert_eq!(overlap(&(10..20), 0, 5), 5..5);
    }
}
