use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use shardfeed_plan::checkpoint::{Copying, Fix, Piece, Run, StoredChunk, StoredTensor, ZipItem, plan_runs};

use super::bytes::{BOUNCE_BYTES, FileBytes, make_room};
use super::checksums::{Checksum, Checksums};
use super::destination::Destinations;
use super::locate::{Headers, Located, locate, locate_in};
use super::opened::Checkpoint;
use super::options::{ReadOptions, Stop, Telling};
use super::read::{ReadStats, check_crc, decoded_bytes_max};
use super::undo::undo;
use super::wanted::{Wanted, bytes_wanted};
use super::workers::workers_for;
use crate::failures::ItemFailure;

/// Items up to this size are read as a whole, whatever is wanted of them: to look for it would take as long.
const WHOLE_BYTES: u64 = 16 << 10;

/// Items up to this size are, if half of them is wanted.
const WHOLE_BYTES_MOSTLY: u64 = 256 << 10;

/// What to look where the elements of an item lie costs, in bytes that could be read instead.
pub(crate) const LOOK_BYTES: u64 = 64 << 10;

/// Blocks that are noted at a time before they are read for checksums: metadata may speak of any number of them.
const BLOCKS: usize = 1 << 14;

/// Reads on several threads: first what says where things lie, then the things, in the order of their files' bytes.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    wanted: Vec<Wanted>,
    destinations: &Destinations<'_>,
    names: &[String],
    options: &ReadOptions,
    kept: &Kept,
) -> Result<ReadStats, Vec<ItemFailure>> {
    let left = bytes_wanted(checkpoint, &wanted, names.len());
    let job = Job::new(checkpoint, destinations, names, left, options, kept);
    // What may lie over each other is read in the order in which the stock reader takes it, one after another.
    let (apart, mut in_turn): (Vec<Wanted>, Vec<Wanted>) = wanted.into_iter().partition(|want| want.is_apart);
    in_turn.sort_by_key(|want| want.turn);
    job.read(apart, options.num_workers)?;
    for want in in_turn {
        job.read(vec![want], Some(1))?;
    }
    Ok(job.stats())
}

/// Reads what nobody wanted of items that were read in parts, for their checksums.
pub(crate) fn read_rest(
    checkpoint: &Checkpoint,
    checksums: &Checksums,
    options: &ReadOptions,
) -> Result<(), Vec<ItemFailure>> {
    let (nowhere, kept) = (Destinations::new(std::iter::empty()), Kept::default());
    let job = Job::new(checkpoint, &nowhere, &[], Vec::new(), options, &kept);
    let asked = if options.use_parallel { options.num_workers } else { Some(1) };
    let mut all = checksums.all();
    all.sort_by_key(|checksum| (checksum.file, checksum.start()));
    job.read_rest(&all, asked)
}

/// A read that is under way.
struct Job<'a> {
    checkpoint: &'a Checkpoint,
    destinations: &'a Destinations<'a>,
    names: &'a [String],
    options: &'a ReadOptions,
    kept: &'a Kept,
    checksums: Arc<Checksums>,
    /// Bytes that each destination still waits for.
    left: Vec<AtomicU64>,
    bytes: AtomicU64,
    telling: Telling<'a>,
    bytes_read: AtomicU64,
    bytes_direct: AtomicU64,
    reads: AtomicU64,
    workers: AtomicUsize,
}

/// What is kept from one read of a checkpoint for the next: what its own thread has, and headers that were read.
#[derive(Default)]
pub(crate) struct Kept {
    worker: Mutex<Worker>,
    headers: Headers,
    /// If somebody shares them, who reads on until they can be compared.
    checksums: Option<Arc<Checksums>>,
}

impl Kept {
    pub(crate) fn sharing(checksums: Arc<Checksums>) -> Self {
        Self { checksums: Some(checksums), ..Self::default() }
    }

    /// Lets go of memory that only an unusually large item needed.
    pub(crate) fn let_go_beyond(&mut self, bytes: u64) {
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner);
        if worker.staging.len() as u64 > bytes {
            worker.staging = Vec::new();
        }
    }
}

/// Everything that is wanted of an item.
struct Item<'a> {
    tensor: &'a StoredTensor,
    chunk: &'a StoredChunk,
    wanted: &'a [Wanted],
}

/// Something that one thread does.
enum Task {
    /// Items that are read as a whole, together.
    Block { file: u32, range: Range<u64>, items: Range<usize> },
    /// Ranges of items whose layout is known.
    Run(Run),
}

