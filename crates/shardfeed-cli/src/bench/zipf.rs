use shardfeed::mix;

/// About as many ids as common tokenizers have.
const VOCABULARY: u64 = 50_000;
/// One slot for each draw that 20 bits tell apart: the rarest id has one or two.
const SLOT_BITS: u32 = 20;

/// Token ids as often as words are in text: the n-th most frequent about 1/n as often as the first.
pub struct Zipf {
    slots: Vec<u16>,
}

impl Zipf {
    /// The table from which ids are drawn.
    pub fn new() -> Self {
        let weights = (1..=VOCABULARY).map(|frequency_rank| 1.0 / frequency_rank as f64);
        let total: f64 = weights.clone().sum();
        let slots_max = 1_usize << SLOT_BITS;
        let mut slots = Vec::with_capacity(slots_max);
        let mut up_to = 0.0;
        for (frequency_rank, weight) in (0..VOCABULARY).zip(weights) {
            up_to += weight / total * slots_max as f64;
            // A prime that does not divide the vocabulary: every id once, and frequent ones are not neighbours.
            let id = frequency_rank * 7_919 % VOCABULARY;
            slots.resize((up_to.round() as usize).min(slots_max), id as u16);
        }
        slots.resize(slots_max, 0);
        Self { slots }
    }

    /// `len` ids; another key, other ids.
    pub fn row(&self, len: usize, key: u64) -> Vec<u32> {
        const DRAWS: usize = (u64::BITS / SLOT_BITS) as usize;
        let mask = self.slots.len() as u64 - 1;
        let mut ids = Vec::with_capacity(len + DRAWS);
        let mut word_index = 0;
        while ids.len() < len {
            let word = mix(key.wrapping_add(word_index));
            word_index += 1;
            ids.extend(
                (0..DRAWS as u32)
                    .map(|draw| u32::from(self.slots[(word >> (draw * SLOT_BITS) & mask) as usize])),
            );
        }
        ids.truncate(len);
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_within_the_vocabulary_and_the_first_is_about_a_twelfth_of_all() {
        let zipf = Zipf::new();
        let ids = zipf.row(100_001, 3);
        assert_eq!(ids.len(), 100_001);
        assert!(ids.iter().all(|&id| u64::from(id) < VOCABULARY));
        let first = ids.iter().filter(|&&id| id == 0).count();
        assert!((8_000..10_000).contains(&first), "{first}");
        assert_ne!(ids, zipf.row(100_001, 4));
    }

    #[test]
    fn nearly_every_id_can_be_drawn() {
        let mut drawable = Zipf::new().slots;
        drawable.sort_unstable();
        drawable.dedup();
        assert_eq!(drawable.len() as u64, VOCABULARY);
    }
}
