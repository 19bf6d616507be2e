use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::schema::types::SchemaDescriptor;

use super::cache::RowGroupCache;
use super::column::Leaf;
use super::row_group::{DecodedRowGroup, Origin};
use super::value::{Record, Value};
use crate::footer::{modified_ns, read_metadata};
use crate::parallel::{default_threads, map_in_parallel};
use crate::shard::Dataset;
use crate::source::Source;
use crate::{Error, Result, key};

/// Rows of Parquet files, of any columns, by their index: file after file, in the order of their names.
///
/// A row group is decoded when one of its rows is asked for, and kept, as far as there is room, since others will be: so
/// rows are best asked for in order, or with room for the row groups in use. Clones share what is kept.
///
/// ```
/// # use shardfeed::sample::{SampleData, write_sample};
/// # let dir = tempfile::tempdir()?;
/// # write_sample(dir.path(), &SampleData::default())?;
/// use shardfeed::{Dataset, ParquetDataset};
///
/// let rows = ParquetDataset::builder(dir.path()).columns(["input_ids"]).cache_bytes(64 << 20).build()?;
/// let row = rows.get(rows.len() - 1)?;
/// assert!(row.get("input_ids").is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ParquetDataset {
    shared: Arc<Shared>,
}

struct Shared {
    files: Vec<RowFile>,
    /// File, row group in it, and its first row among all; ascending.
    row_groups: Vec<RowGroupPlace>,
    rows: u64,
    /// Names of the columns in a record, and where they are in the schema.
    columns: Arc<[String]>,
    paths: Vec<String>,
    cache: RowGroupCache,
    /// The labels, or keys, of the row group that was asked for last: they are asked for in order.
    label: Option<SideColumn>,
    key: Option<SideColumn>,
    fingerprint: u64,
}

struct RowFile {
    path: PathBuf,
    size: u64,
    modified_ns: i64,
}

#[derive(Clone, Copy)]
struct RowGroupPlace {
    file: usize,
    number: u32,
    first_row: u64,
}

struct SideColumn {
    name: String,
    path: String,
    last: Mutex<Option<(usize, Arc<DecodedRowGroup>)>>,
}

/// Gathers what a [`ParquetDataset`] is made of.
pub struct ParquetDatasetBuilder {
    source: Source,
    columns: Vec<String>,
    label: Option<String>,
    key: Option<String>,
    cache_bytes: u64,
}

const CACHE_BYTES_DEFAULT: u64 = 1 << 30;

impl ParquetDataset {
    /// All columns of a directory's files, a glob's, or of a list of files.
    pub fn open(source: impl Into<Source>) -> Result<Self> {
        Self::builder(source).build()
    }

    /// The same with choices.
    pub fn builder(source: impl Into<Source>) -> ParquetDatasetBuilder {
        ParquetDatasetBuilder {
            source: source.into(),
            columns: Vec::new(),
            label: None,
            key: None,
            cache_bytes: CACHE_BYTES_DEFAULT,
        }
    }

    /// Columns that rows have, in their order.
    pub fn columns(&self) -> &[String] {
        &self.shared.columns
    }

    /// How often a row's row group was there, and how often it was decoded.
    pub fn cache_counts(&self) -> (u64, u64) {
        self.shared.cache.counts()
    }
}

