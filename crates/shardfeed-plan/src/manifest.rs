use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::checksums::fill_chunk;
use crate::{Packing, PageChecksums, StreamSettings};

/// All row groups of a data set in one canonical order, with what planning and reading need of each.
///
/// Files are sorted by relative name, as bytes; row groups follow their number in the file. So every rank numbers
/// them alike, whatever order a directory lists them in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    files: Vec<DataFile>,
    row_groups: Vec<RowGroup>,
    fingerprint: Fingerprint,
    checksums: PageChecksums,
}

/// One Parquet file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Path relative to the data set's base, with `/` between parts.
    pub name: String,
    /// Bytes of the file when it was scanned.
    pub size: u64,
    /// When it was last written, in nanoseconds since 1970. Tells a changed file; not part of the fingerprint.
    pub modified_ns: i64,
    /// The column that holds the tokens.
    pub column: TokenColumn,
    /// Sequences of each row group with [`Packing::Pad`], for each `seq_len` that was counted so far.
    pub pieces: Vec<PieceCounts>,
}

/// The token column of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenColumn {
    /// `input_ids` or `token_ids`.
    pub name: String,
    /// Type of one token id.
    pub ids: IdType,
    /// Definition level of a present token.
    pub present_level: u8,
    /// Whether the schema allows a null inside a list; then `present_level - 1` is such a null.
    pub nullable_items: bool,
}

/// Integer types that token ids are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum IdType {
    U16,
    U32,
    I32,
    I64,
    U64,
}

/// One row group, as its file's footer describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// Index of its file in [`Manifest::files`].
    pub file: u32,
    /// Its number within the file.
    pub number: u32,
    /// Rows, null and empty ones included.
    pub rows: u64,
    /// Tokens of all rows.
    pub tokens: u64,
    /// Rows with at least one token.
    pub documents: u64,
    /// Where the token column's pages begin in the file.
    pub chunk_start: u64,
    /// Bytes of the token column's pages.
    pub chunk_len: u64,
    /// Compression, as the Parquet format numbers it.
    pub codec: u8,
}

impl RowGroup {
    /// Level slots of the column chunk: one per token, and one per null or empty row.
    pub fn slots(&self) -> u64 {
        self.tokens + (self.rows - self.documents)
    }

    /// Whether each row has at least one token, so that slots and tokens are the same.
    pub fn has_no_gaps(&self) -> bool {
        self.rows == self.documents
    }

    /// Byte range of the column chunk in its file.
    pub fn chunk(&self) -> Range<u64> {
        self.chunk_start..self.chunk_start + self.chunk_len
    }
}

/// How many sequences each row group of a file has when rows are cut into pieces of at most `seq_len` tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceCounts {
    /// The length these counts are for.
    pub seq_len: u32,
    /// One count per row group of the file.
    pub counts: Vec<u64>,
}

impl PieceCounts {
    /// Whether rows of these row groups can make as many pieces: at least one each, of at most `seq_len` tokens.
    fn fit(&self, row_groups: &[RowGroup]) -> bool {
        let fits = |(&count, group): (&u64, &RowGroup)| {
            let least = group.documents.max(group.tokens.div_ceil(u64::from(self.seq_len.max(1))));
            (least..=group.tokens).contains(&count)
        };
        self.seq_len > 0
            && self.counts.len() == row_groups.len()
            && self.counts.iter().zip(row_groups).all(fits)
    }
}

/// Identifies a data set by what decides the order and the content of its stream: names and sizes of files, rows,
/// tokens and documents of row groups. A copy elsewhere, or one touched by `cp -r`, has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 16]);

