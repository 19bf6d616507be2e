use super::hybrid::{Run, next_run};
use super::unpack::{look_up_blocks, unpack_one};

/// Dictionary indexes of one page, looked up as they are unpacked.
#[derive(Clone, Debug)]
pub(super) struct Indexes {
    at: usize,
    bit_width: u32,
    run: Run,
}

/// Wider indexes than any dictionary has entries for.
const BIT_WIDTH_MAX: u8 = 32;

impl Indexes {
    /// Indexes of a page whose values are `bytes`: the first says how wide they are.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        match bytes.first() {
            Some(&width) if width <= BIT_WIDTH_MAX => {
                Ok(Self { at: 1, bit_width: width.into(), run: Run::EMPTY })
            }
            Some(width) => Err(format!("its dictionary indexes are {width} bits wide, more than 32")),
            None => Err("its dictionary indexes are missing".to_owned()),
        }
    }

    /// Fills `out` with the ids of the next indexes, read from the same bytes as ever.
    pub fn read<D: Copy, O: From<D>>(
        &mut self,
        bytes: &[u8],
        ids: &[D],
        mut out: &mut [O],
    ) -> Result<(), String> {
        while !out.is_empty() {
            let count = self.take_run(bytes, out.len())?;
            let (now, later) = out.split_at_mut(count);
            match self.run {
                Run::Repeated { value, .. } => {
                    let id = *ids.get(value as usize).ok_or_else(|| not_in_dictionary(value, ids))?;
                    now.fill_with(|| id.into());
                }
                Run::Packed { bit, .. } => look_up(bytes, bit, self.bit_width, ids, now)?,
            }
            self.run.advance(count, self.bit_width);
            out = later;
        }
        Ok(())
    }

    /// Passes over the next indexes.
    pub fn skip(&mut self, bytes: &[u8], mut count: usize) -> Result<(), String> {
        while count > 0 {
            let passed = self.take_run(bytes, count)?;
            self.run.advance(passed, self.bit_width);
            count -= passed;
        }
        Ok(())
    }

    /// How many of the next `max` indexes are in one run, which is the current one then.
    fn take_run(&mut self, bytes: &[u8], max: usize) -> Result<usize, String> {
        while self.run.left() == 0 {
            self.run = next_run(bytes, &mut self.at, self.bit_width)
                .ok_or_else(|| format!("its dictionary indexes end early: {max} more are needed"))?;
        }
        let count = self.run.left().min(max);
        if let Run::Packed { bit, .. } = self.run
            && (bytes.len() * 8).saturating_sub(bit) < count * self.bit_width as usize
        {
            return Err("its dictionary indexes end within a run".to_owned());
        }
        Ok(count)
    }
}

/// Unpacks indexes from bit `bit` on, all of which are there, and looks them up.
fn look_up<D: Copy, O: From<D>>(
    bytes: &[u8],
    mut bit: usize,
    width: u32,
    ids: &[D],
    out: &mut [O],
) -> Result<(), String> {
    let bits = width as usize;
    // Up to a byte's border one by one, then in blocks, which begin at one.
    let head = (0..out.len()).position(|count| (bit + count * bits).is_multiple_of(8)).unwrap_or(out.len());
    let (head, rest) = out.split_at_mut(head);
    for id in head {
        *id = look_up_one(bytes, bit, width, ids)?.into();
        bit += bits;
    }
    look_up_blocks(&bytes[bit / 8..], width, ids, rest).map_err(|index| not_in_dictionary(index, ids))
}

fn look_up_one<D: Copy>(bytes: &[u8], bit: usize, width: u32, ids: &[D]) -> Result<D, String> {
    let index = unpack_one(bytes, bit, width).ok_or("its dictionary indexes end early")? as u32;
    ids.get(index as usize).copied().ok_or_else(|| not_in_dictionary(index, ids))
}

