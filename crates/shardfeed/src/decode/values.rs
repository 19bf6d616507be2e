use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;
use shardfeed_plan::IdType;

use super::delta::Deltas;
use super::foreign_values::ForeignValues;
use super::indexes::Indexes;

/// Token ids of a column chunk's pages, in order, in portions of any size.
///
/// The encodings that writers choose for token ids are decoded here, straight into the caller's memory; others are
/// left to the `parquet` crate.
pub(super) struct Values {
    ids: IdType,
    dictionary: Option<Dictionary>,
    /// Values of the page at hand, without its levels.
    bytes: Bytes,
    page: PageValues,
    left: usize,
    /// Ids that were decoded before it was known whether they are narrow. If they were not, they are next to be read.
    scratch: Vec<u32>,
    is_scratch_next: bool,
    /// An id was seen that needs more than 16 bits: others will follow.
    is_wide: bool,
    /// Pages that the crate decoded.
    foreign_pages: u32,
}

/// Memory to read ids into: with 16 bits each where they fit, which half the memory holds and half the time moves.
pub(crate) enum Room<'a> {
    Narrow(&'a mut [u16]),
    Wide(&'a mut [u32]),
}

enum PageValues {
    /// From byte `at` on.
    Plain {
        at: usize,
    },
    Indexes(Indexes),
    Deltas(Deltas),
    Foreign {
        reader: Box<ForeignValues>,
        encoding: Encoding,
        count: usize,
    },
}

/// The ids of a dictionary page; or the page itself, where an entry is no id: whether it is used, and in which row,
/// only the crate's reader tells.
enum Dictionary {
    /// All fit into 16 bits.
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
    Foreign(Page),
}

/// Why values could not be read.
pub(super) enum ValueError {
    /// The pages do not decode.
    Page(String),
    /// A number that is no token id.
    NotAnId(String),
}

impl From<String> for ValueError {
    fn from(reason: String) -> Self {
        Self::Page(reason)
    }
}

impl Values {
    pub fn new(ids: IdType) -> Self {
        let page = PageValues::Plain { at: 0 };
        Self {
            ids,
            dictionary: None,
            bytes: Bytes::new(),
            page,
            left: 0,
            scratch: Vec::new(),
            is_scratch_next: false,
            is_wide: false,
            foreign_pages: 0,
        }
    }

    /// Pages that the crate's reader decoded so far.
    pub fn foreign_pages(&self) -> u32 {
        self.foreign_pages
    }

    /// Bytes that the dictionary takes.
    pub fn dictionary_bytes(&self) -> u64 {
        match &self.dictionary {
            None => 0,
            Some(Dictionary::Narrow(ids)) => 2 * ids.capacity() as u64,
            Some(Dictionary::Wide(ids)) => 4 * ids.capacity() as u64,
            Some(Dictionary::Foreign(page)) => page.buffer().len() as u64,
        }
    }

    /// Goes through the dictionary once: after a while in which others were read it comes from memory in order far
    /// quicker than entry by entry, as they are looked up.
    pub fn warm(&self) {
        fn touch<T: Copy + Into<u32>>(ids: &[T]) {
            let lines = ids.iter().step_by(64 / size_of::<T>());
            std::hint::black_box(lines.fold(0, |sum: u32, &id| sum.wrapping_add(id.into())));
        }
        match &self.dictionary {
            Some(Dictionary::Narrow(ids)) => touch(ids),
            Some(Dictionary::Wide(ids)) => touch(ids),
            Some(Dictionary::Foreign(_)) | None => {}
        }
    }

    /// Takes a dictionary page.
    pub fn set_dictionary(&mut self, page: Page) -> Result<(), String> {
        let count = page.num_values() as usize;
        if !matches!(page.encoding(), Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) {
            return Err(format!("its dictionary is encoded as {}", page.encoding()));
        }
        let bytes = page.buffer();
        let Some(bytes) = count.checked_mul(id_bytes(self.ids)).and_then(|len| bytes.get(..len)) else {
            return Err(format!("its dictionary claims {count} entries in {} bytes", bytes.len()));
        };
        let mut narrow = vec![0; count];
        if read_plain_narrow(self.ids, bytes, &mut narrow) {
            self.dictionary = Some(Dictionary::Narrow(narrow));
            return Ok(());
        }
        drop(narrow);
        let mut ids = vec![0; count];
        self.dictionary = Some(match read_plain(self.ids, bytes, &mut ids) {
            Ok(()) => Dictionary::Wide(ids),
            Err(_) => Dictionary::Foreign(page),
        });
        Ok(())
    }

    /// Goes on with the `count` values of a data page.
    pub fn set_page(&mut self, bytes: Bytes, encoding: Encoding, count: usize) -> Result<(), String> {
        self.page = match (encoding, &self.dictionary) {
            (Encoding::PLAIN, _) => PageValues::Plain { at: 0 },
            (Encoding::DELTA_BINARY_PACKED, _) => PageValues::Deltas(Deltas::new(&bytes)?),
            (
                Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY,
                Some(Dictionary::Narrow(_) | Dictionary::Wide(_)),
            ) => PageValues::Indexes(Indexes::new(&bytes)?),
            (Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY, None) => {
                return Err("its values are in a dictionary, and there is none".to_owned());
            }
            _ => {
                self.foreign_pages += 1;
                let reader = Box::new(self.foreign(&bytes, encoding, count)?);
                PageValues::Foreign { reader, encoding, count }
            }
        };
        self.bytes = bytes;
        self.left = count;
        Ok(())
    }

    fn foreign(&self, bytes: &Bytes, encoding: Encoding, count: usize) -> Result<ForeignValues, String> {
        let dictionary = match &self.dictionary {
            Some(Dictionary::Foreign(page)) => Some(page),
            _ => None,
        };
        ForeignValues::open(self.ids, dictionary, bytes.clone(), encoding, count)
    }

    /// Lets go of the dictionary.
    pub fn unload_dictionary(&mut self) {
        self.dictionary = None;
    }

    /// Lets go of the page; where it stands is not forgotten.
    pub fn unload_page(&mut self) {
        self.bytes = Bytes::new();
        if let PageValues::Foreign { reader, .. } = &mut self.page {
            **reader = ForeignValues::closed(self.ids);
        }
    }

    /// Brings back the page that was let go of, its dictionary being there again.
    pub fn reload(&mut self, bytes: Bytes) -> Result<(), String> {
        if let PageValues::Foreign { encoding, count, .. } = self.page {
            let mut again = self.foreign(&bytes, encoding, count)?;
            again.skip(count - self.left).map_err(|error| match error {
                ValueError::Page(reason) | ValueError::NotAnId(reason) => reason,
            })?;
            self.page = PageValues::Foreign { reader: Box::new(again), encoding, count };
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Fills `out` with the next ids.
    pub fn read(&mut self, out: &mut [u32]) -> Result<(), ValueError> {
        if std::mem::take(&mut self.is_scratch_next) {
            out.copy_from_slice(&self.scratch);
            return Ok(());
        }
        self.take(out.len())?;
        let ids = self.ids;
        match (&mut self.page, &self.dictionary) {
            (PageValues::Plain { at }, _) => {
                let bytes = plain_bytes(&self.bytes, at, out.len() * id_bytes(ids))?;
                read_plain(ids, bytes, out).map_err(|bad| not_an_id(bad, ids))
            }
            (PageValues::Indexes(indexes), Some(Dictionary::Narrow(ids))) => {
                Ok(indexes.read(&self.bytes, ids, out)?)
            }
            (PageValues::Indexes(indexes), Some(Dictionary::Wide(ids))) => {
                Ok(indexes.read(&self.bytes, ids, out)?)
            }
            (PageValues::Deltas(deltas), _) => {
                let mut bad = None;
                let mut at = 0;
                deltas.read(&self.bytes, out.len(), |values| {
                    for (id, &value) in out[at..].iter_mut().zip(values) {
                        match to_id(value, ids) {
                            Ok(good) => *id = good,
                            Err(value) => bad = bad.or(Some(value)),
                        }
                    }
                    at += values.len();
                })?;
                bad.map_or(Ok(()), |bad| Err(not_an_id(bad, ids)))
            }
            (PageValues::Foreign { reader, .. }, _) => reader.read(out),
            (PageValues::Indexes(_), _) => Err(ValueError::Page("its dictionary is gone".to_owned())),
        }
    }

    /// Fills `room` with the next ids. False, and nothing is taken, if they may not fit into 16 bits: then they must be
    /// read into a wide one, as many of them.
    pub fn read_room(&mut self, room: Room) -> Result<bool, ValueError> {
        let out = match room {
            Room::Wide(out) => return self.read(out).map(|()| true),
            Room::Narrow(_) if self.is_wide => return Ok(false),
            Room::Narrow(out) => out,
        };
        let are_narrow = match (&mut self.page, &self.dictionary) {
            _ if out.len() > self.left => return Err(too_few(out.len(), self.left)),
            (PageValues::Indexes(indexes), Some(Dictionary::Narrow(ids))) => {
                indexes.read(&self.bytes, ids, out)?;
                true
            }
            (PageValues::Plain { at }, _) => {
                let mut end = *at;
                let bytes = plain_bytes(&self.bytes, &mut end, out.len() * id_bytes(self.ids))?;
                let are_narrow = read_plain_narrow(self.ids, bytes, out);
                if are_narrow {
                    *at = end;
                }
                are_narrow
            }
            (PageValues::Foreign { reader, .. }, _) => reader.read_narrow(out)?,
            (PageValues::Deltas(_), _) => {
                let mut scratch = std::mem::take(&mut self.scratch);
                scratch.resize(out.len(), 0);
                let read = self.read(&mut scratch);
                self.scratch = scratch;
                read?;
                let all = self.scratch.iter().fold(0, |all, id| all | id);
                if all <= u16::MAX.into() {
                    out.iter_mut().zip(&self.scratch).for_each(|(out, &id)| *out = id as u16);
                    return Ok(true);
                }
                self.is_scratch_next = true;
                false
            }
            (PageValues::Indexes(_), _) => false,
        };
        if are_narrow {
            self.left -= out.len();
            return Ok(true);
        }
        self.is_wide = true;
        Ok(false)
    }

    /// Passes over the next `count` ids.
    pub fn skip(&mut self, count: usize) -> Result<(), ValueError> {
        self.take(count)?;
        match &mut self.page {
            PageValues::Plain { at } => {
                plain_bytes(&self.bytes, at, count * id_bytes(self.ids))?;
                Ok(())
            }
            PageValues::Indexes(indexes) => Ok(indexes.skip(&self.bytes, count)?),
            PageValues::Deltas(deltas) => Ok(deltas.read(&self.bytes, count, |_| ())?),
            PageValues::Foreign { reader, .. } => reader.skip(count),
        }
    }

    fn take(&mut self, count: usize) -> Result<(), ValueError> {
        let Some(left) = self.left.checked_sub(count) else {
            return Err(too_few(count, self.left));
        };
        self.left = left;
        Ok(())
    }
}

/// The next `len` bytes.
fn plain_bytes<'a>(bytes: &'a Bytes, at: &mut usize, len: usize) -> Result<&'a [u8], ValueError> {
    let found = bytes.get(*at..).and_then(|rest| rest.get(..len));
    let found = found.ok_or_else(|| {
        ValueError::Page(format!(
            "its values end early: {len} more bytes are needed at {at} of {}",
            bytes.len()
        ))
    })?;
    *at += len;
    Ok(found)
}

/// Ids as they are, one after another. The first that is none is the error.
fn read_plain(ids: IdType, bytes: &[u8], out: &mut [u32]) -> Result<(), i64> {
    let is_bad = match ids {
        IdType::U16 | IdType::U32 | IdType::I32 => {
            // A copy, and one look at all bits together: only when that is suspicious, at each.
            let mut all = 0;
            for (id, value) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *id = u32::from_le_bytes(*value);
                all |= *id;
            }
            all > id_max(ids)
        }
        IdType::I64 | IdType::U64 => {
            let mut all = 0;
            for (id, value) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                let value = u64::from_le_bytes(*value);
                *id = value as u32;
                all |= value;
            }
            all > u64::from(u32::MAX)
        }
    };
    if !is_bad {
        return Ok(());
    }
    let bad = match ids {
        IdType::U16 | IdType::U32 | IdType::I32 => {
            out.iter().find(|&&id| id > id_max(ids)).map(|&id| i64::from(id.cast_signed()))
        }
        IdType::I64 | IdType::U64 => bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|value| i64::from_le_bytes(*value))
            .find(|&value| u32::try_from(value).is_err()),
    };
    bad.map_or(Ok(()), Err)
}

