use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use shardfeed_plan::{FileOrder, Rank, RankError};

use crate::decode::RowGroupCursor;
use crate::page_memory::{PageMemory, WORK_BYTES_USUAL};
use crate::scan::scan_file;
use crate::{DataSet, Error, LMBatch, Result, Source};

/// Bytes that [`StreamingParquetLoader::batches`] stays within unless told otherwise.
pub const MEMORY_BUDGET_DEFAULT: u64 = 256 << 20;

/// Which worker of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// This worker, from 0.
    pub rank: usize,
    /// How many workers there are.
    pub world_size: usize,
    /// Another seed, another order of files.
    pub seed: u64,
}

impl ShardConfig {
    /// Rank 0 of 1, seed 42.
    pub fn single() -> Self {
        Self { rank: 0, world_size: 1, seed: 42 }
    }
}

/// Streams a directory of Parquet files, file by file: worker `rank` owns the files with
/// `index % world_size == rank`.
///
/// Resuming is by file: [`resume_from`](Self::resume_from) the [`current_file_idx`](Self::current_file_idx) that
/// was saved. A stream that does not depend on the number of workers is [`TokenLoader`](crate::TokenLoader).
///
/// ```
/// # use shardfeed::sample::{SampleData, write_sample};
/// # let dir = tempfile::tempdir()?;
/// # write_sample(dir.path(), &SampleData::default())?;
/// # let data_dir = dir.path().to_path_buf();
/// use shardfeed::{ShardConfig, StreamingParquetLoader};
///
/// let config = ShardConfig { rank: 0, world_size: 2, seed: 42 };
/// let mut loader = StreamingParquetLoader::new(&data_dir, config, 8, 512)?;
/// while let Some(batches) = loader.next_batches()? {
///     for batch in &batches {
///         assert!(batch.batch_size <= 8 && batch.seq_len <= 512);
///     }
/// }
/// assert!(loader.is_epoch_exhausted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamingParquetLoader {
    files: Vec<PathBuf>,
    order: FileOrder,
    /// The worker's files, in this epoch's order.
    my_files: Vec<PathBuf>,
    epoch: u64,
    file_idx: usize,
    /// Batches of the current file that were handed out by an iterator that was dropped within it.
    batches_taken: usize,
    rows_skipped: u64,
    cut: Cut,
    memory_budget: u64,
}

/// How rows become batches.
#[derive(Clone, Copy, Debug)]
struct Cut {
    batch_size: usize,
    seq_len: usize,
    pad_id: u32,
    eos_id: u32,
}

impl StreamingParquetLoader {
    /// Lists the directory; no file is opened before it is needed. Stands at epoch 0, at its first file.
    pub fn new(
        data_dir: impl AsRef<Path>,
        config: ShardConfig,
        batch_size: usize,
        seq_len: usize,
    ) -> Result<Self> {
        let data_dir = data_dir.as_ref();
        let rank = rank_of(config)?;
        if batch_size == 0 || seq_len == 0 {
            return Err(Error::Invalid(format!(
                "batch_size is {batch_size} and seq_len {seq_len}; both are at least 1"
            )));
        }
        let listing = Source::Directory(data_dir.to_owned()).list()?;
        let files: Vec<PathBuf> = listing.files.into_iter().map(|file| file.path).collect();
        let order = FileOrder::new(files.len() as u32, rank, config.seed)
            .map_err(|source| Error::FileShard { path: data_dir.to_owned(), source })?;
        let mut loader = Self {
            files,
            order,
            my_files: Vec::new(),
            epoch: 0,
            file_idx: 0,
            batches_taken: 0,
            rows_skipped: 0,
            cut: Cut { batch_size, seq_len, pad_id: 0, eos_id: 2 },
            memory_budget: MEMORY_BUDGET_DEFAULT,
        };
        loader.reset_epoch(0);
        Ok(loader)
    }

