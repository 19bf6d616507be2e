use std::slice;
use std::sync::Arc;

use crate::{Error, Result};

/// A small n-dimensional array: a shape, and its elements row after row. Not a tensor library: it goes to `ndarray`, or
/// to whatever a trainer computes with, through [`as_slice`](Self::as_slice).
///
/// Clones and rows share their elements, so that neither copies anything; but a single element, such as a label, is cloned,
/// which for numbers costs less than sharing it.
///
/// ```
/// use shardfeed::Tensor;
///
/// let pairs = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
/// let second = pairs.row(1).unwrap();
/// assert_eq!((second.shape(), second.as_slice()), (&[2][..], &[3.0, 4.0][..]));
/// # Ok::<(), shardfeed::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor<T>(Kind<T>);

#[derive(Clone)]
enum Kind<T> {
    Shared(Shared<T>),
    /// Without dimensions.
    Single(T),
}

struct Shared<T> {
    whole: Arc<Whole<T>>,
    /// How many dimensions of the whole this is a row of, and where its elements begin.
    row_of: usize,
    start: usize,
}

struct Whole<T> {
    elements: Vec<T>,
    shape: Vec<usize>,
    /// Elements that each dimension's rows have; those of all first.
    lens: Vec<usize>,
}

impl<T> Tensor<T> {
    /// Elements, row after row, of a shape that has room for just as many.
    pub fn from_vec(elements: Vec<T>, shape: &[usize]) -> Result<Self> {
        let mut lens = vec![1_usize];
        for &size in shape.iter().rev() {
            // Too large a product is no number of elements.
            lens.push(lens[lens.len() - 1].saturating_mul(size));
        }
        lens.reverse();
        if lens[0] != elements.len() {
            return Err(Error::Invalid(format!(
                "{} elements do not make a tensor of shape {shape:?}; give as many as the product of its sizes",
                elements.len()
            )));
        }
        let whole = Arc::new(Whole { elements, shape: shape.to_vec(), lens });
        Ok(Self(Kind::Shared(Shared { whole, row_of: 0, start: 0 })))
    }

    /// Sizes of its dimensions.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        match &self.0 {
            Kind::Shared(shared) => &shared.whole.shape[shared.row_of..],
            Kind::Single(_) => &[],
        }
    }

    /// All elements, row after row.
    pub fn as_slice(&self) -> &[T] {
        match &self.0 {
            Kind::Shared(shared) => &shared.whole.elements[shared.start..][..self.len()],
            Kind::Single(element) => slice::from_ref(element),
        }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Shared(shared) => shared.whole.lens[shared.row_of],
            Kind::Single(_) => 1,
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows: the size of the first dimension. A tensor without dimensions, a single number, has none.
    #[inline]
    pub fn rows(&self) -> usize {
        self.shape().first().copied().unwrap_or(0)
    }
}

impl<T: Clone> Tensor<T> {
    /// One row, which has a dimension less.
    #[inline]
    pub fn row(&self, row: usize) -> Option<Self> {
        let Kind::Shared(Shared { whole, row_of, start }) = &self.0 else { return None };
        let row_of = row_of + 1;
        let start = (row < self.rows()).then(|| start + row * whole.lens[row_of])?;
        if row_of == whole.shape.len() {
            return Some(Self(Kind::Single(whole.elements[start].clone())));
        }
        Some(Self(Kind::Shared(Shared { whole: Arc::clone(whole), row_of, start })))
    }

    /// Its elements in a list of their own.
    pub fn to_vec(&self) -> Vec<T> {
        self.as_slice().to_vec()
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { whole: Arc::clone(&self.whole), ..*self }
    }
}

impl<T: PartialEq> PartialEq for Tensor<T> {
    fn eq(&self, other: &Self) -> bool {
        self.shape() == other.shape() && self.as_slice() == other.as_slice()
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tensor").field("shape", &self.shape()).field("elements", &self.as_slice()).finish()
    }
}

