use std::ops::Range;

use shardfeed_plan::checkpoint::{Dtype, StoredChunk, StoredTensor};

use super::bytes::{FileBytes, make_room};
use super::destination::Destinations;
use super::locate::{Headers, Located, locate};
use super::opened::{Checkpoint, implausible};
use super::options::{DirectIo, ReadOptions};
use super::parallel::{self, Kept};
use super::raw::RawItem;
use super::sequential;
use super::wanted::{Asked, ReadPlan};
use crate::error::{Error, Result};
use crate::failures::{Failures, ItemFailure};

/// Bytes that an object of so many stored ones, which is no tensor and may be anything, may decompress to: as many as it takes, and of much
/// no more than what pickles of anything become.
pub fn object_bytes_max(stored: u64) -> u64 {
    /// Any object may have as many.
    const BYTES: u64 = 1 << 30;
    /// Bytes for each stored one.
    const GROWTH: u64 = 64;
    BYTES.max(stored.saturating_mul(GROWTH))
}

/// A tensor in memory: its elements row by row, numbers with their small end first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorData {
    /// What it is made of.
    pub dtype: Dtype,
    /// How large it is.
    pub shape: Vec<u64>,
    /// Its elements.
    pub bytes: Vec<u8>,
}

/// What a read did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Bytes that were wanted.
    pub bytes: u64,
    /// Bytes that were read for them.
    pub bytes_read: u64,
    /// Of those, past the system's cache.
    pub bytes_direct: u64,
    /// How many reads it took, where several threads read.
    pub reads: u64,
    /// How many threads read.
    pub workers: usize,
}

impl ReadStats {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.bytes_read += other.bytes_read;
        self.bytes_direct += other.bytes_direct;
        self.reads += other.reads;
        self.workers = self.workers.max(other.workers);
    }
}

impl Checkpoint {
    /// A whole tensor.
    pub fn read(&self, name: &str) -> Result<TensorData> {
        self.read_with(name, Asked::Whole, &self.options, &Kept::default())
    }

    /// A part of a tensor: one range for each of its dimensions. Only what it needs is read.
    pub fn read_slice(&self, name: &str, ranges: &[Range<u64>]) -> Result<TensorData> {
        self.read_with(name, Asked::Slice(ranges.to_vec()), &self.options, &Kept::default())
    }

