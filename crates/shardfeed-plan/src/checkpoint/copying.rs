use std::ops::Range;

use super::cover::Part;
use super::dtype::Dtype;
use super::item::TensorView;
use super::placement::Placement;

/// Bytes that go from one place to another: a block of them, as often as the dimensions say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copying {
    /// The first byte of the source.
    pub from: u64,
    /// The first byte of the destination.
    pub to: u64,
    /// Bytes that lie together on both sides.
    pub unit: u64,
    /// How they repeat, those that are far apart in the source first.
    pub dims: Vec<Dim>,
}

/// A repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim {
    /// How often.
    pub count: u64,
    /// Bytes from one to the next in the source.
    pub from: u64,
    /// Bytes from one to the next in the destination.
    pub to: u64,
}

/// What has to be done to numbers after they were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fix {
    /// What they are.
    pub dtype: Dtype,
    /// Their bytes are the wrong way round.
    pub is_swapped: bool,
    /// Their imaginary parts have the wrong sign.
    pub is_conjugate: bool,
    /// They have the wrong sign.
    pub is_negative: bool,
}

impl Copying {
    /// What of a stored chunk goes into a destination: `part` of the chunk (counted from the chunk's first element), to where
    /// its elements belong. The source is counted from where the view's bytes are.
    ///
    /// The part must lie within both, and not be empty.
    pub fn new(view: &TensorView, part: &Part, to: &Placement) -> Self {
        let bytes = view.dtype.bytes();
        let offsets = part.offsets.iter().zip(&view.strides);
        let first: u64 = offsets.map(|(offset, stride)| offset * stride * bytes).sum();
        let mut dims: Vec<Dim> = (0..part.sizes.len())
            .filter(|&dim| part.sizes[dim] > 1)
            .map(|dim| Dim { count: part.sizes[dim], from: view.strides[dim] * bytes, to: to.strides[dim] })
            .collect();
        dims.sort_by_key(|dim| std::cmp::Reverse((dim.from, dim.to)));
        let mut copying =
            Self { from: view.data.start + view.start * bytes + first, to: to.start, unit: bytes, dims };
        copying.join();
        copying
    }

    /// Where the source begins and ends.
    pub fn source(&self) -> Range<u64> {
        self.from..self.from + self.reach()
    }

    /// How many bytes are copied.
    pub fn bytes(&self) -> u64 {
        self.unit * self.dims.iter().map(|dim| dim.count).product::<u64>()
    }

    /// Whether it is one block.
    pub fn is_plain(&self) -> bool {
        self.dims.is_empty()
    }

    /// Cuts it into pieces whose sources reach over at most `block` bytes, and which leave out gaps of more than `gap`.
    pub fn split(self, block: u64, gap: u64, into: &mut impl FnMut(Self)) {
        let Some((&outer, inner)) = self.dims.split_first() else {
            // Never within an element, and at places that suit the memory.
            let block = block.clamp(64, 1 << 40).next_multiple_of(64);
            let mut done = 0;
            while done < self.unit {
                let unit = block.min(self.unit - done);
                into(Self { from: self.from + done, to: self.to + done, unit, dims: Vec::new() });
                done += unit;
            }
            return;
        };
        let has_gaps = self.has_gaps(gap);
        if !has_gaps && self.reach() <= block {
            return into(self);
        }
        let within = reach(self.unit, inner);
        let rows = if has_gaps || within > block || outer.from == 0 {
            1
        } else {
            (1 + (block - within) / outer.from).min(outer.count)
        };
        let mut row = 0;
        while row < outer.count {
            let count = rows.min(outer.count - row);
            let mut dims = inner.to_vec();
            if count > 1 {
                dims.insert(0, Dim { count, ..outer });
            }
            let piece = Self {
                from: self.from + row * outer.from,
                to: self.to + row * outer.to,
                unit: self.unit,
                dims,
            };
            if count == 1 {
                piece.split(block, gap, into);
            } else {
                into(piece);
            }
            row += count;
        }
    }