impl<T: Clone> From<&Tensor<T>> for ndarray::ArrayD<T> {
    fn from(tensor: &Tensor<T>) -> Self {
        Self::from_shape_vec(tensor.shape(), tensor.to_vec())
            .expect("as many elements as the shape has room for")
    }
}

impl<T: Clone, D: ndarray::Dimension> TryFrom<ndarray::Array<T, D>> for Tensor<T> {
    type Error = Error;

    fn try_from(array: ndarray::Array<T, D>) -> Result<Self> {
        let shape = array.shape().to_vec();
        Self::from_vec(array.iter().cloned().collect(), &shape)
    }
}

/// What labels are made of: numbers, of which those that are whole and not negative name a class.
pub trait Element: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// The class it names.
    fn class(self) -> Option<u64>;
}

macro_rules! integers {
    ($($type:ty)*) => { $(impl Element for $type {
        fn class(self) -> Option<u64> {
            u64::try_from(self).ok()
        }
    })* };
}

macro_rules! floats {
    ($($type:ty)*) => { $(impl Element for $type {
        fn class(self) -> Option<u64> {
            // Above, not every whole number is one of these.
            let is_class = (0.0..1e15).contains(&self) && self.fract() == 0.0;
            is_class.then_some(self as u64)
        }
    })* };
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64 usize isize);
floats!(f32 f64);

impl Element for bool {
    fn class(self) -> Option<u64> {
        Some(self.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_a_dimension_less_and_share_their_elements() {
        let tensor = Tensor::from_vec((0..24).collect(), &[2, 3, 4]).unwrap();
        let row = tensor.row(1).unwrap().row(2).unwrap();
        assert_eq!((row.shape(), row.as_slice(), row.len()), (&[4][..], &[20, 21, 22, 23][..], 4));
        assert_eq!(row.as_slice().as_ptr(), &raw const tensor.as_slice()[20]);
        let single = row.row(3).unwrap();
        assert_eq!(
            (single.shape(), single.as_slice(), single.rows(), single.len()),
            (&[][..], &[23][..], 0, 1)
        );
        assert!(single.row(0).is_none() && row.row(4).is_none());
        let made_single = Tensor::from_vec(vec![23], &[]).unwrap();
        assert!(made_single == single && made_single.row(0).is_none());
        let empty = Tensor::<f32>::from_vec(vec![], &[0, 5]).unwrap();
        assert!(empty.is_empty() && empty.row(0).is_none());
        assert_eq!(Tensor::<u8>::from_vec(vec![], &[3, 0]).unwrap().row(2).unwrap().shape(), [0]);
    }

    #[test]
    fn a_shape_with_other_room_is_refused_with_the_numbers() {
        let refused =
            |len: usize, shape: &[usize]| Tensor::from_vec(vec![0_u8; len], shape).unwrap_err().to_string();
        assert!(refused(5, &[2, 3]).contains("5 elements") && refused(5, &[2, 3]).contains("[2, 3]"));
        assert!(refused(0, &[usize::MAX, 2]).contains("0 elements"));
        assert!(Tensor::<u8>::from_vec(vec![], &[0, usize::MAX, 2]).unwrap().row(0).is_none());
    }

    #[test]
    fn it_goes_to_ndarray_and_back() {
        let tensor = Tensor::from_vec((0..6).collect(), &[2, 3]).unwrap();
        let array = ndarray::ArrayD::from(&tensor);
        assert_eq!((array.shape(), array[[1, 0]]), (&[2, 3][..], 3));
        assert_eq!(Tensor::try_from(array.reversed_axes()).unwrap().as_slice(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(Tensor::try_from(ndarray::arr1(&[1, 2])).unwrap().shape(), [2]);
    }

    #[test]
    fn whole_numbers_name_classes() {
        assert_eq!(
            [3.0_f32.class(), 0.5_f32.class(), (-1.0_f32).class(), f32::NAN.class()],
            [Some(3), None, None, None]
        );
        assert_eq!((7_u8.class(), (-7_i64).class(), true.class()), (Some(7), None, Some(1)));
    }
}
