use super::hybrid::varint;
use super::unpack::{BLOCK, unpack_block, unpack_one};

/// Values of a delta-encoded page: each is told by how much it differs from the one before, in small blocks.
#[derive(Clone, Debug)]
pub(crate) struct Deltas {
    at: usize,
    /// Values of a block's part that share a bit width.
    part_len: usize,
    parts: usize,
    /// Of the current block: the smallest difference, where the widths of its parts stand, and the part at hand.
    min_delta: i64,
    widths_at: usize,
    part: usize,
    /// Bits of the part at hand, and of its values, those already taken.
    bit_width: u32,
    taken: usize,
    /// The value before the next; whether it is yet to be handed out, being the first.
    last: i64,
    has_first: bool,
    left: u64,
}

/// Far above what any writer makes: the format's own are blocks of 128 in 4 parts.
const BLOCK_VALUES_MAX: u64 = 1 << 20;

impl Deltas {
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let mut at = 0;
        let mut number = || varint(bytes, &mut at).ok_or("its deltas have no beginning");
        let (block_len, parts, count, first) = (number()?, number()?, number()?, number()?);
        let is_sound = (1..=BLOCK_VALUES_MAX).contains(&block_len)
            && parts > 0
            && block_len.is_multiple_of(parts)
            && (block_len / parts).is_multiple_of(BLOCK as u64);
        if !is_sound {
            return Err(format!("its deltas are in blocks of {block_len} values and {parts} parts"));
        }
        let parts = parts as usize;
        Ok(Self {
            at,
            part_len: block_len as usize / parts,
            parts,
            min_delta: 0,
            widths_at: 0,
            part: parts,
            bit_width: 0,
            taken: 0,
            last: unzigzag(first),
            has_first: true,
            left: count,
        })
    }

    /// How many values there are that nobody has taken.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Where they end, once all are taken: parts in which there are none take no bytes.
    pub fn end(&self) -> usize {
        let part = if self.part < self.parts { self.part_len / 8 * self.bit_width as usize } else { 0 };
        self.at + part
    }

    /// Hands the next `count` values to `take`, a few at a time, and in order. Those of 32-bit columns are right in
    /// their lower half.
    pub fn read(
        &mut self,
        bytes: &[u8],
        mut count: usize,
        mut take: impl FnMut(&[i64]),
    ) -> Result<(), String> {
        if count as u64 > self.left {
            return Err(format!("its deltas end early: {count} more are needed, {} are there", self.left));
        }
        self.left -= count as u64;
        if count > 0 && std::mem::take(&mut self.has_first) {
            take(&[self.last]);
            count -= 1;
        }
        while count > 0 {
            self.begin_part(bytes)?;
            // Blocks begin where the part begins: within one, what was taken before is unpacked again.
            let skipped = self.taken % BLOCK;
            let portion = (BLOCK - skipped).min(count);
            let deltas = self.unpack(bytes, skipped, portion)?;
            let mut values = [0; BLOCK];
            for (value, delta) in values[..portion].iter_mut().zip(&deltas[skipped..]) {
                self.last = self.last.wrapping_add(self.min_delta).wrapping_add(*delta);
                *value = self.last;
            }
            take(&values[..portion]);
            self.taken += portion;
            count -= portion;
        }
        Ok(())
    }

    /// Goes to the next part, or block, once one is used up.
    fn begin_part(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.part < self.parts && self.taken < self.part_len {
            return Ok(());
        }
        if self.part < self.parts {
            self.at += self.part_len / 8 * self.bit_width as usize;
            self.part += 1;
        }
        if self.part == self.parts {
            let min_delta = varint(bytes, &mut self.at).ok_or("its deltas end between blocks")?;
            self.min_delta = unzigzag(min_delta);
            self.widths_at = self.at;
            self.at += self.parts;
            self.part = 0;
        }
        let width = bytes.get(self.widths_at + self.part).ok_or("its deltas end between blocks")?;
        if *width > 64 {
            return Err(format!("deltas {width} bits wide"));
        }
        self.bit_width = (*width).into();
        self.taken = 0;
        Ok(())
    }

    /// The block at hand, right in those values that are wanted.
    fn unpack(&self, bytes: &[u8], skipped: usize, portion: usize) -> Result<[i64; BLOCK], String> {
        let width = self.bit_width as usize;
        let block_bit = self.at * 8 + (self.taken - skipped) * width;
        let end = block_bit + (skipped + portion) * width;
        if end > bytes.len() * 8 {
            return Err("its deltas end within a block".to_owned());
        }
        if self.bit_width <= 32 {
            let mut block = [0; BLOCK];
            unpack_block(bytes, block_bit / 8, self.bit_width, &mut block);
            return Ok(block.map(i64::from));
        }
        let mut deltas = [0; BLOCK];
        for (i, delta) in deltas.iter_mut().enumerate().take(skipped + portion).skip(skipped) {
            let value = unpack_one(bytes, block_bit + i * width, self.bit_width);
            *delta = value.ok_or("its deltas end within a block")?.cast_signed();
        }
        Ok(deltas)
    }
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hybrid::push_varint;
    use super::*;

    /// Writes values as the format says, in blocks of `parts` times `part_len`.
    fn write(values: &[i64], parts: usize, part_len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let first = values.first().copied().unwrap_or(0);
        for number in [(parts * part_len) as u64, parts as u64, values.len() as u64, zigzag(first)] {
            push_varint(&mut bytes, number);
        }
        let deltas: Vec<i64> = values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        for block in deltas.chunks(parts * part_len) {
            let min = block.iter().copied().min().unwrap();
            push_varint(&mut bytes, zigzag(min));
            let over: Vec<u64> = block.iter().map(|delta| delta.wrapping_sub(min).cast_unsigned()).collect();
            let widths: Vec<u32> = over
                .chunks(part_len)
                .map(|part| 64 - part.iter().fold(0, |all, one| all | one).leading_zeros())
                .collect();
            bytes.extend((0..parts).map(|part| widths.get(part).map_or(0, |&width| width as u8)));
            for (part, &width) in over.chunks(part_len).zip(&widths) {
                let from = bytes.len();
                bytes.resize(from + part_len / 8 * width as usize, 0);
                for (i, delta) in part.iter().enumerate() {
                    for b in 0..width as usize {
                        let at = i * width as usize + b;
                        bytes[from + at / 8] |= ((delta >> b & 1) as u8) << (at % 8);
                    }
                }
            }
        }
        bytes
    }

    fn zigzag(number: i64) -> u64 {
        ((number << 1) ^ (number >> 63)).cast_unsigned()
    }

    proptest! {
        #[test]
        fn portions_of_any_size_give_what_was_written(
            bits in 1_u32..=64,
            seed: u64,
            len in 0_u64..700,
            (parts, part_len) in prop_oneof![Just((4, 32)), Just((1, 128)), Just((2, 96))],
            portions in proptest::collection::vec(1_usize..100, 1..20),
        ) {
            let value = |i| (shardfeed_plan::mix(seed ^ i) & (u64::MAX >> (64 - bits))).cast_signed();
            let values: Vec<i64> = (0..len).map(value).collect();
            let bytes = write(&values, parts, part_len);
            let mut deltas = Deltas::new(&bytes).unwrap();
            let mut out = Vec::new();
            for portion in portions.into_iter().cycle() {
                let portion = portion.min(values.len() - out.len());
                if portion == 0 {
                    break;
                }
                deltas.read(&bytes, portion, |some| out.extend_from_slice(some)).unwrap();
            }
            prop_assert_eq!(out, values);
            prop_assert_eq!((deltas.left(), deltas.end()), (0, bytes.len()));
            prop_assert!(deltas.read(&bytes, 1, |_| ()).is_err());
        }

        #[test]
        fn any_bytes_give_values_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), plausible: bool) {
            if plausible {
                bytes.splice(0..0, [0x80, 1, 4, 0xff, 0x3f]);
            }
            if let Ok(mut deltas) = Deltas::new(&bytes) {
                let mut count = 0;
                let _ = deltas.read(&bytes, 1000, |some| count += some.len());
                prop_assert!(count <= 1000);
            }
        }
    }
}
