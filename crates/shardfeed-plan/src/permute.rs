//! Keyed shuffles that give the same result for ever. No `rand`: its sequences change between releases, and a
//! saved state points into them.

/// The `SplitMix64` finaliser with its increment: every bit of `x` reaches every bit of the result.
pub const fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One number from several words; the order of the words matters.
pub fn key(words: &[u64]) -> u64 {
    // "SHARDF01", so that no other program's keys are ours by accident.
    words.iter().fold(0x5348_4152_4446_3031, |hash, &word| mix(hash ^ word))
}

/// A uniform shuffle of `0..len`. Feistel ciphers with cycle walking need no array but are visibly biased on
/// blocks as small as ours.
pub fn fisher_yates(len: u32, key: u64) -> Vec<u32> {
    let mut order = Vec::new();
    fisher_yates_into(&mut order, len, key);
    order
}

/// The same in a list that was used before.
pub(crate) fn fisher_yates_into(order: &mut Vec<u32>, len: u32, key: u64) {
    order.clear();
    order.extend(0..len);
    for i in (1..len as usize).rev() {
        // The high half of the product is uniform over 0..=i, without a division.
        let pick = (u128::from(mix(key.wrapping_add(i as u64))) * (i as u128 + 1)) >> 64;
        order.swap(i, pick as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values_of_version_1() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(key(&[]), 0x5348_4152_4446_3031);
        assert_eq!(key(&[7, 0, 1, 0]), 0xcc02_9d5d_a4e5_37b8);
        assert_eq!(fisher_yates(8, key(&[7, 0, 2, 0, 1, 0])), [7, 0, 3, 4, 5, 6, 2, 1]);
    }

    #[test]
    fn every_order_of_four_things_is_about_equally_likely() {
        let mut seen = std::collections::HashMap::new();
        for seed in 0..24_000 {
            *seen.entry(fisher_yates(4, key(&[seed]))).or_insert(0_u32) += 1;
        }
        assert_eq!(seen.len(), 24);
        // 1,000 expected each, standard deviation 31.
        assert!(seen.values().all(|count| (850..1150).contains(count)), "{seen:?}");
    }

    #[test]
    fn nothing_and_one_thing_have_one_order() {
        assert!(fisher_yates(0, 1).is_empty());
        assert_eq!(fisher_yates(1, 1), [0]);
    }
}
