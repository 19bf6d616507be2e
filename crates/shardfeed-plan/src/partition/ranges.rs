use std::ops::Range;

use super::PartitionError;

/// Checks each range by itself.
pub(super) fn check_each(ranges: &[(usize, usize)]) -> Result<(), PartitionError> {
    match ranges.iter().enumerate().find(|(_, (start, end))| start > end) {
        Some((worker, &(start, end))) => Err(PartitionError::RangeReversed { worker, start, end }),
        None => Ok(()),
    }
}

/// One range for each worker, which together are `0..len`, nothing twice.
pub(super) fn check_ranges(
    ranges: &[(usize, usize)],
    len: u64,
    world_size: u32,
) -> Result<Vec<Range<u64>>, PartitionError> {
    if ranges.len() != world_size as usize {
        return Err(PartitionError::RangeCount { ranges: ranges.len(), world_size });
    }
    check_each(ranges)?;
    if let Some((worker, &(start, end))) = ranges.iter().enumerate().find(|(_, range)| range.1 as u64 > len) {
        return Err(PartitionError::RangePastEnd { worker, start, end, len });
    }
    let mut sorted: Vec<_> = ranges.iter().enumerate().filter(|(_, (start, end))| start < end).collect();
    sorted.sort_by_key(|(_, range)| **range);
    let (mut covered, mut before) = (0, 0);
    for (worker, &(start, end)) in sorted {
        if start < covered {
            let (first, second) = (before.min(worker), before.max(worker));
            return Err(PartitionError::RangesOverlap { start, end: end.min(covered), first, second });
        }
        if start > covered {
            return Err(PartitionError::RangesIncomplete { start: covered as u64, end: start as u64, len });
        }
        (covered, before) = (end, worker);
    }
    if (covered as u64) < len {
        return Err(PartitionError::RangesIncomplete { start: covered as u64, end: len, len });
    }
    Ok(ranges.iter().map(|&(start, end)| start as u64..end as u64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_kind_is_refused_with_the_numbers() {
        let refused = |ranges: &[(usize, usize)]| check_ranges(ranges, 100, 2).unwrap_err().to_string();
        for (ranges, words) in [
            (&[(0, 100)][..], &["1 ranges", "2 workers"][..]),
            (&[(0, 50), (50, 80), (80, 100)], &["3 ranges", "2 workers"]),
            (&[(0, 50), (100, 50)], &["worker 1", "reversed", "100..50"]),
            (&[(0, 50), (50, 101)], &["worker 1", "50..101", "100 samples"]),
            (&[(40, 100), (0, 60)], &["40..60", "worker 0", "worker 1"]),
            (&[(0, 100), (20, 30)], &["20..30", "worker 0", "worker 1"]),
            (&[(0, 40), (60, 100)], &["40..60 of 100", "no range"]),
            (&[(10, 40), (40, 100)], &["0..10 of 100"]),
            (&[(40, 90), (0, 40)], &["90..100 of 100"]),
            (&[(0, 0), (0, 0)], &["0..100 of 100"]),
        ] {
            let message = refused(ranges);
            assert!(words.iter().all(|word| message.contains(word)), "{ranges:?}: {message}");
        }
    }

    #[test]
    fn any_order_and_empty_ranges_are_right() {
        assert_eq!(check_ranges(&[(50, 100), (0, 50)], 100, 2).unwrap(), [50..100, 0..50]);
        assert_eq!(check_ranges(&[(30, 30), (0, 100)], 100, 2).unwrap(), [30..30, 0..100]);
        assert_eq!(check_ranges(&[(0, 0), (0, 0)], 0, 2).unwrap(), [0..0, 0..0]);
    }
}
