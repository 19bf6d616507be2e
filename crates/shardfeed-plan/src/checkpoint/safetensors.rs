use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::dtype::Dtype;

/// Bytes that the header of a safetensors file may take, as the format says.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// What a safetensors file, or a part of a file that is one, says of itself.
#[derive(Clone, Debug, Default)]
pub struct SafetensorsHeader {
    /// Its tensors, by name.
    pub tensors: BTreeMap<String, SafetensorsEntry>,
    /// Where parts of larger tensors begin in those, if they are such parts.
    pub saved_offsets: BTreeMap<String, Vec<u64>>,
    /// Bytes of the header, with the eight that say how long it is.
    pub len: u64,
}

/// A tensor of such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafetensorsEntry {
    /// What it is made of.
    pub dtype: Dtype,
    /// How large it is.
    pub shape: Vec<u64>,
    /// Its first byte, counted from the beginning of the file or part.
    pub offset: u64,
    /// How many bytes it takes.
    pub len: u64,
}

#[derive(Deserialize)]
struct Stored {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// A header as it is written. What is of no use here takes no memory, however much of it there is.
#[derive(Default)]
struct Written {
    tensors: BTreeMap<String, Stored>,
    notes: Notes,
}

/// `__metadata__`: texts by name, of which one matters.
#[derive(Default)]
struct Notes {
    sharding: Option<String>,
}

/// A text that nobody wants to have.
struct Passed;

struct InOrder<T>(PhantomData<T>);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder(PhantomData::<Self>))
    }
}

impl<'de> Visitor<'de> for InOrder<Written> {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
        let mut written = Written::default();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                written.notes = map.next_value()?;
            } else if written.tensors.insert(name.clone(), map.next_value()?).is_some() {
                return Err(A::Error::custom(format!("{name} is there twice")));
            }
        }
        Ok(written)
    }
}

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder(PhantomData::<Self>))
    }
}

impl<'de> Visitor<'de> for InOrder<Notes> {
    type Value = Notes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("texts by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Notes, A::Error> {
        let mut notes = Notes::default();
        while let Some(name) = map.next_key::<String>()? {
            if name == "DCP_SHARDING_INFO" {
                notes.sharding = Some(map.next_value()?);
            } else {
                map.next_value::<Passed>()?;
            }
        }
        Ok(notes)
    }
}

impl<'de> Deserialize<'de> for Passed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(InOrder(PhantomData::<Self>))
    }
}

impl Visitor<'_> for InOrder<Passed> {
    type Value = Passed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E>(self, _: &str) -> Result<Passed, E> {
        Ok(Passed)
    }
}

impl SafetensorsHeader {
    /// How long a header is, by the first eight bytes of a file, without them. `None` if nobody would write such a header.
    pub fn length(first: [u8; 8]) -> Option<u64> {
        Some(u64::from_le_bytes(first)).filter(|len| (2..=HEADER_BYTES_MAX).contains(len))
    }

    /// Reads the header, without the eight bytes before it, of something that has `total` bytes with them. What it says is
    /// checked: types are known, sizes fit, and everything lies within.
    pub fn parse(json: &[u8], total: u64) -> Result<Self, String> {
        let written: Written =
            serde_json::from_slice(json).map_err(|error| format!("not as safetensors has it: {error}"))?;
        let len = json.len() as u64 + 8;
        let sharding = written.notes.sharding.as_deref().map(saved_offsets).transpose()?;
        let mut header = Self { len, saved_offsets: sharding.unwrap_or_default(), ..Self::default() };
        for (name, stored) in written.tensors {
            let entry = stored.checked(len, total).map_err(|reason| format!("{name}: {reason}"))?;
            header.tensors.insert(name, entry);
        }
        Ok(header)
    }
}

impl SafetensorsHeader {
    /// The first bytes that belong to no tensor, of something that has `total`. The package that defines the format refuses such files.
    pub fn unclaimed(&self, total: u64) -> Option<Range<u64>> {
        let mut places: Vec<Range<u64>> =
            self.tensors.values().map(|entry| entry.offset..entry.offset + entry.len).collect();
        places.sort_unstable_by_key(|place| (place.start, place.end));
        places.push(total..total);
        let mut end = self.len;
        for place in places {
            if place.start > end {
                return Some(end..place.start);
            }
            end = end.max(place.end);
        }
        None
    }
}

/// What torch notes of parts of larger tensors.
fn saved_offsets(note: &str) -> Result<BTreeMap<String, Vec<u64>>, String> {
    #[derive(Deserialize)]
    struct Saved {
        saved_offsets: Vec<u64>,
    }
    let saved: BTreeMap<String, Saved> = serde_json::from_str(note)
        .map_err(|error| format!("DCP_SHARDING_INFO is not as torch writes it: {error}"))?;
    Ok(saved.into_iter().map(|(name, saved)| (name, saved.saved_offsets)).collect())
}

impl Stored {
    fn checked(self, header: u64, total: u64) -> Result<SafetensorsEntry, String> {
        let dtype = Dtype::of_safetensors(&self.dtype)
            .ok_or_else(|| format!("its type {} is not known here", self.dtype))?;
        // Types of four bits count half bytes, torch counts the bytes.
        let mut shape = self.shape;
        if dtype == Dtype::Float4E2m1fnX2 {
            let last = shape
                .last_mut()
                .filter(|last| last.is_multiple_of(2))
                .ok_or("an odd number of half bytes")?;
            *last /= 2;
        }
        let [begin, end] = self.data_offsets;
        let len =
            end.checked_sub(begin).ok_or_else(|| format!("it ends at {end}, before it begins at {begin}"))?;
        let needed = shape.iter().try_fold(dtype.bytes(), |product, &size| product.checked_mul(size));
        if needed != Some(len) {
            return Err(format!("{len} bytes are not what {dtype} of shape {shape:?} takes"));
        }
        if end.checked_add(header).is_none_or(|end| end > total) {
            return Err(format!(
                "it ends at byte {end} after the header, and there are {}",
                total.saturating_sub(header)
            ));
        }
        Ok(SafetensorsEntry { dtype, shape, offset: begin + header, len })
    }
}