    /// Into how many pieces gaps of more than `gap` cut it.
    pub fn places(&self, gap: u64) -> u64 {
        let step = |dim: usize| (self.dims[dim].from, reach(self.unit, &self.dims[dim + 1..]));
        let has_gap = |dim: &usize| step(*dim).0 > step(*dim).1.saturating_add(gap);
        let cut = (0..self.dims.len()).rev().find(has_gap).map_or(0, |dim| dim + 1);
        self.dims[..cut].iter().fold(1, |places, dim| places.saturating_mul(dim.count))
    }

    /// Calls `each` with the source's and the destination's first byte of every block of [`Copying::unit`] bytes.
    pub fn for_each(&self, mut each: impl FnMut(u64, u64)) {
        let Some((innermost, outer)) = self.dims.split_last() else { return each(self.from, self.to) };
        let mut index = vec![0_u64; outer.len()];
        let (mut from, mut to) = (self.from, self.to);
        loop {
            for step in 0..innermost.count {
                each(from + step * innermost.from, to + step * innermost.to);
            }
            let mut dim = outer.len();
            loop {
                if dim == 0 {
                    return;
                }
                dim -= 1;
                index[dim] += 1;
                from += outer[dim].from;
                to += outer[dim].to;
                if index[dim] < outer[dim].count {
                    break;
                }
                from -= outer[dim].from * outer[dim].count;
                to -= outer[dim].to * outer[dim].count;
                index[dim] = 0;
            }
        }
    }

    /// Makes as few repetitions of as large blocks as it can.
    fn join(&mut self) {
        while let Some(last) = self.dims.last().filter(|last| last.from == self.unit && last.to == self.unit)
        {
            self.unit *= last.count;
            self.dims.pop();
        }
        let mut index = 1;
        while index < self.dims.len() {
            let (outer, inner) = (self.dims[index - 1], self.dims[index]);
            if outer.from == inner.from * inner.count && outer.to == inner.to * inner.count {
                self.dims[index - 1] = Dim { count: outer.count * inner.count, ..inner };
                self.dims.remove(index);
            } else {
                index += 1;
            }
        }
    }

    fn reach(&self) -> u64 {
        reach(self.unit, &self.dims)
    }

    fn has_gaps(&self, gap: u64) -> bool {
        self.places(gap) > 1
    }
}

/// From the source's first byte to its last.
fn reach(unit: u64, dims: &[Dim]) -> u64 {
    unit + dims.iter().map(|dim| (dim.count - 1) * dim.from).sum::<u64>()
}

impl Fix {
    /// What a view's numbers need, if anything.
    pub fn of(view: &TensorView) -> Option<Self> {
        let fix = Self {
            dtype: view.dtype,
            is_swapped: view.is_big_endian && view.dtype.number_bytes() > 1,
            is_conjugate: view.is_conjugate && view.dtype.is_complex(),
            is_negative: view.is_negative,
        };
        (fix.is_swapped || fix.is_conjugate || fix.is_negative).then_some(fix)
    }

    /// Does it, to whole elements.
    pub fn apply(&self, elements: &mut [u8]) {
        let number = self.dtype.number_bytes() as usize;
        for element in elements.chunks_exact_mut(self.dtype.bytes() as usize) {
            for (index, number) in element.chunks_exact_mut(number).enumerate() {
                if self.is_swapped {
                    number.reverse();
                }
                // Both are a flip of the sign, and two flips are none.
                if self.is_negative != (self.is_conjugate && index == 1) {
                    negate(self.dtype, number);
                }
            }
        }
    }
}