/// A set of files that make no manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Two files of one name cannot be put in an order.
    #[error("{0} is listed twice; name each file once")]
    Twice(String),
    /// More row groups than a number of 32 bits counts.
    #[error("the data set has {0} row groups; at most {max} can be numbered", max = u32::MAX)]
    TooManyRowGroups(usize),
    /// More or fewer sequences than the tokens of a row group can make.
    #[error("{file}: its sequences of at most {seq_len} tokens are counted wrong")]
    Pieces {
        /// The file.
        file: String,
        /// The length they were counted for.
        seq_len: u32,
    },
    /// Recorded pages that are not those of a column chunk.
    #[error("{file}: the pages recorded of row group {number} cannot be those of its column chunk")]
    Checksums {
        /// The file.
        file: String,
        /// Row group within it.
        number: u32,
    },
    /// Counts that cannot be: their sum passes 2^62, or documents exceed rows.
    #[error(
        "{file}: row group {number} claims {rows} rows, {documents} documents and {tokens} tokens, which cannot be"
    )]
    Counts {
        /// The file.
        file: String,
        /// Row group within it.
        number: u32,
        /// Claimed rows.
        rows: u64,
        /// Claimed documents.
        documents: u64,
        /// Claimed tokens.
        tokens: u64,
    },
}

impl ManifestError {
    /// The file that claims what cannot be.
    pub fn damaged_file(&self) -> Option<&str> {
        match self {
            Self::Pieces { file, .. } | Self::Checksums { file, .. } | Self::Counts { file, .. } => {
                Some(file)
            }
            Self::Twice(_) | Self::TooManyRowGroups(_) => None,
        }
    }
}

/// Far above any data set, far below overflow: sums and products with `seq_len` stay in 64 bits.
const TOTAL_MAX: u64 = 1 << 62;

impl Manifest {
    /// Sorts files canonically and numbers their row groups; `RowGroup::file` and `number` are set here.
    pub fn new(mut scanned: Vec<(DataFile, Vec<RowGroup>)>) -> Result<Self, ManifestError> {
        // Sorted before numbering: directories list files in any order, and a saved state points at these numbers.
        scanned.sort_unstable_by(|a, b| a.0.name.as_bytes().cmp(b.0.name.as_bytes()));
        if let Some(pair) = scanned.windows(2).find(|pair| pair[0].0.name == pair[1].0.name) {
            return Err(ManifestError::Twice(pair[0].0.name.clone()));
        }
        let count = scanned.iter().map(|(_, groups)| groups.len()).sum();
        if u32::try_from(count).is_err() {
            return Err(ManifestError::TooManyRowGroups(count));
        }
        let mut files = Vec::with_capacity(scanned.len());
        let mut row_groups = Vec::with_capacity(count);
        let mut units = 0_u64;
        for (file_index, (file, groups)) in scanned.into_iter().enumerate() {
            if let Some(pieces) = file.pieces.iter().find(|pieces| !pieces.fit(&groups)) {
                return Err(ManifestError::Pieces { file: file.name.clone(), seq_len: pieces.seq_len });
            }
            for (number, group) in groups.into_iter().enumerate() {
                let group = RowGroup { file: file_index as u32, number: number as u32, ..group };
                units = units
                    .checked_add(group.tokens)
                    .and_then(|sum| sum.checked_add(group.rows))
                    .filter(|&sum| sum <= TOTAL_MAX && group.documents <= group.rows.min(group.tokens))
                    .filter(|_| group.chunk_start.checked_add(group.chunk_len).is_some())
                    .ok_or_else(|| ManifestError::Counts {
                        file: file.name.clone(),
                        number: group.number,
                        rows: group.rows,
                        documents: group.documents,
                        tokens: group.tokens,
                    })?;
                row_groups.push(group);
            }
            files.push(file);
        }
        let fingerprint = fingerprint(&files, &row_groups);
        Ok(Self { files, row_groups, fingerprint, checksums: PageChecksums::default() })
    }

    /// Files in canonical order.
    pub fn files(&self) -> &[DataFile] {
        &self.files
    }

    /// Row groups in canonical order.
    pub fn row_groups(&self) -> &[RowGroup] {
        &self.row_groups
    }

    /// Identifies this data set.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The file that row group `g` is in.
    pub fn file_of(&self, row_group: u32) -> &DataFile {
        &self.files[self.row_groups[row_group as usize].file as usize]
    }

