use crate::StreamSettings;

/// What decides a rank's memory besides the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeeds {
    /// Bytes of an id in a batch: 8 or 4.
    pub bytes_per_id: u64,
    /// Bytes of a lane's page, compressed and decompressed, and of its dictionary.
    pub page_bytes: u64,
}

impl Default for MemoryNeeds {
    fn default() -> Self {
        Self { bytes_per_id: 8, page_bytes: 3 << 20 }
    }
}

/// Steps that a rank with this many rows of a batch prepares ahead when memory allows: so many tokens that several
/// threads find work in them while one decodes a window.
pub fn steps_ahead(rows: u64, seq_len: u64) -> u64 {
    (TOKENS_AHEAD / rows.saturating_mul(seq_len).max(1)).clamp(4, 32)
}

const TOKENS_AHEAD: u64 = 1 << 19;

/// Bytes that a rank holds when its windows are full and its pages of the usual size: an estimate, made from the
/// settings alone. The engine refuses a memory budget by its own count, not by this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankMemory {
    /// Decoded tokens in the windows of its lanes.
    pub windows: u64,
    /// Pages that its lanes decode from.
    pub pages: u64,
    /// Batches that are prepared or being filled.
    pub batches: u64,
}

/// Arrays of a batch: inputs, labels, positions, documents.
const ARRAYS_OF_BATCH: u64 = 4;
/// Sequences that a lane holds besides its windows: the one being decoded, its neighbour, one read by itself.
const SEQUENCES_BESIDES: u64 = 3;
/// Four bytes a token, one bit that says where rows begin, and what little there is per sequence.
const BYTES_OF_100_TOKENS: u64 = 413;

impl RankMemory {
    /// For a rank of this many lanes, each of this many sequences, and this many rows of a batch.
    pub fn estimate(
        settings: &StreamSettings,
        needs: &MemoryNeeds,
        lanes: u64,
        lane_sequences: u64,
        rows: u64,
    ) -> Self {
        // Decoded and not yet delivered are at most one and a half windows, since the two shuffles overlap by half; the
        // next window is decoded while half of this one is left.
        let window = (u64::from(settings.window) * 2).min(lane_sequences);
        let tokens =
            lanes.saturating_mul(window + SEQUENCES_BESIDES).saturating_mul(u64::from(settings.seq_len));
        let batch = ARRAYS_OF_BATCH * needs.bytes_per_id * u64::from(settings.seq_len);
        Self {
            windows: (u128::from(tokens) * u128::from(BYTES_OF_100_TOKENS) / 100).min(u64::MAX.into()) as u64,
            pages: lanes.saturating_mul(needs.page_bytes),
            // One more is with the trainer.
            batches: batch
                .saturating_mul(rows)
                .saturating_mul(steps_ahead(rows, settings.seq_len.into()) + 1),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.windows.saturating_add(self.pages).saturating_add(self.batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packing;

    #[test]
    fn memory_follows_lanes_and_rows_and_never_overflows() {
        let settings = StreamSettings::auto(2048, Packing::Concat, None, 0, 64);
        let memory = RankMemory::estimate(&settings, &MemoryNeeds::default(), 8, 1 << 20, 8);
        assert_eq!(memory.windows, 8 * 131 * 2048 * 413 / 100);
        assert_eq!(memory.pages, 24 << 20);
        assert_eq!(memory.batches, 33 * (4 * 8 * 8 * 2048));
        assert_eq!(memory.total(), memory.windows + memory.pages + memory.batches);
        // A lane shorter than its window holds no more than itself.
        let short = RankMemory::estimate(&settings, &MemoryNeeds::default(), 8, 5, 8);
        assert_eq!(short.windows, 8 * 8 * 2048 * 413 / 100);
        let huge = StreamSettings { seq_len: u32::MAX, window: u32::MAX, ..settings };
        let all = RankMemory::estimate(&huge, &MemoryNeeds::default(), u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(all.total(), u64::MAX);
    }
}
