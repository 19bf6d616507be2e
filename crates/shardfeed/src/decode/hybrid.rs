//! Parquet's hybrid of run-length and bit-packed runs, which levels and dictionary indexes are written in.

/// Values that follow each other, in one of the two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// `left` times the same value.
    Repeated { value: u32, left: usize },
    /// `left` values, packed from bit `bit` of the bytes on.
    Packed { bit: usize, left: usize },
}

impl Run {
    /// Nothing: what comes before the first run.
    pub const EMPTY: Self = Self::Repeated { value: 0, left: 0 };

    pub fn left(&self) -> usize {
        match *self {
            Self::Repeated { left, .. } | Self::Packed { left, .. } => left,
        }
    }

    /// Passes over `count` values, of which there are as many.
    pub fn advance(&mut self, count: usize, bit_width: u32) {
        match self {
            Self::Repeated { left, .. } => *left -= count,
            Self::Packed { bit, left } => {
                *left -= count;
                *bit += count * bit_width as usize;
            }
        }
    }
}

/// The run that begins at `at`, which moves behind it. `None`: the bytes end here, or make no sense.
pub(super) fn next_run(bytes: &[u8], at: &mut usize, bit_width: u32) -> Option<Run> {
    let header = varint(bytes, at).and_then(|header| usize::try_from(header).ok())?;
    if header & 1 == 0 {
        let mut value = [0; 4];
        let len = bit_width.div_ceil(8) as usize;
        value[..len].copy_from_slice(bytes.get(*at..)?.get(..len)?);
        *at += len;
        return Some(Run::Repeated { value: u32::from_le_bytes(value), left: header >> 1 });
    }
    let values = (header >> 1).checked_mul(8)?;
    let bit = at.checked_mul(8)?;
    // Writers cut the last group short; values past the end are noticed when they are asked for.
    *at = at.checked_add(values.checked_mul(bit_width as usize)? / 8)?.min(bytes.len());
    Some(Run::Packed { bit, left: values })
}

/// An unsigned number in seven-bit groups, the lowest first. At most 64 bits.
pub(super) fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let group = u64::from(byte & 0x7f);
        number |= group << shift;
        if group << shift >> shift != group {
            return None;
        }
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Writes what [`varint`] reads.
#[cfg(test)]
pub(super) fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
