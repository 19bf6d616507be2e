use std::ops::Range;

use shardfeed_plan::checkpoint::{Cover, Part, cover};

use super::opened::Checkpoint;
use crate::error::{Error, Result};

/// What is wanted of a checkpoint, and the memory that it goes to.
#[derive(Default)]
pub struct ReadPlan<'a> {
    pub(crate) wishes: Vec<Wish<'a>>,
}

/// A tensor, or a part of one.
pub(crate) struct Wish<'a> {
    pub(crate) name: String,
    pub(crate) ranges: Option<Vec<Range<u64>>>,
    pub(crate) memory: &'a mut [u8],
}

/// A part of a stored chunk, and where it goes.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) tensor: usize,
    pub(crate) chunk: usize,
    /// Which part, counted from the chunk's first element.
    pub(crate) part: Part,
    pub(crate) destination: u32,
    /// The shape of what lies in the destination.
    pub(crate) shape: Vec<u64>,
    /// Where in it the part begins.
    pub(crate) at: Vec<u64>,
}

impl<'a> ReadPlan<'a> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole tensor, row by row, into memory of exactly its size.
    pub fn read(&mut self, name: &str, memory: &'a mut [u8]) -> &mut Self {
        self.wishes.push(Wish { name: name.to_owned(), ranges: None, memory });
        self
    }

    /// A part of a tensor, one range for each of its dimensions, into memory of exactly its size.
    pub fn read_slice(&mut self, name: &str, ranges: &[Range<u64>], memory: &'a mut [u8]) -> &mut Self {
        self.wishes.push(Wish { name: name.to_owned(), ranges: Some(ranges.to_vec()), memory });
        self
    }
}

/// Bytes that come to each destination; more than it has where chunks overlap.
pub(crate) fn bytes_wanted(checkpoint: &Checkpoint, wanted: &[Wanted], destinations: usize) -> Vec<u64> {
    let mut bytes = vec![0; destinations];
    for want in wanted {
        bytes[want.destination as usize] +=
            want.part.volume() * checkpoint.tensors()[want.tensor].dtype.bytes();
    }
    bytes
}

impl Checkpoint {
    /// Which parts of which chunks a wish needs, and how many bytes it takes.
    pub(crate) fn resolve(
        &self,
        name: &str,
        ranges: Option<&[Range<u64>]>,
        destination: u32,
        into: &mut Vec<Wanted>,
    ) -> Result<u64> {
        let index = self.tensor_index(name)?;
        let tensor = &self.tensors()[index];
        let whole = || tensor.shape.iter().map(|&size| 0..size).collect::<Vec<_>>();
        let ranges = ranges.map_or_else(whole, <[_]>::to_vec);
        let fits = |(range, &size): (&Range<u64>, &u64)| range.start <= range.end && range.end <= size;
        if ranges.len() != tensor.shape.len() || !ranges.iter().zip(&tensor.shape).all(fits) {
            return Err(Error::Invalid(format!(
                "{name}: {ranges:?} is no part of its shape {:?}",
                tensor.shape
            )));
        }
        let wish = Part {
            offsets: ranges.iter().map(|range| range.start).collect(),
            sizes: ranges.iter().map(|range| range.end - range.start).collect(),
        };
        let first = into.len();
        for (chunk, stored) in tensor.chunks.iter().enumerate() {
            let Some(shared) = wish.intersection(&stored.part) else { continue };
            let from = |offsets: &[u64]| {
                shared.offsets.iter().zip(offsets).map(|(own, start)| own - start).collect()
            };
            into.push(Wanted {
                tensor: index,
                chunk,
                part: Part { offsets: from(&stored.part.offsets), sizes: shared.sizes.clone() },
                destination,
                shape: wish.sizes.clone(),
                at: from(&wish.offsets),
            });
        }
        if !matches!(self.covers[index], Cover::Exact | Cover::Overlapping) {
            let parts = into[first..]
                .iter()
                .map(|want| Part { offsets: want.at.clone(), sizes: want.part.sizes.clone() });
            if !matches!(cover(&wish.sizes, &parts.collect::<Vec<_>>()), Cover::Exact | Cover::Overlapping) {
                return Err(Error::Invalid(format!(
                    "{name}: parts of {ranges:?} are in no chunk that this rank's metadata know; open the checkpoint without naming a rank"
                )));
            }
        }
        Ok(wish.volume() * tensor.dtype.bytes())
    }

    /// The same for all wishes of a plan.
    pub(crate) fn resolve_all(&self, plan: &ReadPlan<'_>) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        for (destination, wish) in plan.wishes.iter().enumerate() {
            let bytes = self.resolve(&wish.name, wish.ranges.as_deref(), destination as u32, &mut wanted)?;
            if bytes != wish.memory.len() as u64 {
                return Err(Error::Invalid(format!(
                    "{}: it takes {bytes} bytes, and memory of {} was given for it",
                    wish.name,
                    wish.memory.len()
                )));
            }
        }
        Ok(wanted)
    }
}