/// Ids as they are, if each fits into 16 bits.
fn read_plain_narrow(ids: IdType, bytes: &[u8], out: &mut [u16]) -> bool {
    // All bits together tell whether one is too large, or negative.
    match ids {
        IdType::U16 | IdType::U32 | IdType::I32 => {
            let mut all = 0;
            for (id, value) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                let value = u32::from_le_bytes(*value);
                *id = value as u16;
                all |= value;
            }
            all <= u16::MAX.into()
        }
        IdType::I64 | IdType::U64 => {
            let mut all = 0;
            for (id, value) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                let value = u64::from_le_bytes(*value);
                *id = value as u16;
                all |= value;
            }
            all <= u16::MAX.into()
        }
    }
}

/// A value as it comes out of a delta page, to an id.
fn to_id(value: i64, ids: IdType) -> Result<u32, i64> {
    match ids {
        IdType::U16 | IdType::U32 | IdType::I32 => {
            // Differences of 32-bit columns wrap at 32 bits, whatever the writer took them in.
            let id = value as u32;
            if id <= id_max(ids) { Ok(id) } else { Err(i64::from(id.cast_signed())) }
        }
        IdType::I64 | IdType::U64 => u32::try_from(value).map_err(|_| value),
    }
}

/// The largest id that a 32-bit column of this type holds; above, the highest bit makes it negative.
pub(super) fn id_max(ids: IdType) -> u32 {
    match ids {
        IdType::U16 => u16::MAX.into(),
        IdType::I32 => i32::MAX.cast_unsigned(),
        _ => u32::MAX,
    }
}

/// Bytes of an id as it is stored.
pub(super) fn id_bytes(ids: IdType) -> usize {
    match ids {
        IdType::U16 | IdType::U32 | IdType::I32 => 4,
        IdType::I64 | IdType::U64 => 8,
    }
}

pub(super) fn too_few(wanted: usize, found: usize) -> ValueError {
    ValueError::Page(format!("its levels announce {wanted} more values, but {found} are there"))
}

pub(super) fn not_an_id(value: i64, ids: IdType) -> ValueError {
    let text = match ids {
        IdType::U64 => value.cast_unsigned().to_string(),
        _ => value.to_string(),
    };
    let wrong = if text.starts_with('-') { "is negative" } else { "is over 4,294,967,295" };
    let wrong = if ids == IdType::U16 { "does not fit the column's type u16" } else { wrong };
    ValueError::NotAnId(format!("{text} {wrong}, so it is no token id; tokenize this row again"))
}