    /// Pads with `pad_id`, and predicts `eos_id` after a sequence's last token; 0 and 2 by default.
    pub fn with_special_tokens(mut self, pad_id: u32, eos_id: u32) -> Self {
        (self.cut.pad_id, self.cut.eos_id) = (pad_id, eos_id);
        self
    }

    /// Bytes that [`batches`](Self::batches) stays within.
    pub fn with_memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = bytes;
        self
    }

    /// The batches of the next file, or `None` when the epoch is over. Holds that file's tokens, all of them:
    /// for files larger than memory there is [`batches`](Self::batches).
    pub fn next_batches(&mut self) -> Result<Option<Vec<LMBatch>>> {
        let Some(path) = self.my_files.get(self.file_idx) else { return Ok(None) };
        let mut file = FileBatches::open(path, self.cut, self.batches_taken, &Arc::default())?;
        let batches = file.by_ref().collect::<Result<_>>()?;
        self.rows_skipped += file.sequences.rows_skipped;
        self.file_idx += 1;
        self.batches_taken = 0;
        Ok(Some(batches))
    }

    /// The batches of the rest of the epoch, one at a time, read ahead on a thread within the memory budget.
    ///
    /// Dropped in the middle of a file, the next call goes on with the next batch.
    pub fn batches(&mut self) -> LMBatches<'_> {
        LMBatches::start(self)
    }

    /// Goes to the beginning of epoch `epoch`, with the worker's files in that epoch's order.
    pub fn reset_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.my_files =
            self.order.epoch(epoch).into_iter().map(|file| self.files[file as usize].clone()).collect();
        self.resume_from(0);
    }

    /// Continues with the worker's file number `file_idx` of this epoch; past the last one means exhausted.
    pub fn resume_from(&mut self, file_idx: usize) {
        self.file_idx = file_idx.min(self.my_files.len());
        self.batches_taken = 0;
    }

    /// Files of this worker.
    pub fn num_files(&self) -> usize {
        self.my_files.len()
    }

    /// Files of all workers.
    pub fn total_files(&self) -> usize {
        self.files.len()
    }

    /// This worker's files, in this epoch's order.
    pub fn my_files(&self) -> &[PathBuf] {
        &self.my_files
    }

    /// Files of this epoch whose batches were all handed out; to be saved, and given to
    /// [`resume_from`](Self::resume_from).
    pub fn current_file_idx(&self) -> usize {
        self.file_idx
    }

    /// Null and empty rows passed over so far, in files whose batches were all handed out.
    pub fn rows_skipped(&self) -> u64 {
        self.rows_skipped
    }

    /// The epoch.
    pub fn current_epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether every file of this epoch was handed out.
    pub fn is_epoch_exhausted(&self) -> bool {
        self.file_idx >= self.my_files.len()
    }

    /// Sequences of a batch; the last of a file may have fewer.
    pub fn batch_size(&self) -> usize {
        self.cut.batch_size
    }

    /// Tokens of a sequence at most.
    pub fn seq_len(&self) -> usize {
        self.cut.seq_len
    }
}

fn rank_of(config: ShardConfig) -> Result<Rank, RankError> {
    let ShardConfig { rank: index, world_size, .. } = config;
    match (u32::try_from(index), u32::try_from(world_size)) {
        (Ok(index), Ok(world_size)) => Rank::new(index, world_size),
        _ if world_size == 0 => Err(RankError::NoRanks),
        _ if index >= world_size => Err(RankError::OutOfRange { index, world_size }),
        _ => Err(RankError::TooManyRanks { world_size }),
    }
}

/// Iterator of [`StreamingParquetLoader::batches`].
pub struct LMBatches<'a> {
    loader: &'a mut StreamingParquetLoader,
    /// What was noticed before the thread was started.
    error: Option<Error>,
    incoming: Option<Receiver<Message>>,
    thread: Option<JoinHandle<()>>,
}

