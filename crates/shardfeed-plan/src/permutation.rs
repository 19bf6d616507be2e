use std::sync::Arc;

use crate::{fisher_yates, key};

/// A shuffle of `0..len` that is asked item by item, either way, and holds kilobytes whatever `len` is.
///
/// Few things are shuffled by a table; many by a Feistel network over the next power of two, which is walked until it
/// lands within `len`. Neither changes between releases.
///
/// ```
/// use shardfeed_plan::Permutation;
///
/// let shuffled = Permutation::new(1_000_000_000, 7);
/// let item = shuffled.at(123_456_789);
/// assert_eq!(shuffled.place_of(item), 123_456_789);
/// ```
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Items by place, then places by item.
    Table(Arc<[u16]>),
    Network(Network),
}

/// Alternately one half of the bits is changed by what the other half says.
#[derive(Clone, Debug)]
struct Network {
    low_bits: u32,
    high_bits: u32,
    keys: [u64; ROUNDS],
}

/// Up to this many things a table is used: networks over so few are visibly biased.
const TABLE_LEN_MAX: u64 = 4096;

/// With four, statistics of neighbours still show; eight leave room.
const ROUNDS: usize = 8;

impl Permutation {
    /// The shuffle of `0..len` that belongs to a key.
    pub fn new(len: u64, key: u64) -> Self {
        let kind = if len <= TABLE_LEN_MAX {
            let items = fisher_yates(len as u32, key);
            let mut places = vec![0; items.len()];
            for (place, &item) in (0..).zip(&items) {
                places[item as usize] = place;
            }
            Kind::Table(items.into_iter().map(|item| item as u16).chain(places).collect())
        } else {
            Kind::Network(Network::new(len, key))
        };
        Self { len, kind }
    }

    /// How many things are shuffled.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to shuffle.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The item at a place.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.len, "place {place} of {}", self.len);
        match &self.kind {
            Kind::Table(table) => table[place as usize].into(),
            Kind::Network(network) => walk(place, self.len, |number| network.forward(number)),
        }
    }

    /// Puts the item in the stead of each place. Several take a processor little longer than one.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn at_each(&self, places: &mut [u64]) {
        let Kind::Network(network) = &self.kind else {
            for place in places {
                *place = self.at(*place);
            }
            return;
        };
        assert!(places.iter().all(|place| *place < self.len), "places {places:?} of {}", self.len);
        // First a step for all, of which none waits for another; then the few that have to go on.
        for number in &mut *places {
            *number = network.forward(*number);
        }
        for number in places {
            if *number >= self.len {
                *number = walk(*number, self.len, |number| network.forward(number));
            }
        }
    }

    /// Where an item is.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn place_of(&self, item: u64) -> u64 {
        assert!(item < self.len, "item {item} of {}", self.len);
        match &self.kind {
            Kind::Table(table) => table[(self.len + item) as usize].into(),
            Kind::Network(network) => walk(item, self.len, |number| network.backward(number)),
        }
    }
}

/// Numbers at or past `len` are stations on the way, not goals. Since every way is a circle through a number below
/// `len`, it ends.
fn walk(mut number: u64, len: u64, step: impl Fn(u64) -> u64) -> u64 {
    loop {
        number = step(number);
        if number < len {
            return number;
        }
    }
}

impl Network {
    fn new(len: u64, seed: u64) -> Self {
        let bits = u64::BITS - (len - 1).leading_zeros();
        let low_bits = bits / 2;
        let mut keys = [0; ROUNDS];
        for (round, round_key) in (0..).zip(&mut keys) {
            *round_key = key(&[seed, round]);
        }
        Self { low_bits, high_bits: bits - low_bits, keys }
    }

    #[inline]
    fn forward(&self, number: u64) -> u64 {
        let (mut low, mut high) = self.halves(number);
        for keys in self.keys.as_chunks::<2>().0 {
            high ^= stir(low ^ keys[0]) & ones(self.high_bits);
            low ^= stir(high ^ keys[1]) & ones(self.low_bits);
        }
        high << self.low_bits | low
    }

    fn backward(&self, number: u64) -> u64 {
        let (mut low, mut high) = self.halves(number);
        for keys in self.keys.as_chunks::<2>().0.iter().rev() {
            low ^= stir(high ^ keys[1]) & ones(self.low_bits);
            high ^= stir(low ^ keys[0]) & ones(self.high_bits);
        }
        high << self.low_bits | low
    }

