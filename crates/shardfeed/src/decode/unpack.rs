//! Bit-packed values, 32 at a time: the innermost loop of dictionary and delta pages.

/// Values that are unpacked together. As many take a whole number of 32-bit words at any width.
pub(super) const BLOCK: usize = 32;

/// Bytes that a block of the widest values takes, and what is read beyond a value to have it in one piece.
const BLOCK_BYTES_MAX: usize = BLOCK * 4 + 8;

/// The `BLOCK` values of `bit_width` bits that begin at byte `at`. Where the bytes end, zeros follow.
pub(super) fn unpack_block(bytes: &[u8], at: usize, bit_width: u32, out: &mut [u32; BLOCK]) {
    let len = BLOCK / 8 * bit_width as usize + 8;
    match bytes.get(at..).and_then(|rest| rest.get(..len)) {
        Some(block) => unpack_any(block, bit_width, out),
        None => {
            // Near the end of the page: what is there, and zeros.
            let mut padded = [0; BLOCK_BYTES_MAX];
            let rest = bytes.get(at..).unwrap_or_default();
            let rest = &rest[..rest.len().min(len)];
            padded[..rest.len()].copy_from_slice(rest);
            unpack_any(&padded[..len], bit_width, out);
        }
    }
}

/// One value of up to 64 bits that begins at bit `bit`; `None` past the end.
pub(super) fn unpack_one(bytes: &[u8], bit: usize, bit_width: u32) -> Option<u64> {
    let end = bit.checked_add(bit_width as usize)?;
    if end > bytes.len().checked_mul(8)? {
        return None;
    }
    if bit_width == 0 {
        return Some(0);
    }
    let mut word = [0; 16];
    let part = &bytes[bit / 8..end.div_ceil(8)];
    word[..part.len()].copy_from_slice(part);
    let value = u128::from_le_bytes(word) >> (bit % 8);
    Some((value as u64) & (u64::MAX >> (64 - bit_width)))
}

/// Looks up as many indexes as `out` has room for, which begin with the first byte. An index that has no id is the
/// error.
pub(super) fn look_up_blocks<D: Copy, O: From<D>>(
    bytes: &[u8],
    bit_width: u32,
    ids: &[D],
    out: &mut [O],
) -> Result<(), u32> {
    macro_rules! by_width {
        ($($width:literal)*) => {
            match bit_width {
                $($width => look_up::<$width, D, O>(bytes, ids, out),)*
                _ => {
                    let id = *ids.first().ok_or(0_u32)?;
                    out.fill_with(|| id.into());
                    Ok(())
                }
            }
        };
    }
    by_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
}

/// Values of a packed run come in groups of eight, which take as many bytes as a value has bits. Runs are short,
/// a few hundred values with most writers, so that nothing larger would fit them well.
const GROUP: usize = 8;

fn look_up<const WIDTH: usize, D: Copy, O: From<D>>(
    bytes: &[u8],
    ids: &[D],
    out: &mut [O],
) -> Result<(), u32> {
    // As far as what is read beyond a value is there as well.
    let whole = bytes.len().saturating_sub(8) / WIDTH * GROUP;
    let (now, rest) = out.split_at_mut(whole.min(out.len() / GROUP * GROUP));
    for (at, out) in now.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        let group = &bytes[at * WIDTH..at * WIDTH + WIDTH + 8];
        for (i, id) in out.iter_mut().enumerate() {
            // A check that never fails costs less than a pass that finds the largest index.
            let index = value::<WIDTH>(group, i);
            *id = (*ids.get(index as usize).ok_or(index)?).into();
        }
    }
    let mut bytes = bytes.get(now.len() / GROUP * WIDTH..).unwrap_or_default();
    for out in rest.chunks_mut(BLOCK) {
        // A part of a group, or near the end of the page: what follows is none of ours.
        let mut block = [0; BLOCK];
        unpack_block(bytes, 0, WIDTH as u32, &mut block);
        for (id, &index) in out.iter_mut().zip(&block) {
            *id = (*ids.get(index as usize).ok_or(index)?).into();
        }
        bytes = bytes.get(BLOCK / 8 * WIDTH..).unwrap_or_default();
    }
    Ok(())
}

fn unpack_any(block: &[u8], bit_width: u32, out: &mut [u32; BLOCK]) {
    macro_rules! by_width {
        ($($width:literal)*) => {
            match bit_width {
                $($width => unpack::<$width>(block, out),)*
                _ => out.fill(0),
            }
        };
    }
    by_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
}

#[inline]
fn unpack<const WIDTH: usize>(block: &[u8], out: &mut [u32; BLOCK]) {
    let block = &block[..BLOCK / 8 * WIDTH + 8];
    for (i, out) in out.iter_mut().enumerate() {
        *out = value::<WIDTH>(block, i);
    }
}

/// Value `i` of a block. With a width known to the compiler, every position and shift is a constant.
#[inline]
fn value<const WIDTH: usize>(block: &[u8], i: usize) -> u32 {
    let bit = i * WIDTH;
    let word: [u8; 8] = block[bit / 8..bit / 8 + 8].try_into().expect("eight bytes");
    let word = u64::from_le_bytes(word) >> (bit % 8);
    (word & (u64::MAX >> (64 - WIDTH))) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pack(values: &[u64], bit_width: u32) -> Vec<u8> {
        let mut bytes = vec![0_u8; (values.len() * bit_width as usize).div_ceil(8)];
        for (i, value) in values.iter().enumerate() {
            for b in 0..bit_width as usize {
                let at = i * bit_width as usize + b;
                bytes[at / 8] |= ((value >> b & 1) as u8) << (at % 8);
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn a_block_is_what_was_packed(bit_width in 0_u32..=32, seed: u64, before in 0_usize..5, after in 0_usize..12) {
            let values: Vec<u64> =
                (0..BLOCK as u64).map(|i| shardfeed_plan::mix(seed ^ i) & ((1 << bit_width) - 1)).collect();
            let mut bytes = vec![0xff; before];
            bytes.extend(pack(&values, bit_width));
            bytes.resize(bytes.len() + after, 0xff);
            let mut out = [7; BLOCK];
            unpack_block(&bytes, before, bit_width, &mut out);
            prop_assert!(out.iter().map(|&value| u64::from(value)).eq(values.iter().copied()));
            for (i, &value) in values.iter().enumerate() {
                let bit = before * 8 + i * bit_width as usize;
                prop_assert_eq!(unpack_one(&bytes, bit, bit_width), Some(value));
            }
        }

        #[test]
        fn wide_values_are_unpacked_one_by_one(bit_width in 33_u32..=64, seed: u64) {
            let values: Vec<u64> = (0..9).map(|i| shardfeed_plan::mix(seed ^ i) & (u64::MAX >> (64 - bit_width))).collect();
            let bytes = pack(&values, bit_width);
            for (i, &value) in values.iter().enumerate() {
                prop_assert_eq!(unpack_one(&bytes, i * bit_width as usize, bit_width), Some(value));
            }
            prop_assert_eq!(unpack_one(&bytes, values.len() * bit_width as usize, bit_width), None);
        }
    }

    #[test]
    fn past_the_end_are_zeros() {
        let mut out = [7; BLOCK];
        unpack_block(&[0xff; 3], 1, 8, &mut out);
        assert_eq!(out[..3], [0xff, 0xff, 0]);
        unpack_block(&[0xff; 3], 9, 32, &mut out);
        assert_eq!(out, [0; BLOCK]);
    }
}
