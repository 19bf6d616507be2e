use std::fs::File;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::column::page::PageReader;
use parquet::errors::ParquetError;
use parquet::file::serialized_reader::SerializedPageReader;

use super::contest::Pass;
use super::subject::Subject;
use crate::args::Failure;
use crate::stop::Stop;

/// The `parquet` crate alone: the token column as Arrow record batches, which are dropped; or only its pages.
///
/// It decodes in file order, joins no rows, shuffles nothing and makes no batches. Footers are read beforehand, as
/// the engine's manifest is; row groups are dealt to threads one by one.
pub struct Bare<'a> {
    subject: &'a Subject,
    files: Vec<BareFile>,
    /// File and row group in it.
    row_groups: Vec<(usize, usize)>,
    /// Rows of a record batch: those with which it is fastest here.
    pub batch_rows: usize,
}

struct BareFile {
    path: PathBuf,
    metadata: ArrowReaderMetadata,
    column: ProjectionMask,
    /// The column's number among all that hold values.
    leaf: usize,
}

/// Small batches stay in the cache, large ones cost less each: which is better depends on the rows.
const BATCH_ROWS: [usize; 4] = [16, 128, 1024, 8192];

impl<'a> Bare<'a> {
    /// Reads the footers and finds the record batches that suit it.
    pub fn new(subject: &'a Subject, stop: &Stop) -> Result<Self, Failure> {
        let mut files = Vec::new();
        let mut row_groups = Vec::new();
        for (index, file) in (0_u32..).zip(subject.data.manifest().files()) {
            let path = subject.data.path(index).to_path_buf();
            let opened = open(path, &file.column.name)?;
            let groups = 0..opened.metadata.metadata().num_row_groups();
            row_groups.extend(groups.map(|group| (files.len(), group)));
            files.push(opened);
        }
        let mut bare = Self { subject, files, row_groups, batch_rows: BATCH_ROWS[0] };
        // The page cache is warm after this.
        bare.pass(1, stop)?;
        let mut rates = Vec::new();
        for batch_rows in BATCH_ROWS {
            bare.batch_rows = batch_rows;
            rates.push((bare.pass(1, stop)?.rate(), batch_rows));
        }
        bare.batch_rows = rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("several").1;
        Ok(bare)
    }

    /// Decodes everything once.
    pub fn pass(&self, threads: usize, stop: &Stop) -> Result<Pass, Failure> {
        self.each_row_group(threads, stop, |file, group| self.decode(file, group))
    }

    /// Reads and decompresses every page once, and decodes none: what anybody has to do who reads these files.
    pub fn pages_pass(&self, threads: usize, stop: &Stop) -> Result<Pass, Failure> {
        self.each_row_group(threads, stop, load_pages)
    }

    fn each_row_group(
        &self,
        threads: usize,
        stop: &Stop,
        read: impl Fn(&BareFile, usize) -> Result<u64, ParquetError> + Sync,
    ) -> Result<Pass, Failure> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<u64, Failure> {
            let mut rows = 0;
            while let Some(&(file, group)) = self.row_groups.get(next.fetch_add(1, Relaxed)) {
                stop.check()?;
                rows += read(&self.files[file], group).map_err(|error| {
                    Failure::Other(format!(
                        "{}: the parquet crate cannot decode row group {group}: {error}",
                        self.files[file].path.display()
                    ))
                })?;
            }
            Ok(rows)
        };
        let started = Instant::now();
        let rows = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("it does not panic"))
                .sum::<Result<u64, _>>()
        })?;
        let took = started.elapsed();
        let expected = self.subject.data.manifest().rows();
        if rows != expected {
            return Err(Failure::Other(format!(
                "the parquet crate decoded {rows} rows where the manifest has {expected}"
            )));
        }
        Ok(Pass { tokens: self.subject.tokens(), took })
    }

    /// Returns the rows that were decoded.
    fn decode(&self, file: &BareFile, group: usize) -> Result<u64, ParquetError> {
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(
            File::open(&file.path)?,
            file.metadata.clone(),
        )
        .with_row_groups(vec![group])
        .with_projection(file.column.clone())
        .with_batch_size(self.batch_rows)
        .build()?;
        let mut rows = 0;
        for batch in reader {
            rows += black_box(batch?).num_rows() as u64;
        }
        Ok(rows)
    }
}

/// Returns the rows of the row group.
fn load_pages(file: &BareFile, group: usize) -> Result<u64, ParquetError> {
    let metadata = file.metadata.metadata().row_group(group);
    let (chunk, rows) = (metadata.column(file.leaf), metadata.num_rows());
    let mut pages = SerializedPageReader::new(Arc::new(File::open(&file.path)?), chunk, rows as usize, None)?;
    while let Some(page) = pages.get_next_page()? {
        black_box(page);
    }
    Ok(rows as u64)
}

fn open(path: PathBuf, column: &str) -> Result<BareFile, Failure> {
    let load = || -> Result<ArrowReaderMetadata, ParquetError> {
        ArrowReaderMetadata::load(&File::open(&path)?, ArrowReaderOptions::default())
    };
    let metadata = load().map_err(|error| {
        Failure::Other(format!("{}: the parquet crate cannot open it: {error}", path.display()))
    })?;
    let schema = metadata.parquet_schema();
    let roots = schema.root_schema().get_fields().iter().enumerate();
    let wanted = roots.filter(|(_, field)| field.name() == column).map(|(index, _)| index);
    let leaf = schema.columns().iter().position(|leaf| leaf.path().parts()[0] == column).unwrap_or(0);
    let column = ProjectionMask::roots(schema, wanted);
    Ok(BareFile { path, metadata, column, leaf })
}