    fn halves(&self, number: u64) -> (u64, u64) {
        (number & ones(self.low_bits), number >> self.low_bits)
    }
}

/// One multiplication, and its upper half over the lower: a round needs no more, since there are several.
fn stir(x: u64) -> u64 {
    let z = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 32)
}

/// As many ones, from the lowest bit on. Halves have at most 32 bits.
fn ones(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_values_of_version_1() {
        let first = |len, key, count| -> Vec<u64> {
            let shuffled = Permutation::new(len, key);
            (0..count).map(|place| shuffled.at(place)).collect()
        };
        assert_eq!(first(10, 7, 10), [6, 8, 2, 0, 1, 7, 5, 9, 4, 3]);
        assert_eq!(first(5000, 7, 5), [380, 860, 2_347, 2_149, 2_770]);
        assert_eq!(
            first(1_000_000_000, 7, 5),
            [446_808_696, 264_702_107, 310_577_691, 856_631_978, 560_665_992]
        );
        let huge = [17_808_857_901_846_396_402, 4_847_139_040_132_308_623, 12_980_302_637_761_819_242];
        assert_eq!(first(u64::MAX, 7, 3), huge);
    }

    #[test]
    fn every_item_has_one_place() {
        for len in (0..70).chain([4095, 4096, 4097, 5000, 8192, 8193, 100_000]) {
            let shuffled = Permutation::new(len, len * 3);
            let mut seen = vec![false; len as usize];
            for place in 0..len {
                let item = shuffled.at(place);
                assert!(!std::mem::replace(&mut seen[item as usize], true), "{item} of {len} twice");
                assert_eq!(shuffled.place_of(item), place);
            }
            let mut items: Vec<u64> = (0..len).collect();
            shuffled.at_each(&mut items);
            assert!((0..).zip(items).all(|(place, item)| shuffled.at(place) == item), "all of {len} at once");
        }
    }

    proptest! {
        #[test]
        fn of_any_length_it_is_undone(len in 1_u64.., key: u64, place: u64) {
            let shuffled = Permutation::new(len, key);
            let place = place % len;
            prop_assert!(shuffled.at(place) < len);
            prop_assert_eq!(shuffled.place_of(shuffled.at(place)), place);
            prop_assert_eq!(shuffled.at(shuffled.place_of(place)), place);
        }
    }

    /// The sum of squared differences between counts and what is expected, in units of what is expected.
    fn chi_square(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
    }

    #[test]
    fn networks_shuffle_as_well_as_chance() {
        // 255 degrees of freedom: 255 expected, standard deviation 22.6; five of those are far off for honest dice.
        const BINS: u64 = 256;
        for len in [4097, 6000, 1 << 13, 100_003, 1 << 20] {
            let (mut steps, mut pairs) = (vec![0; BINS as usize], vec![0; BINS as usize]);
            let mut first = vec![0; BINS as usize];
            for key in 0..64 {
                let shuffled = Permutation::new(len, key);
                for place in 0..len.min(2000) {
                    let (item, next) = (shuffled.at(place), shuffled.at(place + 1));
                    // How far from one item to the next, and where both are.
                    steps[((next + len - item) % len * BINS / len) as usize] += 1;
                    pairs[(item * 16 / len * 16 + next * 16 / len) as usize] += 1;
                }
            }
            for key in 0..20_000 {
                first[(Permutation::new(len, key).at(1) * BINS / len) as usize] += 1;
            }
            for (what, counts) in [("steps", steps), ("pairs", pairs), ("first", first)] {
                let found = chi_square(&counts);
                assert!((142.0..368.0).contains(&found), "{what} of {len}: {found}");
            }
        }
    }

    #[test]
    fn two_keys_agree_on_one_place_or_so() {
        let len = 10_000;
        let agreements: u64 = (0..50)
            .map(|key| {
                let (a, b) = (Permutation::new(len, key), Permutation::new(len, key + 1000));
                (0..len).filter(|&place| a.at(place) == b.at(place)).count() as u64
            })
            .sum();
        // One expected each: 50, standard deviation 7.
        assert!((15..85).contains(&agreements), "{agreements}");
    }
}
