use std::ops::Range;

/// Bytes that an item's directory may take.
const DIRECTORY_BYTES_MAX: u64 = 64 << 20;

const END: usize = 22;
const LOCATOR: usize = 20;
const END_64: usize = 56;
const ENTRY: usize = 46;
const HEADER: usize = 30;

/// What `torch.save` writes: an archive whose records are stored as they are.
#[derive(Clone, Debug)]
pub struct ZipItem {
    /// Its records, in the order of its directory.
    pub records: Vec<Record>,
}

/// A file within the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its name, with the archive's.
    pub name: String,
    /// Where its header begins, counted from the beginning of the item.
    pub header: u64,
    /// How many bytes it holds.
    pub size: u64,
    /// The checksum of its bytes. Zero where none was computed.
    pub crc: u32,
    /// Where the bytes for records end.
    limit: u64,
}

/// Why something is no such archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset} of the item: {reason}")]
pub struct ZipError {
    /// Where, counted from the beginning of the item.
    pub offset: u64,
    /// Why.
    pub reason: String,
}

impl ZipItem {
    /// Whether an item that begins so is an archive, and not safetensors. Those begin with the length of a header and a brace: a length
    /// may have the bytes of an archive's mark, but no archive has a brace there.
    pub fn begins(item: &[u8]) -> bool {
        item.starts_with(b"PK\x03\x04") && item.get(8) != Some(&b'{')
    }

    /// Reads the directory of an item of `len` bytes. `read` is asked for few ranges, all of them within the item.
    pub fn parse<E: From<ZipError>>(
        len: u64,
        read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let directory = find_directory(len, read)?;
        let bytes = read(directory.range.clone())?;
        let mut records = Vec::new();
        let mut at = 0;
        for _ in 0..directory.entries {
            let place = directory.range.start + at as u64;
            let (record, size) =
                entry(&bytes[at..], directory.range.start).map_err(|reason| error(place, reason))?;
            records.push(record);
            at += size;
        }
        if at != bytes.len() {
            return Err(
                error(directory.range.start + at as u64, "the directory is longer than its entries").into()
            );
        }
        Ok(Self { records })
    }

    /// The record of this name, whatever the archive is called.
    pub fn record(&self, name: &str) -> Option<&Record> {
        self.records.iter().find(|record| record.name.split_once('/').is_some_and(|(_, own)| own == name))
    }
}

impl Record {
    /// Where its bytes lie in the item.
    pub fn data<E: From<ZipError>>(
        &self,
        read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>, E>,
    ) -> Result<Range<u64>, E> {
        let header = read(self.header_range()?)?;
        Ok(self.data_after(&header)?)
    }

    /// Where the part of its header lies that says where its bytes begin.
    pub fn header_range(&self) -> Result<Range<u64>, ZipError> {
        let range = self.header..self.header.saturating_add(HEADER as u64);
        if range.end > self.limit {
            return Err(error(self.header, format!("{} would begin where records have ended", self.name)));
        }
        Ok(range)
    }

    /// Where its bytes lie in the item, by that part of its header.
    pub fn data_after(&self, header: &[u8]) -> Result<Range<u64>, ZipError> {
        if header[..4] != *b"PK\x03\x04" {
            return Err(error(
                self.header,
                format!("{} does not begin here, as the directory says", self.name),
            ));
        }
        let start = self.header + HEADER as u64 + u16_at(header, 26) as u64 + u16_at(header, 28) as u64;
        let end = start.checked_add(self.size).filter(|end| *end <= self.limit);
        let end = end.ok_or_else(|| {
            error(start, format!("{} would be {} bytes, past the end of the records", self.name, self.size))
        })?;
        Ok(start..end)
    }
}

struct Directory {
    range: Range<u64>,
    entries: u64,
}

fn find_directory<E: From<ZipError>>(
    len: u64,
    read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>, E>,
) -> Result<Directory, E> {
    let at = len
        .checked_sub(END as u64)
        .ok_or_else(|| error(0, format!("{len} bytes are too few for an archive")))?;
    // Both ends at once: nearly every archive of torch has both.
    let with_64 = (LOCATOR + END_64) as u64;
    let from = at.saturating_sub(with_64);
    let bytes = read(from..len)?;
    let (before, end) = bytes.split_at((at - from) as usize);
    if end[..4] != *b"PK\x05\x06" {
        return Err(error(at, "an archive would end here; the item is cut short, or no archive").into());
    }
    let locator =
        before.len().checked_sub(LOCATOR).filter(|&locator| before[locator..locator + 4] == *b"PK\x06\x07");
    let (size, offset, entries, limit) = match locator {
        None => (u32_at(end, 12) as u64, u32_at(end, 16) as u64, u16_at(end, 10) as u64, at),
        Some(locator) => {
            let place = u64_at(before, locator + 8);
            let expected = (from + locator as u64).checked_sub(END_64 as u64);
            if expected != Some(place) {
                return Err(error(
                    from + locator as u64,
                    format!("the end of the archive is said to be at byte {place}"),
                )
                .into());
            }
            let end = &before[locator - END_64..locator];
            if end[..4] != *b"PK\x06\x06" {
                return Err(error(place, "the end of a large archive is not where it should be").into());
            }
            (u64_at(end, 40), u64_at(end, 48), u64_at(end, 32), place)
        }
    };
    let range =
        offset..offset.checked_add(size).ok_or_else(|| error(at, "a directory of impossible size"))?;
    if range.end != limit || size > DIRECTORY_BYTES_MAX || entries > size / ENTRY as u64 {
        let what = format!("a directory of {entries} entries in {size} bytes at byte {offset} cannot be");
        return Err(error(at, what).into());
    }
    Ok(Directory { range, entries })
}