/// What has to be copied from where to where, and the checksum of each item, where one was recorded and is to be compared.
type Pieces = (Vec<Piece>, Vec<Option<Arc<Checksum>>>);

/// One thread's file and memory.
#[derive(Default)]
struct Worker {
    file: Option<(u32, FileBytes)>,
    bounce: Vec<u8>,
    staging: Vec<u8>,
    /// What was found to be wrong with what had been read: other checksums; files that were written to meanwhile, once they are closed.
    found: Vec<ItemFailure>,
}

impl<'a> Job<'a> {
    fn new(
        checkpoint: &'a Checkpoint,
        destinations: &'a Destinations<'a>,
        names: &'a [String],
        left: Vec<u64>,
        options: &'a ReadOptions,
        kept: &'a Kept,
    ) -> Self {
        // Chunks that overlap bring more than there is room for, and parts may leave room between them.
        let lens = left.iter().enumerate().map(|(index, left)| *left.min(&(destinations.len(index) as u64)));
        let bytes_total = lens.sum();
        let job = Self {
            checkpoint,
            destinations,
            names,
            options,
            kept,
            checksums: kept.checksums.clone().unwrap_or_default(),
            left: left.into_iter().map(AtomicU64::new).collect(),
            bytes: AtomicU64::new(0),
            telling: Telling::new(bytes_total, options.progress.as_ref()),
            bytes_read: AtomicU64::new(0),
            bytes_direct: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            workers: AtomicUsize::new(0),
        };
        // What is empty waits for nothing.
        (0..names.len())
            .filter(|&index| destinations.len(index) == 0)
            .for_each(|index| job.telling.came(0, Some(&names[index])));
        job
    }

