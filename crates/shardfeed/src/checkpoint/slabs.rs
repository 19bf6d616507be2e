use std::ops::Range;

use shardfeed_plan::checkpoint::{Cover, StoredTensor};

use crate::error::Result;

/// Pieces of a tensor that lie apart, each of which somebody reads: its chunks where they have to be decompressed as a whole, so that each of
/// them is once, and otherwise pieces of at most `bytes_max` bytes. Chunks that are compressed and lie over each other are one piece.
pub(crate) fn for_each_piece(
    tensor: &StoredTensor,
    bytes_max: u64,
    each: &mut impl FnMut(&[Range<u64>]) -> Result<()>,
) -> Result<()> {
    let whole = || tensor.shape.iter().map(|&size| 0..size).collect::<Vec<_>>();
    if !is_packed(tensor) {
        return for_each_slab(&whole(), tensor.dtype.bytes(), bytes_max, each);
    }
    if tensor.cover() != Cover::Exact {
        return each(&whole());
    }
    for chunk in tensor.chunks.iter().filter(|chunk| chunk.part.volume() > 0) {
        let part = (0..tensor.shape.len()).map(|dim| chunk.part.offsets[dim]..chunk.part.end(dim));
        each(&part.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Whether parts of it are compressed.
pub(crate) fn is_packed(tensor: &StoredTensor) -> bool {
    tensor.chunks.iter().any(|chunk| !chunk.item.transforms.is_empty())
}

/// Cuts a tensor, or a box of it, into pieces of at most `bytes_max` bytes that lie together where it lies row by row; an element is
/// the least. Calls `each` with the range of each dimension, until it fails.
fn for_each_slab(
    part: &[Range<u64>],
    element_bytes: u64,
    bytes_max: u64,
    each: &mut impl FnMut(&[Range<u64>]) -> Result<()>,
) -> Result<()> {
    if part.iter().any(Range::is_empty) {
        return Ok(());
    }
    let mut ranges = part.to_vec();
    cut(&mut ranges, 0, element_bytes, bytes_max, each)
}

fn cut(
    ranges: &mut [Range<u64>],
    dim: usize,
    element: u64,
    max: u64,
    each: &mut impl FnMut(&[Range<u64>]) -> Result<()>,
) -> Result<()> {
    let count = |range: &Range<u64>| range.end - range.start;
    let row: u64 = ranges.get(dim + 1..).unwrap_or(&[]).iter().map(count).product::<u64>() * element;
    if dim == ranges.len() {
        return each(ranges);
    }
    let whole = ranges[dim].clone();
    let rows = (max / row).max(1);
    let mut start = whole.start;
    while start < whole.end {
        let end = whole.end.min(start.saturating_add(rows));
        ranges[dim] = start..end;
        if row > max {
            cut(ranges, dim + 1, element, max, each)?;
        } else {
            each(ranges)?;
        }
        start = end;
    }
    ranges[dim] = whole;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_and_fill_the_whole() {
        let cases: [(&[u64], u64, u64); 7] = [
            (&[], 4, 1),
            (&[5], 4, 8),
            (&[3, 4, 5], 2, 1),
            (&[3, 4, 5], 2, 20),
            (&[3, 4, 5], 2, 50),
            (&[3, 4, 5], 2, 1000),
            (&[0, 4], 1, 9),
        ];
        for (shape, element, max) in cases {
            let part: Vec<Range<u64>> = shape.iter().map(|&size| 0..size).collect();
            let mut next = 0;
            for_each_slab(&part, element, max, &mut |ranges| {
                let at = shape.iter().zip(ranges).fold(0, |at, (size, range)| at * size + range.start);
                let count: u64 = ranges.iter().map(|range| range.end - range.start).product();
                assert_eq!(at, next, "{shape:?}");
                assert!(count == 1 || count * element <= max);
                next += count;
                Ok(())
            })
            .unwrap();
            assert_eq!(next, shape.iter().product::<u64>(), "{shape:?}");
        }
    }
}