fn negate(dtype: Dtype, number: &mut [u8]) {
    // Of those without a sign the negative is what adds up to zero, as torch has it.
    let is_whole = matches!(
        dtype,
        Dtype::Int8
            | Dtype::Int16
            | Dtype::Int32
            | Dtype::Int64
            | Dtype::Uint8
            | Dtype::Uint16
            | Dtype::Uint32
            | Dtype::Uint64
    );
    if !is_whole {
        if let Some(last) = number.last_mut() {
            *last ^= 0x80;
        }
        return;
    }
    let mut carry = true;
    for byte in number {
        (*byte, carry) = (!*byte).overflowing_add(carry.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A chunk that lies in any order of its dimensions, with or without room between them, and a part of it.
    #[derive(Debug, Clone)]
    struct Case {
        view: TensorView,
        part: Part,
        shape: Vec<u64>,
        at: Vec<u64>,
        block: u64,
        gap: u64,
    }

    fn cases() -> impl Strategy<Value = Case> {
        let dims = proptest::collection::vec((1..5_u64, 0..3_u64, any::<u32>(), 0..3_u64, 0..3_u64), 0..5);
        (dims, 0..3_usize, 0..70_u64, 0..40_u64, 0..3_u64).prop_map(|(dims, dtype, block, gap, start)| {
            let dtype = [Dtype::Uint8, Dtype::Float32, Dtype::Complex128][dtype];
            let sizes: Vec<u64> = dims.iter().map(|dim| dim.0).collect();
            let mut order: Vec<usize> = (0..dims.len()).collect();
            order.sort_by_key(|&dim| dims[dim].2);
            let mut strides = vec![0; dims.len()];
            let mut stride = 1;
            for &dim in &order {
                strides[dim] = stride;
                stride = stride * sizes[dim] + dims[dim].1;
            }
            let part = Part {
                offsets: dims.iter().map(|dim| dim.3.min(dim.0 - 1)).collect(),
                sizes: dims.iter().map(|dim| (dim.0 - dim.3.min(dim.0 - 1)).min(dim.4 + 1)).collect(),
            };
            let at: Vec<u64> = dims.iter().map(|dim| dim.4).collect();
            let shape = (0..dims.len()).map(|dim| at[dim] + part.sizes[dim] + dims[dim].1).collect();
            let end = (start + stride + 8) * dtype.bytes();
            let view = TensorView { strides, start, ..TensorView::row_major(dtype, &sizes, 100..100 + end) };
            Case { view, part, shape, at, block, gap }
        })
    }

    /// Where each element of the part is and where it goes, one by one.
    fn naive(case: &Case) -> Vec<(u64, u64)> {
        let bytes = case.view.dtype.bytes();
        let steps = TensorView::row_major(case.view.dtype, &case.shape, 0..0).strides;
        let mut moves = Vec::new();
        for element in 0..case.part.volume() {
            let (mut rest, mut from, mut to) = (element, case.view.start, 0);
            for dim in (0..case.part.sizes.len()).rev() {
                let index = rest % case.part.sizes[dim];
                rest /= case.part.sizes[dim];
                from += (case.part.offsets[dim] + index) * case.view.strides[dim];
                to += (case.at[dim] + index) * steps[dim];
            }
            moves.extend((0..bytes).map(|byte| (100 + from * bytes + byte, to * bytes + byte)));
        }
        moves.sort_unstable();
        moves
    }

    fn moves(copying: &Copying) -> Vec<(u64, u64)> {
        let mut moves = Vec::new();
        copying.for_each(|from, to| moves.extend((0..copying.unit).map(|byte| (from + byte, to + byte))));
        moves.sort_unstable();
        moves
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn every_byte_goes_where_it_belongs(case in cases()) {
            let to = Placement::row_major(case.view.dtype, &case.shape, &case.at);
            let copying = Copying::new(&case.view, &case.part, &to);
            let expected = naive(&case);
            prop_assert_eq!(moves(&copying), expected.clone());
            prop_assert_eq!(copying.bytes(), expected.len() as u64);
            prop_assert_eq!(copying.source(), expected[0].0..expected.last().unwrap().0 + 1);
            let mut pieces = Vec::new();
            copying.clone().split(case.block, case.gap, &mut |piece| pieces.push(piece));
            let mut all: Vec<(u64, u64)> = pieces.iter().flat_map(moves).collect();
            all.sort_unstable();
            prop_assert_eq!(all, expected);
            let mut whole = Vec::new();
            copying.clone().split(u64::MAX, case.gap, &mut |piece| whole.push(piece));
            prop_assert_eq!(copying.places(case.gap), whole.len() as u64);
            for piece in &pieces {
                let source = piece.source();
                prop_assert!(piece.is_plain() || source.end - source.start <= case.block, "{:?}", piece);
                prop_assert!(!piece.is_plain() || piece.unit <= case.block.next_multiple_of(64).max(64));
                // No gap is read over that is larger than allowed.
                let mut bytes: Vec<u64> = moves(piece).iter().map(|(from, _)| *from).collect();
                bytes.dedup();
                prop_assert!(bytes.windows(2).all(|pair| pair[1] - pair[0] - 1 <= case.gap), "{:?}", piece);
            }
        }
    }

    #[test]
    fn a_whole_chunk_is_one_block_and_rows_are_too() {
        let view = TensorView::row_major(Dtype::Float32, &[6, 5, 4], 0..480);
        let to = Placement::row_major(Dtype::Float32, &[6, 5, 4], &[0, 0, 0]);
        let whole = Copying::new(&view, &Part::whole(&[6, 5, 4]), &to);
        assert_eq!(whole, Copying { from: 0, to: 0, unit: 480, dims: vec![] });
        let rows = Part { offsets: vec![2, 0, 0], sizes: vec![3, 5, 4] };
        assert_eq!(Copying::new(&view, &rows, &to), Copying { from: 160, to: 0, unit: 240, dims: vec![] });
        // Every second row of something wider.
        let apart = Placement { start: 8, strides: vec![1000, 40, 4] };
        assert_eq!(
            Copying::new(&view, &rows, &apart),
            Copying {
                from: 160,
                to: 8,
                unit: 16,
                dims: vec![Dim { count: 3, from: 80, to: 1000 }, Dim { count: 5, from: 16, to: 40 }]
            }
        );
    }

    #[test]
    fn signs_and_bytes_are_put_right() {
        let mut number = 1.5_f32.to_be_bytes().to_vec();
        let fix = Fix { dtype: Dtype::Float32, is_swapped: true, is_conjugate: false, is_negative: true };
        fix.apply(&mut number);
        assert_eq!(number, (-1.5_f32).to_le_bytes());
        let mut whole = [7_i16.to_le_bytes(), (-256_i16).to_le_bytes()].concat();
        Fix { dtype: Dtype::Int16, is_swapped: false, is_conjugate: false, is_negative: true }
            .apply(&mut whole);
        assert_eq!(whole, [(-7_i16).to_le_bytes(), 256_i16.to_le_bytes()].concat());
        for dtype in [Dtype::Uint8, Dtype::Uint16, Dtype::Uint32, Dtype::Uint64] {
            let mut numbers = 5_u64.to_le_bytes()[..dtype.bytes() as usize].to_vec();
            Fix { dtype, is_swapped: false, is_conjugate: false, is_negative: true }.apply(&mut numbers);
            assert_eq!(numbers, 5_u64.wrapping_neg().to_le_bytes()[..dtype.bytes() as usize], "{dtype}");
        }
        let mut complex = [1_f64.to_le_bytes(), 2_f64.to_le_bytes()].concat();
        Fix { dtype: Dtype::Complex128, is_swapped: false, is_conjugate: true, is_negative: false }
            .apply(&mut complex);
        assert_eq!(complex, [1_f64.to_le_bytes(), (-2_f64).to_le_bytes()].concat());
    }
}