enum Message {
    Batch(LMBatch),
    /// The last batch of a file, if it has any, and the rows that had no tokens.
    FileEnd {
        batch: Option<LMBatch>,
        rows_skipped: u64,
    },
    Failed(Error),
}

/// Batches that exist besides those in the queue: one gathered, one made, one held back, one in the caller's hands.
const BATCHES_OUTSIDE_QUEUE: u64 = 4;
/// More would not help: one thread reads, one takes.
const QUEUE_MAX: u64 = 8;

impl<'a> LMBatches<'a> {
    fn start(loader: &'a mut StreamingParquetLoader) -> Self {
        let mut batches = Self { loader, error: None, incoming: None, thread: None };
        match batches.plan_memory() {
            Ok((queue_len, memory)) => {
                let (outgoing, incoming) = sync_channel(queue_len);
                let files = batches.loader.my_files[batches.loader.file_idx..].to_vec();
                let (cut, taken) = (batches.loader.cut, batches.loader.batches_taken);
                let thread = std::thread::Builder::new()
                    .name("shardfeed-files".to_owned())
                    .spawn(move || send_files(&files, cut, taken, &memory, &outgoing));
                match thread {
                    Ok(thread) => (batches.thread, batches.incoming) = (Some(thread), Some(incoming)),
                    Err(error) => {
                        batches.error =
                            Some(Error::Invalid(format!("cannot start a reading thread: {error}")));
                    }
                }
            }
            Err(error) => batches.error = Some(error),
        }
        batches
    }

    /// Batches that may wait, and what is left for pages.
    fn plan_memory(&self) -> Result<(usize, Arc<PageMemory>)> {
        let Cut { batch_size, seq_len, .. } = self.loader.cut;
        // Padded batches hold inputs and targets of four bytes each.
        let batch_bytes = (batch_size as u64).saturating_mul(seq_len as u64).saturating_mul(8).max(1);
        let needed = batch_bytes.saturating_mul(BATCHES_OUTSIDE_QUEUE).saturating_add(WORK_BYTES_USUAL);
        let given = self.loader.memory_budget;
        if given < needed {
            return Err(Error::Budget {
                given,
                needed,
                because: format!(
                    "batches of {batch_size} sequences of {seq_len} tokens take up to {batch_bytes} each; allow more, or make \
                     them smaller"
                ),
            });
        }
        let queue_len = ((given - needed) / batch_bytes).min(QUEUE_MAX);
        let for_page = given - (BATCHES_OUTSIDE_QUEUE + queue_len) * batch_bytes;
        Ok((queue_len as usize, Arc::new(PageMemory::within(given, for_page, 1))))
    }
}

