use std::collections::BTreeSet;

/// Cells that overlapping boxes may cut their tensor into before it is said that nobody can tell.
const CELLS_MAX: usize = 1 << 20;

/// Boxes that are compared with each other before the same is said. A grid of 400 by 400 takes half as many.
const LOOKS_MAX: usize = 1 << 27;

/// A box of a tensor: where it begins, and how large it is, in each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// First index of each dimension.
    pub offsets: Vec<u64>,
    /// How many of each dimension.
    pub sizes: Vec<u64>,
}

/// How boxes fill the tensor that they are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// Every element lies in exactly one.
    Exact,
    /// Every element lies in at least one, some in several.
    Overlapping,
    /// So many elements lie in none.
    Missing(u64),
    /// Too many boxes overlap in too many ways.
    Unknown,
}

impl Part {
    /// A whole tensor.
    pub fn whole(shape: &[u64]) -> Self {
        Self { offsets: vec![0; shape.len()], sizes: shape.to_vec() }
    }

    /// How many elements it holds.
    pub fn volume(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// The first index after it, in a dimension.
    pub fn end(&self, dim: usize) -> u64 {
        self.offsets[dim] + self.sizes[dim]
    }

    /// Whether it lies in a tensor of this shape.
    pub fn is_within(&self, shape: &[u64]) -> bool {
        self.offsets.len() == shape.len()
            && self.sizes.len() == shape.len()
            && (0..shape.len()).all(|dim| {
                self.offsets[dim].checked_add(self.sizes[dim]).is_some_and(|end| end <= shape[dim])
            })
    }

    /// What two boxes share, if anything.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let dims = 0..self.sizes.len();
        let offsets: Vec<u64> = dims.clone().map(|dim| self.offsets[dim].max(other.offsets[dim])).collect();
        let ends = dims.map(|dim| self.end(dim).min(other.end(dim)));
        let sizes: Option<Vec<u64>> =
            ends.zip(&offsets).map(|(end, start)| end.checked_sub(*start).filter(|size| *size > 0)).collect();
        Some(Self { offsets, sizes: sizes? })
    }

    fn meets(&self, other: &Self) -> bool {
        (0..self.sizes.len())
            .all(|dim| self.offsets[dim] < other.end(dim) && other.offsets[dim] < self.end(dim))
            && self.volume() > 0
            && other.volume() > 0
    }
}

/// Pairs of boxes that share elements, each pair's smaller index first. At most `max` of them; `None` if too many boxes lie beside
/// each other to find out in time.
pub fn overlapping(boxes: &[Part], max: usize) -> Option<Vec<(usize, usize)>> {
    let mut pairs = Vec::new();
    let Some(dims) = boxes.first().map(|first| first.sizes.len()) else { return Some(pairs) };
    // Along the dimension in which they begin at the most places, few are open at a time.
    let starts = |dim: &usize| boxes.iter().map(|part| part.offsets[*dim]).collect::<BTreeSet<_>>().len();
    let Some(dim) = (0..dims).max_by_key(starts) else {
        // Tensors without dimensions have one element, and every box holds it.
        let all = (0..boxes.len()).flat_map(|one| (one + 1..boxes.len()).map(move |other| (one, other)));
        return Some(all.take(max).collect());
    };
    let mut order: Vec<usize> = (0..boxes.len()).collect();
    order.sort_unstable_by_key(|&index| (boxes[index].offsets[dim], index));
    let (mut open, mut looks) = (Vec::<usize>::new(), 0);
    for index in order {
        looks += open.len();
        if looks > LOOKS_MAX {
            return None;
        }
        open.retain(|&other| boxes[other].end(dim) > boxes[index].offsets[dim]);
        for &other in open.iter().filter(|&&other| boxes[other].meets(&boxes[index])) {
            if pairs.len() == max {
                return Some(pairs);
            }
            pairs.push((index.min(other), index.max(other)));
        }
        open.push(index);
    }
    Some(pairs)
}

/// How boxes, all within it, fill a tensor of this shape.
pub fn cover(shape: &[u64], boxes: &[Part]) -> Cover {
    let volume: u128 = shape.iter().map(|&size| size as u128).product();
    let sum: u128 = boxes.iter().map(|part| part.volume() as u128).sum();
    let Some(pairs) = overlapping(boxes, 1) else { return Cover::Unknown };
    if pairs.is_empty() {
        return if sum == volume { Cover::Exact } else { Cover::Missing((volume - sum) as u64) };
    }
    match missing(shape, boxes) {
        None => Cover::Unknown,
        Some(0) => Cover::Overlapping,
        Some(missing) => Cover::Missing(missing),
    }
}