/// An entry of the directory, and how long it is.
fn entry(bytes: &[u8], limit: u64) -> Result<(Record, usize), String> {
    if bytes.len() < ENTRY || bytes[..4] != *b"PK\x01\x02" {
        return Err("an entry of the directory would begin here".to_owned());
    }
    let (name, extra, comment) =
        (u16_at(bytes, 28) as usize, u16_at(bytes, 30) as usize, u16_at(bytes, 32) as usize);
    let len = ENTRY + name + extra + comment;
    if bytes.len() < len {
        return Err(format!("an entry of {len} bytes where {} are left", bytes.len()));
    }
    let text = std::str::from_utf8(&bytes[ENTRY..ENTRY + name])
        .map_err(|_| "a name that is not UTF-8".to_owned())?;
    let (stored, mut size) = (u32_at(bytes, 20) as u64, u32_at(bytes, 24) as u64);
    let mut header = u32_at(bytes, 42) as u64;
    let mut wide = wide_fields(&bytes[ENTRY + name..ENTRY + name + extra])?;
    let mut stored_wide = stored;
    for field in [&mut size, &mut stored_wide, &mut header] {
        if *field == u32::MAX as u64 {
            *field = wide.next().ok_or("a length of eight bytes is missing")?;
        }
    }
    if u16_at(bytes, 10) != 0 || stored_wide != size {
        return Err(format!("{text} is compressed; torch writes no such records"));
    }
    Ok((Record { name: text.to_owned(), header, size, crc: u32_at(bytes, 16), limit }, len))
}

/// Numbers of eight bytes, of the field that holds those which do not fit four.
fn wide_fields(mut extra: &[u8]) -> Result<impl Iterator<Item = u64>, String> {
    let mut numbers: &[u8] = &[];
    while extra.len() >= 4 {
        let len = u16_at(extra, 2) as usize;
        let field = extra.get(4..4 + len).ok_or("an extra field that is cut short")?;
        if u16_at(extra, 0) == 1 {
            numbers = field;
        }
        extra = &extra[4 + len..];
    }
    Ok(numbers.chunks_exact(8).map(|bytes| u64_at(bytes, 0)))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn error(offset: u64, reason: impl Into<String>) -> ZipError {
    ZipError { offset, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of a directory, with these four-byte fields and extra fields.
    fn bytes(stored: u32, size: u32, header: u32, extra: &[u8]) -> Vec<u8> {
        let mut entry = [0; ENTRY];
        entry[..4].copy_from_slice(b"PK\x01\x02");
        entry[20..24].copy_from_slice(&stored.to_le_bytes());
        entry[24..28].copy_from_slice(&size.to_le_bytes());
        entry[28..30].copy_from_slice(&1_u16.to_le_bytes());
        entry[30..32].copy_from_slice(&(extra.len() as u16).to_le_bytes());
        entry[42..46].copy_from_slice(&header.to_le_bytes());
        [&entry[..], b"n", extra].concat()
    }

    fn wide(numbers: &[u64]) -> Vec<u8> {
        let mut field = vec![1, 0, (numbers.len() * 8) as u8, 0];
        for number in numbers {
            field.extend_from_slice(&number.to_le_bytes());
        }
        field
    }

    #[test]
    fn numbers_past_four_gibibytes_are_eight_bytes_wide() {
        const NONE: u32 = u32::MAX;
        let large = 5 << 30;
        let of = |bytes: &[u8]| entry(bytes, u64::MAX).map(|(record, len)| (record.size, record.header, len));
        assert_eq!(of(&bytes(7, 7, 9, &[])), Ok((7, 9, 47)));
        // Only those that do not fit are there, in a fixed order, possibly after another field.
        assert_eq!(of(&bytes(NONE, NONE, 9, &wide(&[large, large]))), Ok((large, 9, 67)));
        assert_eq!(of(&bytes(7, 7, NONE, &wide(&[large]))), Ok((7, large, 59)));
        let padded = [b"FB\x02\x00xx", &wide(&[large, large, large + 1])[..]].concat();
        assert_eq!(of(&bytes(NONE, NONE, NONE, &padded)), Ok((large, large + 1, 81)));
        assert_eq!(
            of(&bytes(NONE, NONE, 9, &wide(&[large]))).unwrap_err(),
            "a length of eight bytes is missing"
        );
        assert_eq!(of(&bytes(7, 8, 9, &[])).unwrap_err(), "n is compressed; torch writes no such records");
        assert_eq!(of(&bytes(7, 7, 9, &[1, 0, 9, 0])).unwrap_err(), "an extra field that is cut short");
    }
}
