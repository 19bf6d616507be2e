use bytes::Bytes;

use super::hybrid::{Run, next_run};

/// Repetition or definition levels of one page, as runs: Parquet's hybrid of run-length and bit-packed groups.
#[derive(Clone, Debug)]
pub(super) struct Levels {
    bytes: Bytes,
    at: usize,
    bit_width: u32,
    run: Run,
}

impl Levels {
    /// Levels of at most `level_max`, which is at most 7.
    pub fn new(bytes: Bytes, level_max: u8) -> Self {
        let bit_width = 8 - level_max.leading_zeros();
        debug_assert!((1..=3).contains(&bit_width), "levels of a list column");
        Self { bytes, at: 0, bit_width, run: Run::EMPTY }
    }

    /// The next value and how often it follows at least, up to `max` (over 0). `None`: the bytes end here.
    pub fn peek(&mut self, max: usize) -> Option<(u8, usize)> {
        loop {
            match self.run {
                Run::Repeated { left: 0, .. } | Run::Packed { left: 0, .. } => {
                    self.run = next_run(&self.bytes, &mut self.at, self.bit_width)?;
                }
                Run::Repeated { value, left } => {
                    // Levels fit in a byte; what does not is no level, and refused as such.
                    return Some((u8::try_from(value).unwrap_or(u8::MAX), left.min(max)));
                }
                Run::Packed { bit, left } => {
                    let value = self.unpack(bit)?;
                    let mut count = 1;
                    while count < left.min(max)
                        && self.unpack(bit + count * self.bit_width as usize) == Some(value)
                    {
                        count += 1;
                    }
                    return Some((value, count));
                }
            }
        }
    }

    /// The next value and how often it follows at least, as far as can be told without looking at each: whoever
    /// takes less than a packed run would look at it again and again.
    pub fn peek_run(&mut self, max: usize) -> Option<(u8, usize)> {
        match self.peek(1)? {
            (value, _) if matches!(self.run, Run::Repeated { .. }) => {
                self.peek(max).map(|(_, count)| (value, count))
            }
            one => Some(one),
        }
    }

    /// Lets go of the bytes; everything else stays until they are back.
    pub fn unload(&mut self) {
        self.bytes = Bytes::new();
    }

    /// Brings back the bytes that were let go of.
    pub fn reload(&mut self, bytes: Bytes) {
        self.bytes = bytes;
    }

    /// Passes over `count` values that `peek` has shown.
    pub fn advance(&mut self, count: usize) {
        self.run.advance(count, self.bit_width);
    }

    fn unpack(&self, bit: usize) -> Option<u8> {
        let low = u16::from(*self.bytes.get(bit / 8)?);
        let high = u16::from(self.bytes.get(bit / 8 + 1).copied().unwrap_or(0));
        let value = (low | high << 8) >> (bit % 8);
        Some((value & ((1 << self.bit_width) - 1)) as u8)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hybrid::push_varint;
    use super::*;

    /// Writes runs as they are given: long ones repeated, others packed in eights.
    fn encode(values: &[u8], bit_width: usize, packed: bool) -> Vec<u8> {
        let mut out = Vec::new();
        if packed {
            let groups = values.len().div_ceil(8);
            let header = (groups as u32) << 1 | 1;
            push_varint(&mut out, header.into());
            let mut bits = vec![0_u8; groups * bit_width];
            for (i, value) in values.iter().enumerate() {
                for b in 0..bit_width {
                    let at = i * bit_width + b;
                    bits[at / 8] |= (value >> b & 1) << (at % 8);
                }
            }
            out.extend(bits);
        } else {
            for run in values.chunk_by(|a, b| a == b) {
                push_varint(&mut out, (run.len() as u64) << 1);
                out.push(run[0]);
            }
        }
        out
    }

    fn read_all(bytes: Vec<u8>, level_max: u8, count: usize, step: usize) -> Option<Vec<u8>> {
        let mut levels = Levels::new(bytes.into(), level_max);
        let mut out = Vec::new();
        while out.len() < count {
            let (value, n) = levels.peek(step.min(count - out.len()))?;
            levels.advance(n);
            out.extend(std::iter::repeat_n(value, n));
        }
        Some(out)
    }

    proptest! {
        #[test]
        fn reads_what_was_written(
            level_max in 1_u8..=7,
            runs in proptest::collection::vec((0_u8..8, 1_usize..40, any::<bool>()), 1..20),
            step in 1_usize..50,
        ) {
            let bit_width = 8 - level_max.leading_zeros() as usize;
            let mut bytes = Vec::new();
            let mut values = Vec::new();
            for (value, len, packed) in runs {
                // Only a multiple of eight can be packed in the middle.
                let len = if packed { len.next_multiple_of(8) } else { len };
                let run: Vec<u8> =
                    (0..len).map(|i| (value + if packed { (i / 3) as u8 } else { 0 }) % (level_max + 1)).collect();
                bytes.extend(encode(&run, bit_width, packed));
                values.extend(run);
            }
            prop_assert_eq!(read_all(bytes, level_max, values.len(), step), Some(values));
        }

        #[test]
        fn any_bytes_give_values_or_an_end(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
            level_max in 1_u8..=7,
        ) {
            let _ = read_all(bytes, level_max, 10_000, 100);
        }
    }

    #[test]
    fn a_long_packed_run_taken_one_by_one_is_not_looked_at_again_and_again() {
        // Four million values in one run: looking at the rest of it for each would take hours.
        let groups = 1_usize << 19;
        let mut bytes = Vec::new();
        push_varint(&mut bytes, (groups as u64) << 1 | 1);
        bytes.resize(bytes.len() + groups, 0xff);
        let mut levels = Levels::new(bytes.into(), 1);
        for left in (1..=groups * 8).rev() {
            assert_eq!(levels.peek_run(left), Some((1, 1)));
            levels.advance(1);
        }
        assert_eq!(levels.peek_run(1), None);
    }
}