fn not_in_dictionary<D>(index: u32, ids: &[D]) -> String {
    format!("index {index} into a dictionary of {}", ids.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hybrid::push_varint;
    use super::*;

    #[derive(Clone, Debug)]
    enum Part {
        Repeated(u32, usize),
        Packed(Vec<u32>),
    }

    fn write(parts: &[Part], width: u32) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut values) = (vec![width as u8], Vec::new());
        for part in parts {
            match part {
                Part::Repeated(value, count) => {
                    push_varint(&mut bytes, (*count as u64) << 1);
                    bytes.extend(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
                    values.extend(std::iter::repeat_n(*value, *count));
                }
                Part::Packed(packed) => {
                    push_varint(&mut bytes, (packed.len() as u64 / 8) << 1 | 1);
                    let from = bytes.len();
                    bytes.resize(from + packed.len() * width as usize / 8, 0);
                    for (i, value) in packed.iter().enumerate() {
                        for b in 0..width as usize {
                            let at = i * width as usize + b;
                            bytes[from + at / 8] |= ((value >> b & 1) as u8) << (at % 8);
                        }
                    }
                    values.extend(packed);
                }
            }
        }
        (bytes, values)
    }

    fn parts(width: u32) -> impl Strategy<Value = Vec<Part>> {
        let max = (1_u64 << width) as u32 - 1;
        let repeated = (0..=max, 1_usize..200).prop_map(|(value, count)| Part::Repeated(value, count));
        let packed = (1_usize..30, any::<u64>()).prop_map(move |(groups, seed)| {
            let value = |i| (shardfeed_plan::mix(seed ^ i) as u32) & max;
            Part::Packed((0..groups as u64 * 8).map(value).collect())
        });
        proptest::collection::vec(prop_oneof![repeated, packed], 1..6)
    }

    proptest! {
        #[test]
        fn portions_of_any_size_give_what_was_written(
            (width, parts) in (0_u32..=14).prop_flat_map(|width| (Just(width), parts(width))),
            portions in proptest::collection::vec((1_usize..90, any::<bool>()), 1..40),
        ) {
            let (bytes, values) = write(&parts, width);
            let ids: Vec<u32> = (0..1 << width).map(|index| index * 3 + 1).collect();
            let narrow: Vec<u16> = ids.iter().map(|&id| id as u16).collect();
            let mut indexes = Indexes::new(&bytes).unwrap();
            let mut at = 0;
            for (portion, is_read) in portions.into_iter().cycle() {
                let portion = portion.min(values.len() - at);
                if portion == 0 {
                    break;
                }
                if is_read {
                    // Into wide ids from wide and narrow ones, and into narrow ids.
                    let (mut out, mut widened, mut kept) = (vec![0_u32; portion], vec![0_u32; portion], vec![0_u16; portion]);
                    indexes.clone().read(&bytes, &narrow, &mut widened).unwrap();
                    indexes.clone().read(&bytes, &narrow, &mut kept).unwrap();
                    indexes.read(&bytes, &ids, &mut out).unwrap();
                    prop_assert!(kept.iter().map(|&id| u32::from(id)).eq(out.iter().copied()) && widened == out);
                    let expected: Vec<u32> = values[at..at + portion].iter().map(|&index| ids[index as usize]).collect();
                    prop_assert_eq!(out, expected);
                } else {
                    indexes.skip(&bytes, portion).unwrap();
                }
                at += portion;
            }
            prop_assert!(indexes.read(&bytes, &ids, &mut [0_u32; 1]).is_err());
        }

        #[test]
        fn any_bytes_give_ids_of_the_dictionary_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            entries in 0_u32..300,
            count in 0_usize..400,
        ) {
            let ids: Vec<u32> = (0..entries).map(|index| index + 1000).collect();
            let mut out = vec![0; count];
            if let Ok(mut indexes) = Indexes::new(&bytes) && indexes.read(&bytes, &ids, &mut out).is_ok() {
                prop_assert!(out.iter().all(|id| (1000..1000 + entries).contains(id)));
            }
        }
    }

    #[test]
    fn an_index_past_the_dictionary_is_named() {
        let (bytes, _) = write(&[Part::Packed((0..64).collect())], 6);
        let mut out = [0_u32; 64];
        let reason = Indexes::new(&bytes).unwrap().read(&bytes, &[5_u32; 60], &mut out).unwrap_err();
        assert!(reason.contains("index 60 into a dictionary of 60"), "{reason}");
        assert!(Indexes::new(&bytes).unwrap().read::<u32, _>(&bytes, &[], &mut out).is_err());
    }
}