impl Iterator for LMBatches<'_> {
    type Item = Result<LMBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        loop {
            let Ok(message) = self.incoming.as_ref()?.recv() else {
                self.incoming = None;
                let file = self.loader.my_files.get(self.loader.file_idx)?;
                let reason = "the reading thread ended before the file did; please report this".to_owned();
                return Some(Err(Error::NotParquet { path: file.clone(), reason }));
            };
            match message {
                Message::Batch(batch) => {
                    self.loader.batches_taken += 1;
                    return Some(Ok(batch));
                }
                Message::FileEnd { batch, rows_skipped } => {
                    self.loader.rows_skipped += rows_skipped;
                    self.loader.resume_from(self.loader.file_idx + 1);
                    if let Some(batch) = batch {
                        return Some(Ok(batch));
                    }
                }
                Message::Failed(error) => {
                    self.incoming = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Drop for LMBatches<'_> {
    fn drop(&mut self) {
        // Without a receiver the thread's next send fails, and it ends.
        self.incoming = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends all batches of the files, until there are no more or nobody listens.
fn send_files(
    files: &[PathBuf],
    cut: Cut,
    already_taken: usize,
    memory: &Arc<PageMemory>,
    outgoing: &SyncSender<Message>,
) {
    for (index, path) in files.iter().enumerate() {
        let already_taken = if index == 0 { already_taken } else { 0 };
        match FileBatches::open(path, cut, already_taken, memory).and_then(|file| send_file(file, outgoing)) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                let _ = outgoing.send(Message::Failed(error));
                return;
            }
        }
    }
}

fn send_file(mut file: FileBatches, outgoing: &SyncSender<Message>) -> Result<bool> {
    let mut held_back: Option<LMBatch> = None;
    for batch in file.by_ref() {
        if let Some(batch) = held_back.replace(batch?)
            && outgoing.send(Message::Batch(batch)).is_err()
        {
            return Ok(false);
        }
    }
    let end = Message::FileEnd { batch: held_back, rows_skipped: file.sequences.rows_skipped };
    Ok(outgoing.send(end).is_ok())
}

/// The batches of one file.
struct FileBatches {
    sequences: FileSequences,
    cut: Cut,
}

impl FileBatches {
    fn open(path: &Path, cut: Cut, already_taken: usize, memory: &Arc<PageMemory>) -> Result<Self> {
        let (data, uncounted) = scan_file(path)?;
        let sequences = FileSequences {
            data,
            uncounted,
            rows_skipped: 0,
            memory: Arc::clone(memory),
            next_row_group: 0,
            cursor: None,
            tokens: Vec::new(),
            seq_len: cut.seq_len,
        };
        let mut batches = Self { sequences, cut };
        for _ in 0..already_taken.saturating_mul(cut.batch_size) {
            if batches.sequences.next().transpose()?.is_none() {
                break;
            }
        }
        Ok(batches)
    }
}

impl Iterator for FileBatches {
    type Item = Result<LMBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let sequences: Result<Vec<_>> = self.sequences.by_ref().take(self.cut.batch_size).collect();
        match sequences {
            Ok(sequences) if sequences.is_empty() => None,
            Ok(sequences) => Some(Ok(LMBatch::from_sequences(&sequences, self.cut.pad_id, self.cut.eos_id))),
            Err(error) => Some(Err(error)),
        }
    }
}

/// The rows of one file, those longer than `seq_len` as several sequences.
struct FileSequences {
    data: Arc<DataSet>,
    /// Row groups whose tokens no statistics tell; they are counted as they are read.
    uncounted: Vec<usize>,
    rows_skipped: u64,
    memory: Arc<PageMemory>,
    next_row_group: u32,
    cursor: Option<RowGroupCursor>,
    tokens: Vec<u32>,
    seq_len: usize,
}

impl FileSequences {
    fn try_next(&mut self) -> Result<Option<Vec<u32>>> {
        loop {
            if self.tokens.len() == self.seq_len {
                return Ok(Some(std::mem::take(&mut self.tokens)));
            }
            let Some(cursor) = &mut self.cursor else {
                if self.next_row_group as usize == self.data.manifest().row_groups().len() {
                    return Ok(None);
                }
                let cursor = self.data.open_row_group_within(self.next_row_group, &self.memory)?;
                let is_counted = !self.uncounted.contains(&(self.next_row_group as usize));
                self.cursor = Some(if is_counted { cursor } else { cursor.uncounted() });
                self.next_row_group += 1;
                continue;
            };
            let Some(segment) = cursor.segment(self.seq_len - self.tokens.len())? else {
                self.rows_skipped += cursor.rows_without_tokens();
                self.cursor = None;
                if self.tokens.is_empty() {
                    continue;
                }
                return Ok(Some(std::mem::take(&mut self.tokens)));
            };
            if segment.starts_row && !self.tokens.is_empty() {
                let row = std::mem::take(&mut self.tokens);
                cursor.read(segment.tokens, &mut self.tokens)?;
                return Ok(Some(row));
            }
            cursor.read(segment.tokens, &mut self.tokens)?;
        }
    }
}

impl Iterator for FileSequences {
    type Item = Result<Vec<u32>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
    }
}
