//! The stored form of a manifest; `docs/formats.md` describes it byte by byte.
//!
//! ```text
//! "SHFDMANI"  version: u32  payload bytes: u64  CRC-32 of payload: u32   (little endian)
//! payload: files, each with its row groups, as LEB128 numbers and length-prefixed text
//! ```

use crate::manifest::PIECE_COUNTS_MAX;
use crate::{DataFile, IdType, Manifest, PageChecksum, PageChecksums, PieceCounts, RowGroup, TokenColumn};

const MAGIC: &[u8; 8] = b"SHFDMANI";
const VERSION: u32 = 2;
/// The first version, which has no pages.
const VERSION_WITHOUT_PAGES: u32 = 1;
const HEADER_LEN: usize = 8 + 4 + 8 + 4;

/// Bytes that are no manifest of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredManifestError {
    /// Another program's file, or an empty one.
    #[error("not a Shardfeed manifest")]
    Foreign,
    /// Written by another release.
    #[error("manifest version {found}, this release reads {VERSION_WITHOUT_PAGES} and {VERSION}")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// Cut short, or bits changed.
    #[error("damaged manifest: {0}")]
    Damaged(&'static str),
}

/// The stored form of `manifest`.
pub fn encode_manifest(manifest: &Manifest) -> Vec<u8> {
    let checksums = manifest.checksums();
    let bytes = manifest.row_groups().len() * 24 + manifest.files().len() * 48 + checksums.pages() * 12;
    let mut payload = Vec::with_capacity(bytes);
    put(&mut payload, manifest.files().len() as u64);
    for (index, file) in (0_u32..).zip(manifest.files()) {
        let groups = manifest.row_groups_of(index);
        put_text(&mut payload, &file.name);
        put(&mut payload, file.size);
        payload.extend_from_slice(&file.modified_ns.to_le_bytes());
        put_text(&mut payload, &file.column.name);
        payload.extend_from_slice(&[
            file.column.ids as u8,
            file.column.present_level,
            u8::from(file.column.nullable_items),
        ]);
        put(&mut payload, groups.len() as u64);
        for index in groups {
            let group = &manifest.row_groups()[index];
            for number in [group.rows, group.tokens, group.documents, group.chunk_start, group.chunk_len] {
                put(&mut payload, number);
            }
            payload.push(group.codec);
            put_pages(&mut payload, checksums.of(index as u32), group.chunk().end);
        }
        put(&mut payload, file.pieces.len() as u64);
        for pieces in &file.pieces {
            put(&mut payload, u64::from(pieces.seq_len));
            pieces.counts.iter().for_each(|&count| put(&mut payload, count));
        }
    }
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
    bytes.append(&mut payload);
    bytes
}