impl ParquetDatasetBuilder {
    /// Only these; a column in a struct by its path, `a.b`. By default, all.
    pub fn columns<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.columns = columns.into_iter().map(Into::into).collect();
        self
    }

    /// The column that has each row's class.
    pub fn label_column(mut self, column: impl Into<String>) -> Self {
        self.label = Some(column.into());
        self
    }

    /// The column that rows are hashed by.
    pub fn key_column(mut self, column: impl Into<String>) -> Self {
        self.key = Some(column.into());
        self
    }

    /// Bytes that decoded row groups may take, 1 GiB by default. Those in use by threads come on top; one that is larger
    /// by itself is refused.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Reads the footers.
    pub fn build(self) -> Result<ParquetDataset> {
        let listing = self.source.list()?;
        let read = map_in_parallel(&listing.files, default_threads(), |file| {
            let (_, system, parquet) = read_metadata(&file.path)?;
            let rows = parquet.row_groups().iter().map(parquet::file::metadata::RowGroupMetaData::num_rows);
            let rows: Vec<i64> = rows.collect();
            // Every file must have what is asked for, or it is named now.
            let schema = parquet.file_metadata().schema_descr();
            let leaves = leaves_of(&file.path, schema, &self.columns)?;
            let side = |name: &Option<String>| {
                name.as_ref()
                    .map(|name| single_leaf(&file.path, schema, name).map(|leaf| leaf.path()))
                    .transpose()
            };
            let columns = Columns {
                names: leaves.iter().map(Leaf::name).collect(),
                paths: leaves.iter().map(Leaf::path).collect(),
                label: side(&self.label)?,
                key: side(&self.key)?,
            };
            Ok::<_, Error>((system.len(), modified_ns(&system), rows, columns))
        })?;
        let (mut files, mut row_groups, mut first_row) = (Vec::new(), Vec::new(), 0_u64);
        let mut columns: Option<Columns> = None;
        let mut words = Vec::new();
        for (listed, (size, modified_ns, rows, here)) in listing.files.into_iter().zip(read) {
            let columns = columns.get_or_insert_with(|| here.clone());
            if *columns != here {
                return Err(Error::Column {
                    path: listed.path,
                    reason: format!(
                        "it has the columns {:?}, where other files have {:?}; write all files alike, or ask for columns that \
                         all have",
                        here.paths, columns.paths
                    ),
                });
            }
            words.extend(
                listed
                    .name
                    .as_bytes()
                    .chunks(8)
                    .map(|bytes| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte))),
            );
            words.push(size);
            for (number, rows) in (0..).zip(rows) {
                let count =
                    u64::try_from(rows).ok().and_then(|rows| Some((rows, first_row.checked_add(rows)?)));
                let Some((rows, end)) = count.filter(|(_, end)| *end <= ROWS_MAX) else {
                    let reason = format!("its footer claims {rows} rows");
                    return Err(Error::Damaged { path: listed.path, row_group: number, reason });
                };
                if rows > 0 {
                    row_groups.push(RowGroupPlace { file: files.len(), number, first_row });
                }
                words.push(rows);
                first_row = end;
            }
            files.push(RowFile { path: listed.path, size, modified_ns });
        }
        let columns = columns.unwrap_or_default();
        let side = |name: Option<String>, path: Option<String>| {
            name.zip(path).map(|(name, path)| SideColumn { name, path, last: Mutex::default() })
        };
        Ok(ParquetDataset {
            shared: Arc::new(Shared {
                files,
                row_groups,
                rows: first_row,
                columns: columns.names.into(),
                paths: columns.paths,
                cache: RowGroupCache::new(self.cache_bytes),
                label: side(self.label, columns.label),
                key: side(self.key, columns.key),
                // Never 0, which means that nobody knows.
                fingerprint: key(&words).max(1),
            }),
        })
    }
}

/// What all files must have alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Columns {
    names: Vec<String>,
    paths: Vec<String>,
    label: Option<String>,
    key: Option<String>,
}

/// Far above any data set; sums stay in range.
const ROWS_MAX: u64 = 1 << 48;

/// The columns of these names, or all. Columns of a struct or list that is named count, too.
fn leaves_of(path: &std::path::Path, schema: &SchemaDescriptor, names: &[String]) -> Result<Vec<Leaf>> {
    let leaf = |number: usize| Leaf::new(number, schema.column(number), schema.root_schema());
    let all: Vec<Leaf> = (0..schema.num_columns()).map(leaf).collect();
    if names.is_empty() {
        return Ok(all);
    }
    let mut chosen = Vec::new();
    for name in names {
        let before = chosen.len();
        let is_new = |leaf: &&Leaf| !chosen.iter().any(|other: &Leaf| other.number == leaf.number);
        let found: Vec<Leaf> = all.iter().filter(|leaf| leaf.is_in(name)).filter(is_new).cloned().collect();
        chosen.extend(found);
        if chosen.len() == before && !all.iter().any(|leaf| leaf.is_in(name)) {
            let found: Vec<String> = all.iter().take(20).map(Leaf::name).collect();
            return Err(Error::Column {
                path: path.to_owned(),
                reason: format!("no column {name:?}; it has {}", found.join(", ")),
            });
        }
    }
    Ok(chosen)
}

/// The one column of this name.
fn single_leaf(path: &std::path::Path, schema: &SchemaDescriptor, name: &String) -> Result<Leaf> {
    let mut leaves = leaves_of(path, schema, std::slice::from_ref(name))?;
    if leaves.len() > 1 {
        let found: Vec<String> = leaves.iter().map(Leaf::name).collect();
        let reason = format!("column {name:?} is several: {}; name one of them", found.join(", "));
        return Err(Error::Column { path: path.to_owned(), reason });
    }
    Ok(leaves.swap_remove(0))
}

impl Shared {
    /// The row group that has a row, and which of its rows it is.
    fn place(&self, index: usize) -> Result<(usize, usize)> {
        if index as u64 >= self.rows {
            return Err(Error::Invalid(format!("row {index} does not exist; there are {}", self.rows)));
        }
        let at = self.row_groups.partition_point(|group| group.first_row <= index as u64) - 1;
        Ok((at, (index as u64 - self.row_groups[at].first_row) as usize))
    }