    /// Indexes of the row groups of one file.
    pub fn row_groups_of(&self, file: u32) -> Range<usize> {
        let start = self.row_groups.partition_point(|group| group.file < file);
        start..self.row_groups.partition_point(|group| group.file <= file)
    }

    /// The index of the file of this name.
    pub fn file_named(&self, name: &str) -> Option<u32> {
        let found = self.files.binary_search_by(|file| file.name.as_bytes().cmp(name.as_bytes()));
        found.ok().map(|index| index as u32)
    }

    /// The index of a row group that was taken from here.
    pub fn index_of(&self, row_group: &RowGroup) -> u32 {
        self.row_groups.partition_point(|group| group.file < row_group.file) as u32 + row_group.number
    }

    /// Tokens of the whole data set.
    pub fn tokens(&self) -> u64 {
        self.row_groups.iter().map(|group| group.tokens).sum()
    }

    /// Rows of the whole data set, null and empty ones included.
    pub fn rows(&self) -> u64 {
        self.row_groups.iter().map(|group| group.rows).sum()
    }

    /// Rows with at least one token.
    pub fn documents(&self) -> u64 {
        self.row_groups.iter().map(|group| group.documents).sum()
    }

    /// Files whose pieces at this `seq_len` have not been counted yet.
    pub fn files_without_pieces(&self, seq_len: u32) -> Vec<u32> {
        let uncounted = |file: &DataFile| file.pieces.iter().all(|pieces| pieces.seq_len != seq_len);
        (0_u32..).zip(&self.files).filter(|(_, file)| uncounted(file)).map(|(index, _)| index).collect()
    }

    /// Records the counted pieces of a file. The fingerprint stays: pieces follow from the rows.
    ///
    /// # Panics
    /// If there is not one count for each row group of the file.
    pub fn set_pieces(&mut self, file: u32, pieces: PieceCounts) {
        assert_eq!(pieces.counts.len(), self.row_groups_of(file).len(), "one count per row group");
        let known = &mut self.files[file as usize].pieces;
        known.retain(|other| other.seq_len != pieces.seq_len);
        if known.len() == PIECE_COUNTS_MAX {
            known.remove(0);
        }
        known.push(pieces);
    }

    /// What was recorded of pages.
    pub fn checksums(&self) -> &PageChecksums {
        &self.checksums
    }

    /// Row groups whose pages are all recorded.
    pub fn row_groups_with_checksums(&self) -> usize {
        if self.checksums.is_empty() {
            return 0;
        }
        (0..self.row_groups.len() as u32).filter(|&row_group| !self.lacks_checksums(row_group)).count()
    }

    /// Files with pages that are not recorded.
    pub fn files_without_checksums(&self) -> Vec<u32> {
        let mut files: Vec<u32> = (0_u32..)
            .zip(&self.row_groups)
            .filter(|(row_group, _)| self.lacks_checksums(*row_group))
            .map(|(_, group)| group.file)
            .collect();
        files.dedup();
        files
    }

    /// A column chunk without bytes has nothing to record.
    fn lacks_checksums(&self, row_group: u32) -> bool {
        self.checksums.of(row_group).is_empty() && self.row_groups[row_group as usize].chunk_len > 0
    }

    /// Records pages, in place of those recorded so far. The fingerprint stays: a data set is the same with and without.
    ///
    /// # Panics
    /// If there are not as many row groups.
    pub fn set_checksums(&mut self, checksums: PageChecksums) -> Result<(), ManifestError> {
        assert_eq!(checksums.row_groups(), self.row_groups.len(), "pages of each row group");
        for (index, group) in (0_u32..).zip(&self.row_groups) {
            if !fill_chunk(checksums.of(index), &group.chunk()) {
                let file = self.files[group.file as usize].name.clone();
                return Err(ManifestError::Checksums { file, number: group.number });
            }
        }
        self.checksums = checksums.packed();
        Ok(())
    }