/// The manifest stored in `bytes`.
pub fn decode_manifest(bytes: &[u8]) -> Result<Manifest, StoredManifestError> {
    use StoredManifestError::{Damaged, Foreign, Version};
    if bytes.len() < HEADER_LEN || &bytes[..8] != MAGIC {
        return Err(Foreign);
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let version = word(8);
    if ![VERSION_WITHOUT_PAGES, VERSION].contains(&version) {
        return Err(Version { found: version });
    }
    let payload = &bytes[HEADER_LEN..];
    let payload_len = u64::from(word(12)) | u64::from(word(16)) << 32;
    if payload_len != payload.len() as u64 {
        return Err(Damaged("its length is not the one it names"));
    }
    if crc32fast::hash(payload) != word(20) {
        return Err(Damaged("its checksum does not match"));
    }
    let has_pages = version != VERSION_WITHOUT_PAGES;
    let mut reader = Reader { bytes: payload, has_pages, checksums: PageChecksums::default() };
    let scanned = reader.files().ok_or(Damaged("its numbers do not fit its length"))?;
    if !reader.bytes.is_empty() {
        return Err(Damaged("bytes follow its end"));
    }
    // Checksums are in the order of the files, and must stay with them.
    if !scanned.is_sorted_by(|(a, _), (b, _)| a.name.as_bytes() < b.name.as_bytes()) {
        return Err(Damaged("its files are not in order"));
    }
    let mut manifest = Manifest::new(scanned).map_err(|_| Damaged("its counts cannot be"))?;
    manifest.set_checksums(reader.checksums).map_err(|_| Damaged("its pages cannot be"))?;
    Ok(manifest)
}

/// Pages as their lengths and checksums: they fill the chunk, which ends at `chunk_end`.
fn put_pages(out: &mut Vec<u8>, pages: &[PageChecksum], chunk_end: u64) {
    put(out, pages.len() as u64);
    let ends = pages.iter().skip(1).map(|page| page.at).chain([chunk_end]);
    for (page, end) in pages.iter().zip(ends) {
        put(out, end - page.at);
        out.extend_from_slice(&page.header.to_le_bytes());
        out.extend_from_slice(&page.body.to_le_bytes());
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// What is left to read. Everything returns `None` where the bytes run out, before anything is allocated for it.
struct Reader<'a> {
    bytes: &'a [u8],
    /// Whether row groups say which pages were recorded.
    has_pages: bool,
    checksums: PageChecksums,
}

impl<'a> Reader<'a> {
    fn files(&mut self) -> Option<Vec<(DataFile, Vec<RowGroup>)>> {
        let count = self.count(16)?;
        let mut files = Vec::with_capacity(count);
        for _ in 0..count {
            files.push(self.file()?);
        }
        Some(files)
    }

    fn file(&mut self) -> Option<(DataFile, Vec<RowGroup>)> {
        let name = self.text()?;
        let size = self.number()?;
        let modified_ns = i64::from_le_bytes(self.take(8)?.try_into().ok()?);
        let column = self.column()?;
        let count = self.count(6 + usize::from(self.has_pages))?;
        let mut groups = Vec::with_capacity(count);
        for _ in 0..count {
            let group = self.row_group()?;
            if self.has_pages {
                self.pages(&group)?;
            }
            self.checksums.end_row_group();
            groups.push(group);
        }
        let lengths = self.count(1)?;
        if lengths > PIECE_COUNTS_MAX {
            return None;
        }
        let mut pieces = Vec::with_capacity(lengths);
        for _ in 0..lengths {
            let seq_len = u32::try_from(self.number()?).ok()?;
            let counts = (0..count).map(|_| self.number()).collect::<Option<_>>()?;
            pieces.push(PieceCounts { seq_len, counts });
        }
        Some((DataFile { name, size, modified_ns, column, pieces }, groups))
    }

    fn column(&mut self) -> Option<TokenColumn> {
        let name = self.text()?;
        let &[ids, present_level, nullable_items] = self.take(3)? else { return None };
        let ids = [IdType::U16, IdType::U32, IdType::I32, IdType::I64, IdType::U64]
            .into_iter()
            .find(|candidate| *candidate as u8 == ids)?;
        let nullable_items = match nullable_items {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(TokenColumn { name, ids, present_level, nullable_items })
    }

    fn row_group(&mut self) -> Option<RowGroup> {
        Some(RowGroup {
            file: 0,
            number: 0,
            rows: self.number()?,
            tokens: self.number()?,
            documents: self.number()?,
            chunk_start: self.number()?,
            chunk_len: self.number()?,
            codec: self.take(1)?[0],
        })
    }

    /// The pages recorded of a row group. Where there are any, they fill its chunk to the last byte.
    fn pages(&mut self, group: &RowGroup) -> Option<()> {
        let count = self.count(9)?;
        let mut at = group.chunk_start;
        for _ in 0..count {
            let len = self.number()?;
            let page = PageChecksum { at, header: self.word()?, body: self.word()? };
            self.checksums.push_page(page);
            at = at.checked_add(len)?;
        }
        let chunk_end = group.chunk_start.checked_add(group.chunk_len)?;
        (count == 0 || at == chunk_end).then_some(())
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let len = self.count(1)?;
        Some(std::str::from_utf8(self.take(len)?).ok()?.to_owned())
    }

    /// A number of things of at least `bytes_each`, which must fit in what is left.
    fn count(&mut self, bytes_each: usize) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.bytes.len() / bytes_each).then_some(count)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::tests::{checksums_of, manifest};

    fn sample() -> Manifest {
        let mut sample = manifest(&[
            ("a.parquet", &[(3, 40, 3), (1 << 40, 1 << 50, 7)]),
            ("b.parquet", &[]),
            ("c/ü.parquet", &[(9, 8, 7)]),
        ]);
        sample.set_pieces(0, PieceCounts { seq_len: 2048, counts: vec![3, 1 << 49] });
        sample.set_pieces(2, PieceCounts { seq_len: 1, counts: vec![8] });
        sample
    }

    fn sample_with_checksums() -> Manifest {
        let mut sample = sample();
        sample.set_checksums(checksums_of(&sample)).unwrap();
        sample
    }

    /// The right checksum of a payload, however wrong it is.
    fn seal(bytes: &mut [u8]) {
        let crc = crc32fast::hash(&bytes[HEADER_LEN..]);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn what_was_stored_is_read_back() {
        assert_eq!(decode_manifest(&encode_manifest(&sample())), Ok(sample()));
        let recorded = sample_with_checksums();
        assert_eq!(decode_manifest(&encode_manifest(&recorded)), Ok(recorded));
        assert_eq!(decode_manifest(&encode_manifest(&manifest(&[]))), Ok(manifest(&[])));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        for manifest in [sample(), sample_with_checksums()] {
            let bytes = encode_manifest(&manifest);
            for at in 0..bytes.len() {
                assert!(decode_manifest(&bytes[..at]).is_err(), "cut at {at}");
                for bit in 0..8 {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    assert!(decode_manifest(&damaged).is_err(), "bit {bit} of byte {at}");
                }
            }
        }
    }

    #[test]
    fn payloads_with_a_right_checksum_and_wrong_numbers_are_refused() {
        for manifest in [sample(), sample_with_checksums()] {
            let bytes = encode_manifest(&manifest);
            for (at, version) in (HEADER_LEN..bytes.len()).flat_map(|at| [(at, 1), (at, 2)]) {
                for value in [0, 0x7f, 0x80, 0xff] {
                    let mut hostile = bytes.clone();
                    (hostile[8], hostile[at]) = (version, value);
                    seal(&mut hostile);
                    // Either refused or another manifest; never a panic or an allocation past the file's length.
                    let _ = decode_manifest(&hostile);
                }
            }
        }
    }

    #[test]
    fn pages_that_do_not_fill_their_chunk_are_refused() {
        let bytes = encode_manifest(&sample_with_checksums());
        // The lengths of both pages of the first row group: 30 and 70 bytes.
        let first = HEADER_LEN
            + bytes[HEADER_LEN..]
                .windows(19)
                .position(|window| window[..2] == [2, 30] && window[10] == 70)
                .expect("two pages");
        for (at, value) in [(first + 1, 31), (first + 1, 0), (first + 10, 69), (first + 10, 71), (first, 1)] {
            let mut hostile = bytes.clone();
            hostile[at] = value;
            seal(&mut hostile);
            assert!(matches!(decode_manifest(&hostile), Err(StoredManifestError::Damaged(_))), "{at}");
        }
    }

    #[test]
    fn files_in_another_order_are_refused() {
        let bytes = encode_manifest(&sample_with_checksums());
        let mut hostile = bytes.clone();
        let name = bytes.windows(9).position(|window| window == b"a.parquet").unwrap();
        hostile[name] = b'x';
        seal(&mut hostile);
        assert_eq!(
            decode_manifest(&hostile),
            Err(StoredManifestError::Damaged("its files are not in order"))
        );
    }

    /// Pages of one row group: their lengths and checksums.
    type Pages = Vec<(u64, u32, u32)>;

    /// A manifest of files whose row groups have these pages, or none that were recorded.
    fn manifest_of(files: &[Vec<Pages>]) -> Manifest {
        let base = manifest(&[("a", &[(3, 4, 3)])]);
        let mut checksums = PageChecksums::default();
        let mut scanned = Vec::new();
        for (index, groups) in files.iter().enumerate() {
            let file = DataFile { name: format!("part-{index:03}"), ..base.files()[0].clone() };
            let mut at = 4;
            let mut row_groups = Vec::new();
            for pages in groups {
                let chunk_start = at;
                let mut recorded = Vec::new();
                for &(len, header, body) in pages {
                    recorded.push(PageChecksum { at, header, body });
                    at += len;
                }
                checksums.push(&recorded);
                let chunk_len = at - chunk_start;
                row_groups.push(RowGroup { chunk_start, chunk_len, ..base.row_groups()[0] });
            }
            scanned.push((file, row_groups));
        }
        let mut manifest = Manifest::new(scanned).unwrap();
        manifest.set_checksums(checksums).unwrap();
        manifest
    }

    proptest! {
        #[test]
        fn any_pages_are_read_back_and_any_damage_to_them_is_no_panic(
            files in prop::collection::vec(
                prop::collection::vec(
                    prop::collection::vec((1_u64..1 << 33, any::<u32>(), any::<u32>()), 0..6),
                    0..4,
                ),
                0..5,
            ),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let manifest = manifest_of(&files);
            let bytes = encode_manifest(&manifest);
            prop_assert_eq!(decode_manifest(&bytes), Ok(manifest));
            let mut hostile = bytes;
            for (at, value) in damage {
                let at = HEADER_LEN + at.index(hostile.len() - HEADER_LEN);
                hostile[at] = value;
            }
            seal(&mut hostile);
            if let Ok(other) = decode_manifest(&hostile) {
                prop_assert_eq!(decode_manifest(&encode_manifest(&other)), Ok(other));
            }
        }
    }

    #[test]
    fn other_programs_and_other_versions_are_told_apart() {
        assert_eq!(decode_manifest(b""), Err(StoredManifestError::Foreign));
        assert_eq!(decode_manifest(&[b'P'; 100]), Err(StoredManifestError::Foreign));
        let mut bytes = encode_manifest(&sample());
        bytes[8] = 9;
        assert_eq!(decode_manifest(&bytes), Err(StoredManifestError::Version { found: 9 }));
    }
}