    fn decode(&self, at: usize, paths: &[String]) -> Result<DecodedRowGroup> {
        let RowGroupPlace { file, number, .. } = self.row_groups[at];
        let RowFile { path, size, modified_ns: scanned } = &self.files[file];
        let (file, system, parquet) = read_metadata(path)?;
        if (system.len(), modified_ns(&system)) != (*size, *scanned) {
            let what = format!("it had {size} bytes and now has {}, or was written to since", system.len());
            return Err(Error::Changed { path: path.clone(), what });
        }
        let mut all = leaves_of(path, parquet.file_metadata().schema_descr(), &[])?;
        // In the order in which they were asked for. The file is the one whose schema had them.
        let leaves: Vec<Leaf> = paths
            .iter()
            .filter_map(|path| Some(all.swap_remove(all.iter().position(|leaf| leaf.path() == *path)?)))
            .collect();
        if leaves.len() != paths.len() {
            return Err(Error::Changed { path: path.clone(), what: "it has other columns".to_owned() });
        }
        let row_group = parquet.row_group(number as usize);
        let origin = Origin { path, row_group: number };
        DecodedRowGroup::read(origin, &file, *size, row_group, &leaves, self.cache.bytes_max())
    }

    /// A value that cannot be shown names its row.
    fn values(&self, at: usize, group: &DecodedRowGroup, row: usize) -> Result<Vec<Value>> {
        group.row(row).map_err(|reason| Error::Row {
            path: self.files[self.row_groups[at].file].path.clone(),
            row_group: self.row_groups[at].number,
            row: row as u64,
            reason,
        })
    }

    fn side(&self, side: &SideColumn, index: usize) -> Result<Value> {
        let (at, row) = self.place(index)?;
        let mut last = side.last.lock().unwrap_or_else(PoisonError::into_inner);
        let group = match &*last {
            Some((known, group)) if *known == at => Arc::clone(group),
            _ => {
                // The one before goes first.
                *last = None;
                let group = Arc::new(self.decode(at, std::slice::from_ref(&side.path))?);
                *last = Some((at, Arc::clone(&group)));
                group
            }
        };
        drop(last);
        Ok(self.values(at, &group, row)?.swap_remove(0))
    }
}

impl Dataset for ParquetDataset {
    type Sample = Record;

    fn len(&self) -> usize {
        self.shared.rows as usize
    }

    fn get(&self, index: usize) -> Result<Record> {
        let shared = &*self.shared;
        let (at, row) = shared.place(index)?;
        let group = shared.cache.get(at, || shared.decode(at, &shared.paths))?;
        Ok(Record::new(Arc::clone(&shared.columns), shared.values(at, &group, row)?))
    }

    /// Its row group is decoded, unless it is at hand.
    fn warm(&self, index: usize) {
        let shared = &*self.shared;
        if let Ok((at, _)) = shared.place(index) {
            // Whoever asks for it will see why not.
            let _ = shared.cache.get(at, || shared.decode(at, &shared.paths));
        }
    }

    fn label(&self, index: usize) -> Result<Option<u64>> {
        let Some(side) = &self.shared.label else { return Ok(None) };
        match self.shared.side(side, index)? {
            Value::Null => Ok(None),
            Value::Bool(label) => Ok(Some(label.into())),
            Value::Int(label) if label >= 0 => Ok(Some(label as u64)),
            other => Err(Error::Invalid(format!(
                "row {index} has {other:?} in its label column {}; classes are whole numbers from 0 on",
                side.name
            ))),
        }
    }

    fn key(&self, index: usize) -> Result<Option<Cow<'_, [u8]>>> {
        let Some(side) = &self.shared.key else { return Ok(None) };
        let bytes = match self.shared.side(side, index)? {
            Value::Null => return Ok(None),
            Value::Text(text) => text.into_bytes(),
            Value::Bytes(bytes) => bytes,
            Value::Int(number) => number.to_le_bytes().to_vec(),
            Value::UInt(number) => number.to_le_bytes().to_vec(),
            other => {
                let name = &side.name;
                let reason = format!(
                    "row {index} has {other:?} in its key column {name}; keys are texts, bytes or whole numbers"
                );
                return Err(Error::Invalid(reason));
            }
        };
        Ok(Some(Cow::Owned(bytes)))
    }

    fn has_keys(&self) -> bool {
        self.shared.key.is_some()
    }

    fn fingerprint(&self) -> u64 {
        self.shared.fingerprint
    }
}
