use std::borrow::Cow;

use super::tensor::{Element, Tensor};
use crate::{Error, Result, mix};

/// Samples that are asked for by their index, from several threads at once.
pub trait Dataset: Send + Sync {
    /// What `get` gives.
    type Sample: Send;

    /// Samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A sample. Asked again, it is the same.
    fn get(&self, index: usize) -> Result<Self::Sample>;

    /// Whether [`get`](Self::get) takes no longer than a lock does, and never asks a loader for anything. Then callers load one
    /// after another, with half the locks. Not by default.
    fn is_instant(&self) -> bool {
        false
    }

    /// The class of a sample, for strategies that need one. `None`: it has no label.
    fn label(&self, _index: usize) -> Result<Option<u64>> {
        Ok(None)
    }

    /// What a sample is hashed by. `None`: by its index.
    fn key(&self, _index: usize) -> Result<Option<Cow<'_, [u8]>>> {
        Ok(None)
    }

    /// Whether samples have keys at all. By default, whether the first has one.
    fn has_keys(&self) -> bool {
        !self.is_empty() && !matches!(self.key(0), Ok(None))
    }

    /// Whether a sample comes from another machine. Only counted.
    fn is_remote(&self, _index: usize) -> bool {
        false
    }

    /// A sample may be asked for soon: what takes long could be done now. Nothing by default.
    fn warm(&self, _index: usize) {}

    /// Tells one data set from another of the same length, so that a checkpoint is not restored into the wrong one. 0:
    /// nobody knows.
    fn fingerprint(&self) -> u64 {
        0
    }

    /// Refuses what was put together wrongly. Called once, before anything else.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Features and labels in memory, a row of each for each sample. Clones share them.
///
/// ```
/// use shardfeed::{Dataset, Tensor, TensorDataset};
///
/// let images = Tensor::<u8>::from_vec(vec![0; 10 * 28 * 28], &[10, 28, 28])?;
/// let classes = Tensor::<i64>::from_vec((0..10).collect(), &[10])?;
/// let dataset = TensorDataset::new(images, classes);
/// let (image, class) = dataset.get(7)?;
/// assert_eq!((image.shape(), class.as_slice()), (&[28, 28][..], &[7][..]));
/// # Ok::<(), shardfeed::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorDataset<F, L> {
    features: Tensor<F>,
    labels: Tensor<L>,
}

impl<F: Element, L: Element> TensorDataset<F, L> {
    /// Of as many features as labels; a loader refuses others.
    pub fn new(features: Tensor<F>, labels: Tensor<L>) -> Self {
        Self { features, labels }
    }

    #[cold]
    fn no_sample(&self, index: usize) -> Error {
        Error::Invalid(format!("sample {index} does not exist; there are {}", self.features.rows()))
    }
}

impl<F: Element, L: Element> Dataset for TensorDataset<F, L> {
    type Sample = (Tensor<F>, Tensor<L>);

    fn len(&self) -> usize {
        self.features.rows()
    }

    // A sample that is moved is written in pieces and read as a whole, which stalls a processor for as long as the rest takes: hence
    // no tuple of options, and into its caller.
    #[expect(clippy::inline_always, reason = "benches/shard_loader: 59 ns for a sample without, 52 with")]
    #[inline(always)]
    fn get(&self, index: usize) -> Result<Self::Sample> {
        let Some(features) = self.features.row(index) else { return Err(self.no_sample(index)) };
        let Some(label) = self.labels.row(index) else { return Err(self.no_sample(index)) };
        Ok((features, label))
    }

    fn is_instant(&self) -> bool {
        true
    }

    fn label(&self, index: usize) -> Result<Option<u64>> {
        let Some(label) = self.labels.row(index) else { return Ok(None) };
        match *label.as_slice() {
            [label] => label.class().map(Some).ok_or_else(|| {
                Error::Invalid(format!(
                    "the label of sample {index} is no class: {label:?}; classes are whole numbers from 0 on"
                ))
            }),
            // One for each class, or nothing at all: no class.
            _ => Ok(None),
        }
    }

    /// Of shapes and sizes of elements: to look at all values may take longer than an epoch.
    fn fingerprint(&self) -> u64 {
        let features = (size_of::<F>(), self.features.shape());
        let labels = (size_of::<L>(), self.labels.shape());
        let numbers = [features, labels]
            .into_iter()
            .flat_map(|(size, shape)| [size, shape.len()].into_iter().chain(shape.iter().copied()));
        numbers.fold(1, |hash, number| mix(hash ^ number as u64)).max(1)
    }

    fn check(&self) -> Result<()> {
        if self.features.rows() == self.labels.rows() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{} rows of features and {} of labels; give as many of each",
            self.features.rows(),
            self.labels.rows()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_shapes_apart_and_are_golden() {
        fn of<F: Element + Default>(shape: &[usize]) -> u64 {
            let features = Tensor::<F>::from_vec(vec![F::default(); shape.iter().product()], shape).unwrap();
            let labels = Tensor::<u8>::from_vec(vec![0; shape[0]], &shape[..1]).unwrap();
            TensorDataset::new(features, labels).fingerprint()
        }
        let known =
            [of::<f32>(&[6, 2]), of::<f64>(&[6, 2]), of::<f32>(&[6, 3]), of::<f32>(&[6]), of::<f32>(&[6, 1])];
        assert!((0..5).all(|i| (0..i).all(|j| known[i] != known[j])), "{known:?}");
        assert_eq!(known[0], 8_299_212_911_435_007_384);
    }
}
