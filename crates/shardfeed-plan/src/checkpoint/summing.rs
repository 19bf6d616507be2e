use std::collections::BTreeMap;
use std::ops::Range;

use crc32fast::Hasher;

/// The checksum (CRC-32) of bytes that come in pieces: in any order, some more than once. Whoever has a piece asks which of its bytes are
/// new, and brings the checksums of those.
#[derive(Clone, Debug)]
pub struct Summing {
    all: Range<u64>,
    /// Pieces that somebody has had, by where they begin. No two share a byte.
    pieces: BTreeMap<u64, Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    /// `None` until somebody brings it.
    sum: Option<u32>,
}

impl Summing {
    /// Of the bytes in this range.
    pub fn new(all: Range<u64>) -> Self {
        Self { all, pieces: BTreeMap::new() }
    }

    /// Where they begin.
    pub fn start(&self) -> u64 {
        self.all.start
    }

    /// What of a range nobody has had. It is the caller's from now on, who brings the checksum of each.
    pub fn claim(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let new = self.unclaimed(range);
        self.pieces.extend(new.iter().map(|range| (range.start, Piece { end: range.end, sum: None })));
        new
    }

    /// What of all bytes nobody has had.
    pub fn rest(&self) -> Vec<Range<u64>> {
        self.unclaimed(&self.all)
    }

    fn unclaimed(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let (mut at, end) = (range.start.max(self.all.start), range.end.min(self.all.end));
        let mut found = Vec::new();
        if at >= end {
            return found;
        }
        let before = self.pieces.range(..at).next_back();
        for (&start, piece) in before.into_iter().chain(self.pieces.range(at..end)) {
            if at < start {
                found.push(at..start);
            }
            at = at.max(piece.end);
        }
        if at < end {
            found.push(at..end);
        }
        found
    }

    /// The checksum of bytes that were claimed. With the last of them it returns that of all.
    pub fn add(&mut self, range: &Range<u64>, sum: u32) -> Option<u32> {
        let (mut start, mut end, mut sum) = (range.start, range.end, sum);
        // Neighbours become one: there are never more than gaps and what is on its way.
        if let Some((&before, &Piece { end: touch, sum: Some(first) })) =
            self.pieces.range(..start).next_back()
            && touch == start
        {
            self.pieces.remove(&start);
            (sum, start) = (joined(first, sum, end - start), before);
        }
        if let Some(&Piece { end: after, sum: Some(next) }) = self.pieces.get(&end) {
            self.pieces.remove(&end);
            (sum, end) = (joined(sum, next, after - end), after);
        }
        self.pieces.insert(start, Piece { end, sum: Some(sum) });
        ((start, end) == (self.all.start, self.all.end)).then_some(sum)
    }
}

/// The checksum of bytes and those that follow them.
fn joined(first: u32, next: u32, next_len: u64) -> u32 {
    let mut hasher = Hasher::new_with_initial(first);
    hasher.combine(&Hasher::new_with_initial_len(next, next_len));
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum_of(bytes: &[u8], range: &Range<u64>) -> u32 {
        crc32fast::hash(&bytes[range.start as usize..range.end as usize])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn whatever_comes_first_each_byte_is_summed_once_and_the_sum_is_that_of_all(
            bytes in proptest::collection::vec(any::<u8>(), 1..400),
            before in 0..50_u64, after in 0..50_u64,
            came in proptest::collection::vec((0..450_u64, 0..200_u64, 0..4_usize), 0..40),
        ) {
            let len = bytes.len() as u64;
            prop_assume!(before + after < len);
            let all = before..len - after;
            let mut summing = Summing::new(all.clone());
            // The naive version: who has had which byte.
            let mut had: Vec<bool> = (0..len).map(|at| !all.contains(&at)).collect();
            let mut brought = 0;
            let (mut late, mut found) = (Vec::new(), Vec::new());
            for (start, size, waits) in came {
                for range in summing.claim(&(start..start + size)) {
                    prop_assert!(start <= range.start && range.end <= start + size && range.start < range.end);
                    for at in range.clone() {
                        prop_assert!(!std::mem::replace(&mut had[at as usize], true), "byte {} twice", at);
                    }
                    late.push(range);
                }
                prop_assert!((start..(start + size).min(len)).all(|at| had[at as usize]));
                // Some bring what they claimed later than others.
                while late.len() > waits {
                    let range: Range<u64> = late.swap_remove(late.len() / 2);
                    brought += range.end - range.start;
                    found.push((brought, summing.add(&range, sum_of(&bytes, &range))));
                }
            }
            let rest = summing.rest();
            prop_assert_eq!(summing.claim(&(0..u64::MAX)), rest.clone());
            prop_assert_eq!(rest.iter().map(|range| range.end - range.start).sum::<u64>() as usize, had.iter().filter(|had| !**had).count());
            prop_assert!(summing.rest().is_empty());
            for range in late.into_iter().chain(rest) {
                brought += range.end - range.start;
                found.push((brought, summing.add(&range, sum_of(&bytes, &range))));
            }
            for (brought, found) in found {
                let expected = (brought == all.end - all.start).then(|| sum_of(&bytes, &all));
                prop_assert_eq!(found, expected);
            }
            prop_assert!(summing.pieces.len() == 1);
        }
    }

    #[test]
    fn neighbours_take_the_memory_of_one() {
        let mut summing = Summing::new(0..1 << 40);
        for at in (0..10_000).map(|at| at * 512) {
            for range in summing.claim(&(at..at + 512)) {
                assert_eq!(summing.add(&range, 0), None);
            }
        }
        assert_eq!(summing.pieces.len(), 1);
    }
}