    fn chunk(&self, want: &Wanted) -> &'a StoredChunk {
        &self.checkpoint.tensors()[want.tensor].chunks[want.chunk]
    }

    fn stats(&self) -> ReadStats {
        ReadStats {
            bytes: self.bytes.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_direct: self.bytes_direct.load(Relaxed),
            reads: self.reads.load(Relaxed),
            workers: self.workers.load(Relaxed),
        }
    }

    fn read(&self, mut wanted: Vec<Wanted>, num_workers: Option<usize>) -> Result<(), Vec<ItemFailure>> {
        wanted.sort_by_key(|want| {
            let item = &self.chunk(want).item;
            (item.file, item.offset, want.tensor, want.chunk)
        });
        let same = |one: &Wanted, other: &Wanted| (one.tensor, one.chunk) == (other.tensor, other.chunk);
        let items = wanted.chunk_by(same).map(|wanted| Item {
            tensor: &self.checkpoint.tensors()[wanted[0].tensor],
            chunk: self.chunk(&wanted[0]),
            wanted,
        });
        let (whole, parts): (Vec<Item>, Vec<Item>) = items.partition(|item| self.is_whole(item));
        let (pieces, checksums) = self.locate(&parts, num_workers)?;
        let (pieces, runs) = plan_runs(pieces, self.options.limits);
        let mut tasks = self.blocks(&whole);
        tasks.extend(runs.into_iter().map(Task::Run));
        tasks.sort_by_key(Task::place);
        let each = tasks.iter().map(|task| task.memory(&whole)).max().unwrap_or(0);
        let bytes = tasks.iter().map(Task::len).sum();
        let workers = workers_for(num_workers, tasks.len(), bytes, each, || self.options.memory_bytes());
        self.workers.fetch_max(workers, Relaxed);
        self.on_workers(&tasks, workers, |worker, task| match task {
            Task::Block { file, range, items } => {
                self.read_block(worker, *file, range, &whole[items.clone()])
            }
            Task::Run(run) => {
                let own = &pieces[run.pieces.clone()];
                let told = |piece: &Piece, reason| self.failure(&parts[piece.item as usize], reason);
                match self.read_run(worker, run, own, &checksums) {
                    Err(_) if own.len() > 1 && self.goes_on() => {
                        self.read_apart(worker, own, &checksums, told)
                    }
                    read => read.map_err(|reason| vec![told(&own[0], reason)]),
                }
            }
        })?;
        if self.kept.checksums.is_some() {
            return Ok(());
        }
        let checksums: Vec<Arc<Checksum>> = checksums.into_iter().flatten().collect();
        self.read_rest(&checksums, num_workers)
    }

    /// What of items was not wanted, for their checksums.
    fn read_rest(
        &self,
        checksums: &[Arc<Checksum>],
        num_workers: Option<usize>,
    ) -> Result<(), Vec<ItemFailure>> {
        let failure = |checksum: &Checksum, reason| self.checksum_failure(checksum, reason);
        let known = checksums.iter().filter_map(|one| Some(failure(one, one.verdict().err()?)));
        let known: Vec<ItemFailure> = known.collect();
        if !known.is_empty() {
            return Err(known);
        }
        let block = self.options.limits.block.max(1);
        let mut blocks = checksums.iter().flat_map(|checksum| {
            checksum.rest().into_iter().flat_map(move |range| {
                let starts = std::iter::successors(Some(range.start), move |start| start.checked_add(block));
                let starts = starts.take_while(move |&start| start < range.end);
                starts.map(move |start| (&**checksum, start..range.end.min(start.saturating_add(block))))
            })
        });
        loop {
            let blocks: Vec<(&Checksum, Range<u64>)> = blocks.by_ref().take(BLOCKS).collect();
            if blocks.is_empty() {
                return Ok(());
            }
            let bytes = blocks.iter().map(|(_, range)| range.end - range.start).sum();
            let each =
                blocks.iter().map(|(_, range)| range.end - range.start).max().unwrap_or(0) + BOUNCE_BYTES;
            let workers = workers_for(num_workers, blocks.len(), bytes, each, || self.options.memory_bytes());
            self.workers.fetch_max(workers, Relaxed);
            self.on_workers(&blocks, workers, |worker, (checksum, range)| {
                self.reads.fetch_add(1, Relaxed);
                let mut staging = std::mem::take(&mut worker.staging);
                let len = (range.end - range.start) as usize;
                let looked = make_room(&mut staging, len as u64)
                    .and_then(|()| worker.open(self, checksum.file)?.read(range.start, &mut staging[..len]))
                    .and_then(|()| checksum.look_at(range.start, &staging[..len]));
                worker.staging = staging;
                looked.map_err(|reason| vec![failure(checksum, reason)])
            })?;
        }
    }

    /// Whether nobody wishes that it end.
    fn goes_on(&self) -> bool {
        self.options.stop.as_ref().is_none_or(|stop| stop.check().is_ok())
    }

    fn is_whole(&self, item: &Item<'_>) -> bool {
        let len = item.chunk.item.length;
        let wanted: u64 =
            item.wanted.iter().map(|want| want.part.volume()).sum::<u64>() * item.tensor.dtype.bytes();
        !item.chunk.item.transforms.is_empty()
            || !self.checkpoint.found.is_raw
                && (len <= WHOLE_BYTES || len <= WHOLE_BYTES_MOSTLY && wanted.saturating_mul(2) >= len)
    }

    /// Where the elements lie of items that are read in parts.
    fn locate(&self, items: &[Item<'_>], num_workers: Option<usize>) -> Result<Pieces, Vec<ItemFailure>> {
        let found: Vec<OnceLock<Located>> = items.iter().map(|_| OnceLock::new()).collect();
        let numbers: Vec<usize> = (0..items.len()).collect();
        // One read each, or two: threads pay where there are many.
        let bytes = (items.len() as u64).saturating_mul(LOOK_BYTES);
        let workers =
            workers_for(num_workers, items.len(), bytes, LOOK_BYTES, || self.options.memory_bytes());
        self.workers.fetch_max(workers, Relaxed);
        self.on_workers(&numbers, workers, |worker, &number| {
            let item = &items[number];
            let located = self.locate_one(worker, item).map_err(|reason| vec![self.failure(item, reason)])?;
            found[number].get_or_init(|| located);
            Ok(())
        })?;
        let (mut pieces, mut checksums) = (Vec::new(), Vec::new());
        for (number, (item, located)) in items.iter().zip(&found).enumerate() {
            let located = located.get().expect("all were found, or it failed");
            let file = item.chunk.item.file;
            let place = (item.wanted[0].tensor, item.wanted[0].chunk);
            let is_compared = self.options.verify;
            checksums.push(is_compared.then(|| self.checksums.of(place, file, located)).flatten());
            for want in item.wanted {
                pieces.push(Piece {
                    file,
                    destination: want.destination,
                    item: number as u32,
                    copying: Copying::new(&located.view, &want.part, &want.placement),
                    fix: Fix::of(&located.view),
                });
            }
        }
        Ok((pieces, checksums))
    }

    fn locate_one(&self, worker: &mut Worker, item: &Item<'_>) -> Result<Located, String> {
        let facts = &self.checkpoint.files[item.chunk.item.file as usize];
        let file = worker.open(self, item.chunk.item.file)?;
        let is_raw = self.checkpoint.found.is_raw;
        locate(item.tensor, item.chunk, is_raw, file, facts.len, &self.kept.headers)
    }

    /// Items that are read as a whole, neighbours together.
    fn blocks(&self, items: &[Item<'_>]) -> Vec<Task> {
        let limits = self.options.limits;
        let mut blocks: Vec<Task> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let stored = &item.chunk.item;
            let own = stored.offset..stored.offset + stored.length;
            if let Some(Task::Block { file, range, items }) = blocks.last_mut()
                && *file == stored.file
                && own.start <= range.end.saturating_add(limits.gap)
                && own.end.max(range.end) - range.start <= limits.block
            {
                range.end = range.end.max(own.end);
                items.end = index + 1;
                continue;
            }
            blocks.push(Task::Block { file: stored.file, range: own, items: index..index + 1 });
        }
        blocks
    }

    fn read_block(
        &self,
        worker: &mut Worker,
        number: u32,
        range: &Range<u64>,
        items: &[Item<'_>],
    ) -> Result<(), Vec<ItemFailure>> {
        let mut staging = std::mem::take(&mut worker.staging);
        let len = (range.end - range.start) as usize;
        self.reads.fetch_add(1, Relaxed);
        let read = make_room(&mut staging, len as u64)
            .and_then(|()| worker.open(self, number)?.read(range.start, &mut staging[..len]));
        if let Err(reason) = read {
            worker.staging = staging;
            if items.len() == 1 || !self.goes_on() {
                return Err(vec![self.failure(&items[0], reason)]);
            }
            // Which of them it is about, or whether it is about what lies between them, is seen when each is read by itself.
            return each(items, |item| {
                let stored = &item.chunk.item;
                let own = stored.offset..stored.offset + stored.length;
                self.read_block(worker, number, &own, std::slice::from_ref(item))
            });
        }
        for item in items {
            let stored = &item.chunk.item;
            let start = (stored.offset - range.start) as usize;
            let bytes = &staging[start..start + stored.length as usize];
            self.copy_item(worker, item, bytes).map_err(|reason| vec![self.failure(item, reason)])?;
        }
        worker.staging = staging;
        Ok(())
    }

    /// Pieces that could not be read together, each by itself: those that fail are those that something is wrong with.
    fn read_apart(
        &self,
        worker: &mut Worker,
        pieces: &[Piece],
        checksums: &[Option<Arc<Checksum>>],
        told: impl Fn(&Piece, String) -> ItemFailure,
    ) -> Result<(), Vec<ItemFailure>> {
        each(pieces, |piece| {
            let (pieces, runs) = plan_runs(vec![piece.clone()], self.options.limits);
            runs.iter().try_for_each(|run| {
                let read = self.read_run(worker, run, &pieces[run.pieces.clone()], checksums);
                read.map_err(|reason| vec![told(piece, reason)])
            })
        })
    }

    fn copy_item(&self, worker: &mut Worker, item: &Item<'_>, stored: &[u8]) -> Result<(), String> {
        let transforms = &item.chunk.item.transforms;
        let decoded;
        let bytes = if transforms.is_empty() {
            stored
        } else {
            decoded = undo(transforms, stored, decoded_bytes_max(item.tensor, item.chunk))?;
            self.options.stop.as_ref().map_or(Ok(()), Stop::check)?;
            &decoded
        };
        if transforms.is_empty() && !ZipItem::begins(bytes) {
            return self.copy_safetensors(worker, item);
        }
        let located = locate_in(item.tensor, item.chunk, bytes)?;
        if self.options.verify {
            check_crc(&located, bytes)?;
        }
        for want in item.wanted {
            let copying = Copying::new(&located.view, &want.part, &want.placement);
            self.copy(bytes, 0, &copying, Fix::of(&located.view), want.destination);
        }
        Ok(())
    }

    /// A part of a file that holds all its tensors as safetensors: what is at the item's place says where they are.
    fn copy_safetensors(&self, worker: &mut Worker, item: &Item<'_>) -> Result<(), String> {
        let located = self.locate_one(worker, item)?;
        let data = located.view.data.clone();
        let bytes = worker.open(self, item.chunk.item.file)?.read_all(data.clone())?;
        for want in item.wanted {
            let copying = Copying::new(&located.view, &want.part, &want.placement);
            self.copy(&bytes, data.start, &copying, None, want.destination);
        }
        Ok(())
    }

    fn read_run(
        &self,
        worker: &mut Worker,
        run: &Run,
        pieces: &[Piece],
        checksums: &[Option<Arc<Checksum>>],
    ) -> Result<(), String> {
        self.reads.fetch_add(1, Relaxed);
        let len = (run.range.end - run.range.start) as usize;
        if let ([piece], true) = (pieces, run.is_direct) {
            let to = piece.copying.to;
            #[allow(unsafe_code)]
            // SAFETY: see `copy`.
            let window =
                unsafe { self.destinations.window(piece.destination as usize, to..to + piece.copying.unit) };
            worker.open(self, run.file)?.read(run.range.start, window)?;
            self.look_at(worker, pieces, checksums, run.range.start, window);
            self.came(piece.destination, piece.copying.unit);
            return Ok(());
        }
        let mut staging = std::mem::take(&mut worker.staging);
        let read = make_room(&mut staging, len as u64)
            .and_then(|()| worker.open(self, run.file)?.read(run.range.start, &mut staging[..len]));
        if read.is_ok() {
            self.look_at(worker, pieces, checksums, run.range.start, &staging[..len]);
            for piece in pieces {
                self.copy(&staging[..len], run.range.start, &piece.copying, piece.fix, piece.destination);
            }
        }
        worker.staging = staging;
        read
    }

    /// Sums bytes that were read, for the items that they are pieces of.
    fn look_at(
        &self,
        worker: &mut Worker,
        pieces: &[Piece],
        checksums: &[Option<Arc<Checksum>>],
        start: u64,
        bytes: &[u8],
    ) {
        for pieces in pieces.chunk_by(|one, other| one.item == other.item) {
            let Some(checksum) = &checksums[pieces[0].item as usize] else { continue };
            if let Err(reason) = checksum.look_at(start, bytes) {
                worker.found.push(self.checksum_failure(checksum, reason));
            }
        }
    }

    /// Copies from bytes that begin at `start` of what the source's places are counted in.
    fn copy(&self, bytes: &[u8], start: u64, copying: &Copying, fix: Option<Fix>, destination: u32) {
        let unit = copying.unit;
        copying.for_each(|from, to| {
            #[allow(unsafe_code)]
            // SAFETY: no two windows share a byte while both are there. Within a copying, each element of the destination is named once:
            // they lie row by row, or were seen not to share a byte (`resolve_parts`). Pieces of a copying divide it (`Copying::split`).
            // Different parts of one destination do not overlap: those of which that is not sure are read one after another (`read`, above).
            let window = unsafe { self.destinations.window(destination as usize, to..to + unit) };
            window.copy_from_slice(&bytes[(from - start) as usize..][..unit as usize]);
            if let Some(fix) = fix {
                fix.apply(window);
            }
        });
        self.came(destination, copying.bytes());
    }

    /// Notes that bytes are where they belong.
    fn came(&self, destination: u32, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        let left = &self.left[destination as usize];
        let is_last = left.fetch_sub(bytes, Relaxed) == bytes;
        self.telling.came(bytes, is_last.then(|| self.names[destination as usize].as_str()));
    }

    fn failure(&self, item: &Item<'_>, reason: String) -> ItemFailure {
        self.checkpoint.item_failure(&item.chunk.item, &item.tensor.name, reason)
    }

    fn checksum_failure(&self, checksum: &Checksum, reason: String) -> ItemFailure {
        let (tensor, chunk) = checksum.chunk;
        let tensor = &self.checkpoint.tensors()[tensor];
        self.checkpoint.item_failure(&tensor.chunks[chunk].item, &tensor.name, reason)
    }

    /// Does all tasks, in their order, on so many threads. After a failure nobody begins another; all failures are returned.
    fn on_workers<T: Sync>(
        &self,
        tasks: &[T],
        workers: usize,
        work: impl Fn(&mut Worker, &T) -> Result<(), Vec<ItemFailure>> + Sync,
    ) -> Result<(), Vec<ItemFailure>> {
        let next = AtomicUsize::new(0);
        let is_failed = AtomicBool::new(false);
        let failures = Mutex::new(Vec::new());
        let run = |worker: &mut Worker| {
            while !is_failed.load(Relaxed) {
                let Some(task) = tasks.get(next.fetch_add(1, Relaxed)) else { break };
                let done = work(worker, task);
                for failure in worker.found.drain(..).chain(done.err().into_iter().flatten()) {
                    is_failed.store(true, Relaxed);
                    failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                }
            }
            worker.settle(self);
            failures.lock().unwrap_or_else(PoisonError::into_inner).append(&mut worker.found);
        };
        if workers <= 1 {
            run(&mut self.kept.worker.lock().unwrap_or_else(PoisonError::into_inner));
        } else {
            std::thread::scope(|scope| {
                for _ in 0..workers {
                    scope.spawn(|| run(&mut Worker::default()));
                }
            });
        }
        let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        if failures.is_empty() {
            return Ok(());
        }
        failures.sort_by(|one, other| order(one).cmp(&order(other)));
        // What is wrong with an item is met by all who read a part of it.
        failures.dedup();
        Err(failures)
    }
}

/// In which order failures are told.
fn order(failure: &ItemFailure) -> impl Ord + '_ {
    (&failure.path, failure.offset, &failure.item, &failure.reason)
}