    /// Takes over what `older` has recorded of files that did not change since: of the same name, size and time, with
    /// row groups in the same places.
    pub fn take_checksums(&mut self, older: &Self) {
        if older.checksums.is_empty() {
            return;
        }
        let mut checksums = PageChecksums::default();
        for (index, file) in (0_u32..).zip(&self.files) {
            let groups = self.row_groups_of(index);
            let known = older.file_named(&file.name).filter(|&known| {
                let known_file = &older.files[known as usize];
                let known_groups = &older.row_groups[older.row_groups_of(known)];
                let groups = &self.row_groups[groups.clone()];
                (known_file.size, known_file.modified_ns) == (file.size, file.modified_ns)
                    && known_groups.iter().map(RowGroup::chunk).eq(groups.iter().map(RowGroup::chunk))
            });
            match known {
                Some(known) => older
                    .row_groups_of(known)
                    .for_each(|row_group| checksums.push(older.checksums.of(row_group as u32))),
                None => groups.for_each(|_| checksums.push(&[])),
            }
        }
        self.checksums = checksums.packed();
    }

    /// Units of each row group on the line, with these settings. `None` while pieces remain to be counted.
    pub fn sizes(&self, settings: &StreamSettings) -> Option<Vec<u64>> {
        match settings.packing {
            Packing::Concat => {
                let eos = u64::from(settings.eos_id.is_some());
                Some(self.row_groups.iter().map(|group| group.tokens + eos * group.documents).collect())
            }
            Packing::Pad => {
                let mut sizes = Vec::with_capacity(self.row_groups.len());
                for file in &self.files {
                    let pieces = file.pieces.iter().find(|pieces| pieces.seq_len == settings.seq_len)?;
                    sizes.extend_from_slice(&pieces.counts);
                }
                Some(sizes)
            }
        }
    }
}

/// Lengths for which a file remembers its pieces; the oldest makes room.
pub(crate) const PIECE_COUNTS_MAX: usize = 8;