/// Elements in no box, cell by cell of the grid that all borders make.
fn missing(shape: &[u64], boxes: &[Part]) -> Option<u64> {
    let borders: Vec<Vec<u64>> = (0..shape.len())
        .map(|dim| {
            let ends = boxes.iter().flat_map(|part| [part.offsets[dim], part.end(dim)]);
            ends.chain([0, shape[dim]]).collect::<BTreeSet<_>>().into_iter().collect()
        })
        .collect();
    let counts: Vec<usize> = borders.iter().map(|borders| borders.len() - 1).collect();
    let cells = counts.iter().try_fold(1_usize, |product, &count| product.checked_mul(count))?;
    if cells.checked_mul(boxes.len())? > CELLS_MAX {
        return None;
    }
    let mut missing = 0;
    for cell in 0..cells {
        let mut rest = cell;
        let (mut offsets, mut sizes) = (Vec::new(), Vec::new());
        for (borders, &count) in borders.iter().zip(&counts) {
            let index = rest % count;
            rest /= count;
            offsets.push(borders[index]);
            sizes.push(borders[index + 1] - borders[index]);
        }
        let cell = Part { offsets, sizes };
        if !boxes.iter().any(|part| part.meets(&cell)) {
            missing += cell.volume();
        }
    }
    Some(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn boxes() -> impl Strategy<Value = (Vec<u64>, Vec<Part>)> {
        proptest::collection::vec(0..5_u64, 0..4).prop_flat_map(|shape| {
            let part = shape.iter().map(|&size| (0..=size, 0..=size)).collect::<Vec<_>>();
            let clip = |(shape, ranges): (Vec<u64>, Vec<(u64, u64)>)| Part {
                offsets: ranges.iter().map(|range| range.0.min(range.1)).collect(),
                sizes: ranges
                    .iter()
                    .zip(shape)
                    .map(|(range, size)| range.0.abs_diff(range.1).min(size))
                    .collect(),
            };
            let shape_of = shape.clone();
            (
                Just(shape),
                proptest::collection::vec(part.prop_map(move |part| clip((shape_of.clone(), part))), 0..6),
            )
        })
    }

    /// Every element of a box, as numbers of the tensor's elements.
    fn elements(shape: &[u64], part: &Part) -> Vec<u64> {
        (0..shape.iter().product::<u64>())
            .filter(|&element| {
                let mut rest = element;
                (0..shape.len()).rev().all(|dim| {
                    let index = rest % shape[dim];
                    rest /= shape[dim];
                    (part.offsets[dim]..part.end(dim)).contains(&index)
                })
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn as_one_counts_elements((shape, boxes) in boxes()) {
            let mut times = vec![0; shape.iter().product::<u64>() as usize];
            for part in &boxes {
                for element in elements(&shape, part) {
                    times[element as usize] += 1;
                }
            }
            let expected = match (times.iter().filter(|&&times| times == 0).count(), times.iter().any(|&times| times > 1)) {
                (0, false) => Cover::Exact,
                (0, true) => Cover::Overlapping,
                (missing, _) => Cover::Missing(missing as u64),
            };
            prop_assert_eq!(cover(&shape, &boxes), expected);
            let pairs: BTreeSet<(usize, usize)> = overlapping(&boxes, usize::MAX).unwrap().into_iter().collect();
            for one in 0..boxes.len() {
                for other in one + 1..boxes.len() {
                    let shared = boxes[one].intersection(&boxes[other]);
                    let theirs = elements(&shape, &boxes[other]);
                    let both: Vec<u64> =
                        elements(&shape, &boxes[one]).into_iter().filter(|element| theirs.contains(element)).collect();
                    prop_assert_eq!(shared.map_or(Vec::new(), |shared| elements(&shape, &shared)), both.clone());
                    prop_assert_eq!(pairs.contains(&(one, other)), !both.is_empty());
                }
            }
        }
    }

    #[test]
    fn a_grid_of_a_million_chunks_is_looked_through_quickly() {
        let grid = |step: u64, count: u64| {
            (0..count * count)
                .map(move |index| Part {
                    offsets: vec![index / count * step, index % count * step],
                    sizes: vec![step, step],
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(cover(&[4000, 4000], &grid(10, 400)), Cover::Exact);
        assert_eq!(cover(&[4000, 4001], &grid(10, 400)), Cover::Missing(4000));
    }

    #[test]
    fn what_would_take_for_ever_is_not_begun() {
        // Rows above, columns below: along either dimension, half of them lie beside each other.
        let count = 20_000;
        let rows = (0..count).map(|index| Part { offsets: vec![index, 0], sizes: vec![1, count] });
        let columns = (0..count).map(|index| Part { offsets: vec![count, index], sizes: vec![count, 1] });
        let boxes: Vec<Part> = rows.chain(columns).collect();
        assert_eq!(cover(&[2 * count, count], &boxes), Cover::Unknown);
    }
}