/// Does it for each, whatever becomes of the others, and gathers what fails. Where one after another does, nothing works any more, and each
/// may take a disk's patience: it ends.
fn each<T>(
    things: &[T],
    mut work: impl FnMut(&T) -> Result<(), Vec<ItemFailure>>,
) -> Result<(), Vec<ItemFailure>> {
    const IN_A_ROW_MAX: u32 = 8;
    let (mut failures, mut in_a_row) = (Vec::new(), 0);
    for thing in things {
        match work(thing) {
            Ok(()) => in_a_row = 0,
            Err(failed) => {
                failures.extend(failed);
                in_a_row += 1;
            }
        }
        if in_a_row == IN_A_ROW_MAX {
            break;
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

impl Task {
    fn place(&self) -> (u32, u64) {
        match self {
            Self::Block { file, range, .. } => (*file, range.start),
            Self::Run(run) => (run.file, run.range.start),
        }
    }

    /// Bytes that a thread holds while it does it.
    fn memory(&self, items: &[Item<'_>]) -> u64 {
        match self {
            Self::Run(run) if run.is_direct => BOUNCE_BYTES,
            Self::Run(run) => (run.range.end - run.range.start) + BOUNCE_BYTES,
            Self::Block { range, items: numbers, .. } => {
                let packed =
                    items[numbers.clone()].iter().filter(|item| !item.chunk.item.transforms.is_empty());
                let decoded = packed.map(|item| decoded_bytes_max(item.tensor, item.chunk)).max();
                2 * (range.end - range.start) + decoded.unwrap_or(0)
            }
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Block { range, .. } => range.end - range.start,
            Self::Run(run) => run.range.end - run.range.start,
        }
    }
}

impl Worker {
    /// The file of this number; the one before is closed.
    fn open(&mut self, job: &Job<'_>, number: u32) -> Result<&mut FileBytes, String> {
        if self.file.as_ref().is_none_or(|(open, _)| *open != number) {
            self.settle(job);
            if let Some((_, file)) = self.file.take() {
                self.bounce = file.into_bounce();
            }
            let facts = &job.checkpoint.files[number as usize];
            let file = FileBytes::open(facts, job.options.direct_io, std::mem::take(&mut self.bounce))?;
            let file = file.stopped_by(job.options.stop.clone());
            self.file = Some((number, file));
        }
        Ok(&mut self.file.as_mut().expect("it was just opened").1)
    }

    /// A file that was written to while it was read has given a mixture. That is its own failure, not that of what is read next.
    fn settle(&mut self, job: &Job<'_>) {
        let Some((number, file)) = &mut self.file else { return };
        let bytes_read = std::mem::take(&mut file.bytes_read);
        job.bytes_read.fetch_add(bytes_read, Relaxed);
        job.bytes_direct.fetch_add(std::mem::take(&mut file.bytes_direct), Relaxed);
        let facts = &job.checkpoint.files[*number as usize];
        if let Err(reason) = file.check(facts) {
            // What was read before was looked at then, and came with another read.
            if bytes_read > 0 {
                let path = facts.path.clone();
                self.found.push(ItemFailure { path, item: String::new(), offset: 0, reason });
            }
            self.file = None;
        }
    }
}