fn fingerprint(files: &[DataFile], row_groups: &[RowGroup]) -> Fingerprint {
    let mut hash = Sha256::new();
    hash.update(b"shardfeed manifest 1\0");
    let mut groups = row_groups.iter().peekable();
    for (index, file) in (0_u32..).zip(files) {
        hash.update((file.name.len() as u64).to_le_bytes());
        hash.update(file.name.as_bytes());
        hash.update(file.size.to_le_bytes());
        // The mark of a row group is 1, of a file's end 0, so that no two data sets give the same bytes.
        while let Some(group) = groups.next_if(|group| group.file == index) {
            let mut words = [0_u8; 25];
            words[0] = 1;
            words[1..9].copy_from_slice(&group.rows.to_le_bytes());
            words[9..17].copy_from_slice(&group.tokens.to_le_bytes());
            words[17..25].copy_from_slice(&group.documents.to_le_bytes());
            hash.update(words);
        }
        hash.update([0]);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    Fingerprint(bytes)
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a fingerprint of 32 hexadecimal digits");
        if text.len() != 32
            || !text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        {
            return Err(wrong());
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| wrong())?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl IdType {
    /// The word used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U64 => "u64",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::PageChecksum;

    /// Rows, tokens and documents of each row group.
    type Counts<'a> = &'a [(u64, u64, u64)];

    /// A manifest of files with these row groups.
    pub fn manifest(files: &[(&str, Counts)]) -> Manifest {
        let scanned = files.iter().map(|(name, groups)| {
            let column = TokenColumn {
                name: "input_ids".into(),
                ids: IdType::I32,
                present_level: 3,
                nullable_items: true,
            };
            let file = DataFile { name: (*name).into(), size: 1000, modified_ns: -5, column, pieces: vec![] };
            let groups = groups.iter().map(|&(rows, tokens, documents)| RowGroup {
                file: 0,
                number: 0,
                rows,
                tokens,
                documents,
                chunk_start: 4,
                chunk_len: 100,
                codec: 1,
            });
            (file, groups.collect())
        });
        Manifest::new(scanned.collect()).unwrap()
    }

    #[test]
    fn the_listing_order_does_not_matter_and_names_sort_as_bytes() {
        let one = manifest(&[("b", &[(1, 2, 1)]), ("a/z", &[(3, 4, 3), (5, 6, 5)]), ("Z", &[])]);
        let two = manifest(&[("Z", &[]), ("a/z", &[(3, 4, 3), (5, 6, 5)]), ("b", &[(1, 2, 1)])]);
        assert_eq!(one, two);
        let names: Vec<_> = one.files().iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["Z", "a/z", "b"]);
        assert_eq!(one.row_groups_of(0), 0..0);
        assert_eq!(one.row_groups_of(1), 0..2);
        assert_eq!(one.row_groups_of(2), 2..3);
    }

    #[test]
    fn the_fingerprint_changes_with_what_decides_the_order_and_not_with_the_time() {
        let base = manifest(&[("a", &[(3, 4, 3)]), ("b", &[(1, 2, 1)])]);
        let variants = [
            manifest(&[("a", &[(3, 5, 3)]), ("b", &[(1, 2, 1)])]),
            manifest(&[("a", &[(4, 4, 3)]), ("b", &[(1, 2, 1)])]),
            manifest(&[("a", &[(3, 4, 2)]), ("b", &[(1, 2, 1)])]),
            manifest(&[("a", &[(3, 4, 3)]), ("c", &[(1, 2, 1)])]),
            manifest(&[("a", &[(3, 4, 3), (1, 2, 1)]), ("b", &[])]),
            manifest(&[("a", &[(3, 4, 3)])]),
        ];
        for variant in &variants {
            assert_ne!(variant.fingerprint(), base.fingerprint());
        }
        let mut later: Vec<_> = vec![];
        for index in 0..2 {
            let file = DataFile { modified_ns: 77, ..base.files()[index].clone() };
            later.push((file, base.row_groups()[base.row_groups_of(index as u32)].to_vec()));
        }
        assert_eq!(Manifest::new(later).unwrap().fingerprint(), base.fingerprint());
    }

    #[test]
    fn the_fingerprint_is_golden() {
        let manifest = manifest(&[("a.parquet", &[(3, 40, 3)]), ("b.parquet", &[(1, 2, 1), (0, 0, 0)])]);
        let text = manifest.fingerprint().to_string();
        assert_eq!(text, "9955e5f4fd99c0f89ca140fd43403a41");
        assert_eq!(text.parse(), Ok(manifest.fingerprint()));
        assert!("GOLDEN".parse::<Fingerprint>().is_err());
    }

    #[test]
    fn a_name_listed_twice_and_counts_that_cannot_be_are_refused() {
        let base = manifest(&[("a", &[(3, 4, 3)])]);
        let file = (base.files()[0].clone(), base.row_groups().to_vec());
        assert_eq!(Manifest::new(vec![file.clone(), file.clone()]), Err(ManifestError::Twice("a".into())));
        for (rows, tokens, documents) in [(3, 2, 3), (2, 9, 3), (3, u64::MAX, 3), (u64::MAX, u64::MAX, 1)] {
            let group = RowGroup { rows, tokens, documents, ..file.1[0] };
            let error = Manifest::new(vec![(file.0.clone(), vec![group])]).unwrap_err();
            assert!(error.to_string().contains("row group 0"), "{error}");
        }
    }

    /// Two pages of each row group, as `manifest` places them.
    pub fn checksums_of(manifest: &Manifest) -> PageChecksums {
        let mut checksums = PageChecksums::default();
        for (index, group) in (0_u32..).zip(manifest.row_groups()) {
            let page = |at, sum| PageChecksum { at, header: index, body: sum };
            checksums.push(&[page(group.chunk_start, 7), page(group.chunk_start + 30, u32::MAX)]);
        }
        checksums
    }

    #[test]
    fn checksums_leave_the_fingerprint_alone_and_are_known_by_file() {
        let plain = manifest(&[("a", &[(3, 4, 3)]), ("b", &[(1, 2, 1), (2, 2, 2)])]);
        assert_eq!((plain.row_groups_with_checksums(), plain.files_without_checksums()), (0, vec![0, 1]));
        let mut recorded = plain.clone();
        recorded.set_checksums(checksums_of(&plain)).unwrap();
        assert_eq!(recorded.fingerprint(), plain.fingerprint());
        assert_eq!((recorded.row_groups_with_checksums(), recorded.files_without_checksums()), (3, vec![]));
        assert_eq!(recorded.checksums().of(2)[1].header, 2);
        for (index, group) in (0..).zip(plain.row_groups()) {
            assert_eq!(plain.index_of(group), index);
        }
        assert_eq!((plain.file_named("b"), plain.file_named("c")), (Some(1), None));
    }

    #[test]
    fn only_files_that_did_not_change_take_their_checksums_over() {
        let mut older = manifest(&[("a", &[(3, 4, 3)]), ("b", &[(1, 2, 1), (2, 2, 2)])]);
        older.set_checksums(checksums_of(&older)).unwrap();
        let mut same = manifest(&[("0", &[(9, 9, 9)]), ("a", &[(3, 4, 3)]), ("b", &[(1, 2, 1), (2, 2, 2)])]);
        same.take_checksums(&older);
        assert_eq!(same.files_without_checksums(), [0]);
        assert_eq!(same.checksums().of(3), older.checksums().of(2));
        let mut other = manifest(&[("a", &[(3, 4, 3), (1, 1, 1)]), ("c", &[(1, 2, 1), (2, 2, 2)])]);
        other.take_checksums(&older);
        assert_eq!(other.row_groups_with_checksums(), 0);
        assert_eq!(other.checksums(), &PageChecksums::default());
        let (mut file, groups) = (older.files()[0].clone(), older.row_groups()[..1].to_vec());
        file.modified_ns += 1;
        let mut later = Manifest::new(vec![(file, groups)]).unwrap();
        later.take_checksums(&older);
        assert!(later.checksums().is_empty());
    }

    #[test]
    fn pages_that_are_not_those_of_a_column_chunk_are_refused() {
        let mut manifest = manifest(&[("a", &[(3, 4, 3)])]);
        for at in [[5, 6], [4, 4], [4, 104]] {
            let mut checksums = PageChecksums::default();
            checksums.push(&at.map(|at| PageChecksum { at, header: 0, body: 0 }));
            let error = manifest.set_checksums(checksums).unwrap_err();
            assert!(error.to_string().contains("row group 0"), "{error}");
        }
    }

    #[test]
    fn sizes_count_tokens_documents_or_pieces() {
        let mut manifest = manifest(&[("a", &[(3, 40, 2)]), ("b", &[(1, 2, 1)])]);
        let concat = StreamSettings::auto(8, Packing::Concat, None, 0, 1);
        assert_eq!(manifest.sizes(&concat), Some(vec![40, 2]));
        assert_eq!(manifest.sizes(&StreamSettings { eos_id: Some(2), ..concat.clone() }), Some(vec![42, 3]));
        let pad = StreamSettings { packing: Packing::Pad, ..concat };
        assert_eq!(manifest.sizes(&pad), None);
        manifest.set_pieces(0, PieceCounts { seq_len: 8, counts: vec![6] });
        assert_eq!(manifest.files_without_pieces(8), [1]);
        manifest.set_pieces(1, PieceCounts { seq_len: 8, counts: vec![1] });
        assert_eq!(manifest.sizes(&pad), Some(vec![6, 1]));
        for seq_len in 100..120 {
            manifest.set_pieces(0, PieceCounts { seq_len, counts: vec![1] });
        }
        assert_eq!(manifest.files()[0].pieces.len(), PIECE_COUNTS_MAX);
    }
}
