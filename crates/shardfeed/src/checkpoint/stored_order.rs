use std::cmp::Reverse;

use super::bytes::FileBytes;
use super::locate::{Headers, locate};
use super::opened::Checkpoint;
use super::options::{DirectIo, Stop};
use super::parallel::LOOK_BYTES;
use super::workers::workers_for;
use crate::error::{Error, Result};
use crate::parallel::map_in_parallel;

impl Checkpoint {
    /// The dimensions of each of these chunks (by tensor and place in it), first those along which elements lie farthest apart in the file:
    /// whoever reads a chunk in pieces cuts it in this order, and no byte is read twice. `None` where that is the order they have anyway, and where
    /// nobody can tell; what is wrong then is told by whoever reads it. With as many threads as a read; fails only if somebody stops it.
    pub fn stored_orders(&self, chunks: &[(usize, usize)]) -> Result<Vec<Option<Vec<usize>>>> {
        let headers = Headers::default();
        let options = &self.options;
        let asked = if options.use_parallel { options.num_workers } else { Some(1) };
        let bytes = (chunks.len() as u64).saturating_mul(LOOK_BYTES);
        let threads = workers_for(asked, chunks.len(), bytes, LOOK_BYTES, || options.memory_bytes());
        map_in_parallel(chunks, threads, |&(tensor, chunk)| {
            options.stop.as_ref().map_or(Ok(()), Stop::check).map_err(Error::Invalid)?;
            Ok(self.stored_order(tensor, chunk, &headers))
        })
    }

    fn stored_order(&self, tensor: usize, chunk: usize, headers: &Headers) -> Option<Vec<usize>> {
        let tensor = self.tensors().get(tensor)?;
        let chunk = tensor.chunks.get(chunk)?;
        if self.found.is_raw || !chunk.item.transforms.is_empty() {
            return None;
        }
        let facts = &self.files[chunk.item.file as usize];
        let file = FileBytes::open(facts, DirectIo::Never, Vec::new()).ok()?;
        let mut file = file.stopped_by(self.options.stop.clone());
        let view = locate(tensor, chunk, false, &mut file, facts.len, headers).ok()?.view;
        farthest_first(&view.sizes, &view.strides)
    }
}

/// Dimensions by their strides; those with a single index lie nowhere, and come first. `None` if they are in this order.
fn farthest_first(sizes: &[u64], strides: &[u64]) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&dim| (sizes[dim] > 1, Reverse(strides[dim])));
    let long = || order.iter().filter(|&&dim| sizes[dim] > 1);
    (!long().is_sorted()).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_row_by_row_has_no_other_order() {
        assert_eq!(farthest_first(&[], &[]), None);
        assert_eq!(farthest_first(&[3, 4, 5], &[20, 5, 1]), None);
        assert_eq!(farthest_first(&[3, 1, 5], &[5, 1, 1]), None, "a single index lies nowhere");
        assert_eq!(farthest_first(&[3, 4], &[0, 0]), None, "all elements are the same one");
        assert_eq!(farthest_first(&[3, 4], &[1, 3]), Some(vec![1, 0]));
        assert_eq!(farthest_first(&[3, 1, 4, 5], &[5, 1, 15, 1]), Some(vec![1, 2, 0, 3]));
        assert_eq!(farthest_first(&[3, 4], &[0, 1]), Some(vec![1, 0]), "what is repeated lies nearest");
    }
}
