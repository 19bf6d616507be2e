use super::dtype::Dtype;
use super::item::TensorView;

/// Where the elements of a box lie in a piece of memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Where the first one lies.
    pub start: u64,
    /// From one index of a dimension to the next.
    pub strides: Vec<u64>,
}

/// A box of elements that lie somewhere in a piece of memory.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// Where they lie.
    pub placement: &'a Placement,
    /// How many there are of each dimension.
    pub sizes: &'a [u64],
    /// How many bytes each has.
    pub element: u64,
}

impl Placement {
    /// Within a tensor of this shape that lies row by row, from this index on.
    pub fn row_major(dtype: Dtype, shape: &[u64], at: &[u64]) -> Self {
        let steps = TensorView::row_major(dtype, shape, 0..0).strides;
        let strides: Vec<u64> = steps.iter().map(|step| step.saturating_mul(dtype.bytes())).collect();
        Self { start: at.iter().zip(&strides).map(|(index, stride)| index * stride).sum(), strides }
    }
}

impl Placed<'_> {
    /// The first byte after the last one; `None` if no memory reaches so far, or if there is not a stride for each dimension.
    pub fn end(&self) -> Option<u64> {
        let Placement { start, strides } = self.placement;
        if strides.len() != self.sizes.len() {
            return None;
        }
        let mut steps =
            self.sizes.iter().zip(strides).map(|(size, stride)| size.checked_sub(1)?.checked_mul(*stride));
        let reach = steps.try_fold(self.element, |reach, step| reach.checked_add(step?));
        start.checked_add(reach?)
    }

    /// Whether no two of its elements share a byte, as far as that can be told by looking at one dimension after another.
    pub fn is_single(&self) -> bool {
        // Wherever it begins.
        let placement = Placement { start: 0, strides: self.placement.strides.clone() };
        let first = Placed { placement: &placement, ..*self };
        Grid::of(first, first).is_some_and(|grid| grid.is_single())
    }

    /// Whether two boxes share no byte, as far as can be told. It is told of those that lie one after the other, and of those that
    /// are parts of one tensor that begins where the memory does.
    pub fn is_apart(&self, other: &Self) -> bool {
        let (Some(end), Some(other_end)) = (self.end(), other.end()) else { return false };
        if end <= other.placement.start || other_end <= self.placement.start {
            return true;
        }
        Grid::of(*self, *other).is_some_and(|grid| grid.is_single() && grid.is_apart())
    }
}

/// The dimensions that two boxes have in common, those with the largest steps first; the last one is the bytes of an element.
struct Grid(Vec<Axis>);

/// A dimension: its step, and which of its indexes each of the two boxes has.
struct Axis {
    stride: u64,
    one: (u64, u64),
    other: (u64, u64),
}

impl Grid {
    /// `None` if they have none.
    fn of(one: Placed<'_>, other: Placed<'_>) -> Option<Self> {
        if one.sizes.len() != other.sizes.len() || one.element != other.element {
            return None;
        }
        let mut axes = Vec::with_capacity(one.sizes.len() + 1);
        for dim in 0..one.sizes.len() {
            let (own, others) = (one.placement.strides[dim], other.placement.strides[dim]);
            // What is there once has a stride that means nothing.
            let stride = match (one.sizes[dim] > 1, other.sizes[dim] > 1) {
                (false, false) => continue,
                (true, false) => own,
                (false, true) => others,
                (true, true) if own == others => own,
                (true, true) => return None,
            };
            axes.push(Axis { stride, one: (0, one.sizes[dim]), other: (0, other.sizes[dim]) });
        }
        axes.sort_by_key(|axis: &Axis| std::cmp::Reverse(axis.stride));
        axes.push(Axis { stride: 1, one: (0, one.element), other: (0, one.element) });
        let (mut left, mut other_left) = (one.placement.start, other.placement.start);
        for axis in axes.iter_mut().filter(|axis| axis.stride > 0) {
            axis.one.0 = left / axis.stride;
            axis.other.0 = other_left / axis.stride;
            left %= axis.stride;
            other_left %= axis.stride;
        }
        Some(Self(axes))
    }