    pub(crate) fn read_with(
        &self,
        name: &str,
        asked: Asked,
        options: &ReadOptions,
        kept: &Kept,
    ) -> Result<TensorData> {
        let tensor = &self.tensors()[self.tensor_index(name)?];
        let len = self.resolve(name, asked.ranges(), 0, &mut Vec::new())?;
        self.check_plausible(tensor)?;
        let sizes = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).collect();
        let shape = asked.ranges().map_or_else(|| tensor.shape.clone(), sizes);
        let mut bytes = Vec::new();
        let too_much =
            |_| Error::Invalid(format!("{name}: {len} bytes are more than this machine has memory for"));
        bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX)).map_err(too_much)?;
        bytes.resize(len as usize, 0);
        let mut plan = ReadPlan::new();
        plan.ask(name, asked, &mut bytes);
        self.read_into_keeping(plan, options, kept)?;
        Ok(TensorData { dtype: tensor.dtype, shape, bytes })
    }

    /// Tensors one after another, as they are complete, in memory of their own: some hundred megabytes are read at a time, and each is let go
    /// of when `each` is done with it.
    pub fn read_each<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
        mut each: impl FnMut(&str, TensorData) -> Result<()>,
    ) -> Result<ReadStats> {
        /// Bytes that are read together, unless one tensor has more.
        const TOGETHER: u64 = 256 << 20;
        let mut names = names.into_iter().peekable();
        let mut stats = ReadStats::default();
        while names.peek().is_some() {
            let (mut group, mut bytes) = (Vec::new(), 0);
            while let Some(name) = names.peek() {
                let tensor = &self.tensors()[self.tensor_index(name)?];
                if !group.is_empty() && bytes + tensor.bytes() > TOGETHER {
                    break;
                }
                bytes += tensor.bytes();
                self.check_plausible(tensor)?;
                let mut memory = Vec::new();
                make_room(&mut memory, tensor.bytes())
                    .map_err(|reason| Error::Invalid(format!("{name}: {reason}")))?;
                group.push((
                    *name,
                    TensorData { dtype: tensor.dtype, shape: tensor.shape.clone(), bytes: memory },
                ));
                names.next();
            }
            let mut plan = ReadPlan::new();
            for (name, tensor) in &mut group {
                plan.read(name, &mut tensor.bytes);
            }
            stats.add(self.read_into(plan)?);
            group.into_iter().try_for_each(|(name, tensor)| each(name, tensor))?;
        }
        Ok(stats)
    }

    /// Before memory is made for a tensor: metadata that somebody else gave may claim what nobody has room for.
    fn check_plausible(&self, tensor: &StoredTensor) -> Result<()> {
        let flaw = |chunk| {
            implausible(tensor, chunk).map(|reason| self.item_failure(&chunk.item, &tensor.name, reason))
        };
        match tensor.chunks.iter().find_map(flaw) {
            Some(failure) => Err(Error::CheckpointDamaged(Failures(vec![failure]))),
            None => Ok(()),
        }
    }

    /// Everything that a plan asks for, into its memory. If anything fails, all failures that were met are in the error, and what is
    /// in the memory is worth nothing.
    pub fn read_into(&self, plan: ReadPlan<'_>) -> Result<ReadStats> {
        self.read_into_keeping(plan, &self.options, &Kept::default())
    }

    pub(crate) fn read_into_keeping(
        &self,
        mut plan: ReadPlan<'_>,
        options: &ReadOptions,
        kept: &Kept,
    ) -> Result<ReadStats> {
        let wanted = self.resolve_all(&plan)?;
        let damaged = |failures| Error::CheckpointDamaged(Failures(failures));
        if !options.use_parallel {
            return sequential::read(self, plan, &wanted, options).map_err(|failure| damaged(vec![failure]));
        }
        let names: Vec<String> = plan.wishes.iter().map(|wish| wish.name.clone()).collect();
        let destinations = Destinations::new(plan.wishes.iter_mut().map(|wish| &mut *wish.memory));
        parallel::read(self, wanted, &destinations, &names, options, kept).map_err(damaged)
    }

    /// Looks at what nobody reads: chunks without elements, that are described and may have checksums all the same.
    pub(crate) fn check_empty_chunks(&self, tensor: &StoredTensor, options: &ReadOptions) -> Result<()> {
        let headers = Headers::default();
        let check = |chunk: &StoredChunk| -> Result<(), String> {
            let facts = &self.files[chunk.item.file as usize];
            let file = FileBytes::open(facts, DirectIo::Never, Vec::new())?;
            let mut file = file.stopped_by(options.stop.clone());
            let located = locate(tensor, chunk, self.found.is_raw, &mut file, facts.len, &headers)?;
            if located.crc.is_some() {
                compare_crc(located.crc, file.checksum(located.view.data)?)?;
            }
            file.check(facts)
        };
        let empty = |chunk: &&StoredChunk| chunk.part.volume() == 0 && chunk.item.transforms.is_empty();
        let failure =
            |chunk: &StoredChunk| Some(self.item_failure(&chunk.item, &tensor.name, check(chunk).err()?));
        let failures: Vec<ItemFailure> = tensor.chunks.iter().filter(empty).filter_map(failure).collect();
        if failures.is_empty() { Ok(()) } else { Err(Error::CheckpointDamaged(Failures(failures))) }
    }

    /// What is stored under a name that is no tensor's: the bytes that were saved, as torch would unpickle them. Nothing does that here.
    pub fn read_object(&self, name: &str) -> Result<Vec<u8>> {
        let object = self.objects().iter().find(|object| object.name == name);
        let object = object.ok_or_else(|| {
            Error::Invalid(format!("{}: no object is called {name}", self.path().display()))
        })?;
        let bytes_max = object_bytes_max(object.item.length);
        let wish = RawItem { name: name.to_owned(), item: object.item.clone(), bytes_max };
        Ok(self.read_items(&[wish])?.pop().expect("one was asked for"))
    }
}

/// Bytes that an item can have whose chunk is so large: what torch adds to it is some kilobytes, or as much again for tiny ones.
pub(crate) fn decoded_bytes_max(tensor: &StoredTensor, chunk: &StoredChunk) -> u64 {
    (chunk.part.volume() * tensor.dtype.bytes()).saturating_add(4 << 20)
}

/// Compares the checksum of an item's elements, where one was recorded. `item` is what the view's places are counted in.
pub(crate) fn check_crc(located: &Located, item: &[u8]) -> Result<(), String> {
    let data = &item[located.view.data.start as usize..located.view.data.end as usize];
    compare_crc(located.crc, crc32fast::hash(data))
}

pub(crate) fn compare_crc(recorded: Option<u32>, found: u32) -> Result<(), String> {
    match recorded {
        Some(recorded) if recorded != found => Err(format!(
            "its bytes have the checksum {found:08x}, and {recorded:08x} was recorded when they were saved: they are damaged; copy the file again"
        )),
        _ => Ok(()),
    }
}
