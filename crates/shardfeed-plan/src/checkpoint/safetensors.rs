use std::collections::BTreeMap;

use serde::Deserialize;

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

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Tensor(Stored),
    Notes(BTreeMap<String, String>),
}

impl SafetensorsHeader {
    /// How long a header is, by the first eight bytes of a file, without them. `None` if nobody would write such a header.
    pub fn length(first: [u8; 8]) -> Option<u64> {
        Some(u64::from_le_bytes(first)).filter(|len| (2..=HEADER_BYTES_MAX).contains(len))
    }

    /// Reads the header, without the eight bytes before it, of something that has `total` bytes with them. What it says is
    /// checked: types are known, sizes fit, and everything lies within.
    pub fn parse(json: &[u8], total: u64) -> Result<Self, String> {
        let values: BTreeMap<String, Value> =
            serde_json::from_slice(json).map_err(|error| format!("not as safetensors has it: {error}"))?;
        let len = json.len() as u64 + 8;
        let mut header = Self { len, ..Self::default() };
        for (name, value) in values {
            match value {
                Value::Notes(notes) if name == "__metadata__" => {
                    let note = notes.get("DCP_SHARDING_INFO");
                    header.saved_offsets =
                        note.map(|note| saved_offsets(note)).transpose()?.unwrap_or_default();
                }
                Value::Notes(_) => return Err(format!("{name}: no tensor")),
                Value::Tensor(stored) => {
                    let entry = stored.checked(len, total).map_err(|reason| format!("{name}: {reason}"))?;
                    header.tensors.insert(name, entry);
                }
            }
        }
        Ok(header)
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