    /// Whether different indexes are different places: all that lies within a step is smaller than it.
    fn is_single(&self) -> bool {
        let mut reach = Some(1_u64);
        for axis in self.0.iter().rev() {
            let last =
                (axis.one.0.saturating_add(axis.one.1)).max(axis.other.0.saturating_add(axis.other.1)) - 1;
            if reach.is_none_or(|reach| reach > axis.stride) {
                return false;
            }
            reach = last.checked_mul(axis.stride).and_then(|step| step.checked_add(reach?));
        }
        true
    }

    fn is_apart(&self) -> bool {
        let ends_before = |one: (u64, u64), other: (u64, u64)| one.0.saturating_add(one.1) <= other.0;
        self.0.iter().any(|axis| ends_before(axis.one, axis.other) || ends_before(axis.other, axis.one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(placed: &Placed<'_>) -> Vec<u64> {
        let mut places = vec![placed.placement.start];
        for (size, stride) in placed.sizes.iter().zip(&placed.placement.strides) {
            places =
                places.iter().flat_map(|place| (0..*size).map(move |index| place + index * stride)).collect();
        }
        places.iter().flat_map(|place| (0..placed.element).map(move |byte| place + byte)).collect()
    }

    type Box2 = (u64, Vec<(u64, u64)>);

    fn boxes() -> impl Strategy<Value = (Box2, Box2, u64)> {
        let one = || (0..40_u64, proptest::collection::vec((1..4_u64, 0..20_u64), 2));
        (one(), one(), 1..4_u64, any::<bool>()).prop_map(|(one, mut other, element, is_alike)| {
            if is_alike {
                other.1.iter_mut().zip(&one.1).for_each(|(other, one)| other.1 = one.1);
            }
            (one, other, element)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn what_is_said_to_be_apart_shares_no_byte((one, other, element) in boxes()) {
            let parts = |(start, dims): &Box2| {
                let strides = dims.iter().map(|dim| dim.1).collect();
                (Placement { start: *start, strides }, dims.iter().map(|dim| dim.0).collect::<Vec<_>>())
            };
            let ((one, sizes), (other, other_sizes)) = (parts(&one), parts(&other));
            let one = Placed { placement: &one, sizes: &sizes, element };
            let other = Placed { placement: &other, sizes: &other_sizes, element };
            let (bytes, others) = (bytes_of(&one), bytes_of(&other));
            prop_assert_eq!(one.end(), bytes.iter().max().map(|last| last + 1));
            if one.is_single() {
                let different: std::collections::HashSet<_> = bytes.iter().collect();
                prop_assert_eq!(different.len(), bytes.len());
            }
            if one.is_apart(&other) {
                prop_assert!(bytes.iter().all(|byte| !others.contains(byte)), "{:?} {:?}", one, other);
            }
            prop_assert_eq!(one.is_apart(&other), other.is_apart(&one));
        }
    }

    #[test]
    fn parts_of_one_tensor_are_told_apart() {
        let shape = [6, 10];
        let part = |at: [u64; 2]| Placement::row_major(Dtype::Float32, &shape, &at);
        let sizes = [3, 5];
        let quarters = [part([0, 0]), part([0, 5]), part([3, 0]), part([3, 5])];
        for (index, one) in quarters.iter().enumerate() {
            let one = Placed { placement: one, sizes: &sizes, element: 4 };
            assert!(one.is_single());
            for other in &quarters[index + 1..] {
                assert!(one.is_apart(&Placed { placement: other, sizes: &sizes, element: 4 }));
            }
        }
        let over = part([2, 4]);
        let over = Placed { placement: &over, sizes: &sizes, element: 4 };
        assert!(!over.is_apart(&Placed { placement: &quarters[0], sizes: &sizes, element: 4 }));
        let bytes = Placement::row_major(Dtype::Uint8, &[3, 5], &[0, 0]);
        assert!(Placed { placement: &bytes, sizes: &[3, 5], element: 1 }.is_single());
        // All rows are one.
        let expanded = Placement { start: 0, strides: vec![0, 4] };
        assert!(!Placed { placement: &expanded, sizes: &sizes, element: 4 }.is_single());
        // Two columns that begin in the middle of somebody else's row.
        let late = Placement { start: 36, strides: vec![40, 4] };
        assert!(Placed { placement: &late, sizes: &[3, 2], element: 4 }.is_single());
        let endless = Placement { start: 0, strides: vec![u64::MAX, 4] };
        assert_eq!(Placed { placement: &endless, sizes: &sizes, element: 4 }.end(), None);
    }
}
