use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{Batch, CachePolicy, Result, TokenLoader, TokenLoaderBuilder};

use crate::common::Row;

/// Files in a directory of their own, whose every token is another number.
pub struct World {
    dir: tempfile::TempDir,
    pub files: Vec<Vec<Row>>,
}

impl World {
    /// This many files of 20 rows, 1 to 20 tokens each.
    pub fn with_files(count: usize) -> Self {
        Self::of(small_files(count), &WriteOptions { rows_per_group: 7, page_bytes: 64, ..plain() })
    }

    pub fn of(files: Vec<Vec<Row>>, options: &WriteOptions) -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap(), files };
        for (index, rows) in world.files.iter().enumerate() {
            write_rows(&world.path(index), rows, options).unwrap();
        }
        world
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, file: usize) -> PathBuf {
        self.dir().join(format!("part-{file:03}.parquet"))
    }

    /// All tokens, in file order.
    pub fn tokens(&self) -> Vec<u32> {
        tokens_in(&self.files)
    }

    /// A loader in file order, without a cache: 4 sequences of 16 tokens a step.
    pub fn builder(&self) -> TokenLoaderBuilder {
        in_file_order(self.dir()).cache(CachePolicy::Off)
    }

    pub fn loader(&self) -> TokenLoader {
        self.builder().build().unwrap()
    }
}

/// The rows of a small world's files.
pub fn small_files(count: usize) -> Vec<Vec<Row>> {
    let mut tokens = 1_u32..;
    let mut file = || (1..=20).map(|len| Some(tokens.by_ref().take(len).collect())).collect();
    (0..count).map(|_| file()).collect()
}

pub fn tokens_in(files: &[Vec<Row>]) -> Vec<u32> {
    files.iter().flatten().flatten().flatten().copied().collect()
}

pub fn in_file_order(dir: &Path) -> TokenLoaderBuilder {
    TokenLoader::builder(dir, 16, 4).shuffle(false).threads(2)
}

/// Numbers stand in the file as they are.
pub fn plain() -> WriteOptions {
    WriteOptions {
        dictionary: false,
        compression: parquet::basic::Compression::UNCOMPRESSED,
        ..WriteOptions::default()
    }
}

/// The tokens of a batch, padding left out.
pub fn tokens_of(batch: &Batch) -> Vec<u32> {
    batch
        .input_ids()
        .iter()
        .zip(batch.document_ids().iter())
        .filter(|&(_, document)| document >= 0)
        .map(|(id, _)| u32::try_from(id).unwrap())
        .collect()
}

/// What is left of the epoch.
pub fn rest(loader: &mut TokenLoader) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    while let Some(batch) = loader.next_batch()? {
        tokens.extend(tokens_of(&batch));
    }
    Ok(tokens)
}

/// The tokens up to the error that must come, and what it says.
pub fn until_error(loader: &mut TokenLoader) -> (Vec<u32>, String) {
    let mut tokens = Vec::new();
    loop {
        match loader.next_batch() {
            Ok(Some(batch)) => tokens.extend(tokens_of(&batch)),
            Ok(None) => panic!("the epoch ended without an error, after {} tokens", tokens.len()),
            Err(error) => return (tokens, error.to_string()),
        }
    }
}

pub fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
pub fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
}

#[track_caller]
pub fn assert_names(message: &str, path: &Path) {
    assert_says(message, &[path.to_str().unwrap()]);
}

/// Fails rather than hangs. The thread of a hanging test is left behind.
pub fn without_a_hang<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(work());
    });
    match result.recv_timeout(Duration::from_mins(5)) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

/// When a file was last written, to be given to it again.
pub fn modified(path: &Path) -> std::time::SystemTime {
    std::fs::metadata(path).unwrap().modified().unwrap()
}

pub fn set_modified(path: &Path, time: std::time::SystemTime) {
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Writes other bytes into the file, a while later as far as anybody can tell.
pub fn rewrite(path: &Path, bytes: &[u8]) {
    let time = modified(path);
    std::fs::write(path, bytes).unwrap();
    set_modified(path, time + Duration::from_secs(10));
}
