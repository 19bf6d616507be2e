use std::collections::HashMap;
use std::ops::Range;

use shardfeed_plan::checkpoint::{Cover, Part, Placed, Placement, cover};

use super::opened::Checkpoint;
use crate::error::{Error, Result};

/// What is wanted of a checkpoint, and the memory that it goes to.
#[derive(Default)]
pub struct ReadPlan<'a> {
    pub(crate) wishes: Vec<Wish<'a>>,
}

/// A part of one stored chunk, and where its elements go in a piece of memory.
#[derive(Clone, Debug)]
pub struct PlacedPart {
    /// The tensor, by its place in [`Checkpoint::tensors`].
    pub tensor: usize,
    /// The chunk, by its place in the tensor.
    pub chunk: usize,
    /// Which part, counted from the chunk's first element.
    pub part: Part,
    /// Where it goes.
    pub placement: Placement,
}

/// Something that goes to a piece of memory.
pub(crate) struct Wish<'a> {
    pub(crate) name: String,
    asked: Asked,
    pub(crate) memory: &'a mut [u8],
}

/// What somebody wishes.
pub(crate) enum Asked {
    Whole,
    Slice(Vec<Range<u64>>),
    /// A slice as it is in the whole tensor. Where chunks lie over each other, which one counts depends on which files are read first.
    Piece(Vec<Range<u64>>),
    Parts(Vec<PlacedPart>),
}

impl Asked {
    /// A range for each dimension of a tensor, unless all of it is wished.
    pub(crate) fn ranges(&self) -> Option<&[Range<u64>]> {
        match self {
            Self::Slice(ranges) | Self::Piece(ranges) => Some(ranges),
            Self::Whole | Self::Parts(_) => None,
        }
    }
}

/// A part of a stored chunk, and where it goes.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) tensor: usize,
    pub(crate) chunk: usize,
    /// Which part, counted from the chunk's first element.
    pub(crate) part: Part,
    pub(crate) destination: u32,
    /// Where in it.
    pub(crate) placement: Placement,
    /// Nothing else that is wanted goes to any of the same bytes.
    pub(crate) is_apart: bool,
    /// Where it does, the one with the higher turn comes later, and of those with the same the one that was asked for later.
    pub(crate) turn: usize,
}

impl<'a> ReadPlan<'a> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole tensor, row by row, into memory of exactly its size.
    pub fn read(&mut self, name: &str, memory: &'a mut [u8]) -> &mut Self {
        self.ask(name, Asked::Whole, memory)
    }

    /// A part of a tensor, one range for each of its dimensions, into memory of exactly its size.
    pub fn read_slice(&mut self, name: &str, ranges: &[Range<u64>], memory: &'a mut [u8]) -> &mut Self {
        self.ask(name, Asked::Slice(ranges.to_vec()), memory)
    }

    /// Parts of stored chunks, each to places of its own in one piece of memory; `name` is what progress says of them. Where parts
    /// lie over each other, or may, they are read one after another, and the last one stays.
    pub fn read_parts(&mut self, name: &str, parts: Vec<PlacedPart>, memory: &'a mut [u8]) -> &mut Self {
        self.ask(name, Asked::Parts(parts), memory)
    }

    pub(crate) fn ask(&mut self, name: &str, asked: Asked, memory: &'a mut [u8]) -> &mut Self {
        self.wishes.push(Wish { name: name.to_owned(), asked, memory });
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
        let mut filled = Vec::new();
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
                placement: Placement::row_major(tensor.dtype, &wish.sizes, &from(&wish.offsets)),
                is_apart: self.covers[index] == Cover::Exact,
                turn: 0,
            });
            filled.push(Part { offsets: from(&wish.offsets), sizes: shared.sizes.clone() });
        }
        let is_whole = |cover: Cover| matches!(cover, Cover::Exact | Cover::Overlapping);
        if !is_whole(self.covers[index]) && !is_whole(cover(&wish.sizes, &filled)) {
            return Err(Error::Invalid(format!(
                "{}: {name}: parts of {ranges:?} are in no chunk that this rank's metadata know; open the checkpoint without naming a rank",
                self.path().display()
            )));
        }
        Ok(wish.volume() * tensor.dtype.bytes())
    }

    /// The same for all wishes of a plan.
    pub(crate) fn resolve_all(&self, plan: &ReadPlan<'_>) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        for (destination, wish) in plan.wishes.iter().enumerate() {
            let (destination, len) = (destination as u32, wish.memory.len() as u64);
            if let Asked::Parts(parts) = &wish.asked {
                self.resolve_parts(parts, destination, len, &mut wanted)?;
                continue;
            }
            let bytes = self.resolve(&wish.name, wish.asked.ranges(), destination, &mut wanted)?;
            if bytes != len {
                return Err(Error::Invalid(format!(
                    "{}: it takes {bytes} bytes, and memory of {len} was given for it",
                    wish.name,
                )));
            }
        }
        self.take_turns(plan, &mut wanted);
        Ok(wanted)
    }

    /// The stock reader takes a file after another, in the order in which they are needed first. Parts come in an order of their own.
    fn take_turns(&self, plan: &ReadPlan<'_>, wanted: &mut [Wanted]) {
        let mut turns: HashMap<u32, usize> = HashMap::new();
        let mut turn_of = |file: u32| {
            let next = turns.len();
            *turns.entry(file).or_insert(next)
        };
        let mut last = None;
        for want in wanted {
            let chunks = &self.tensors()[want.tensor].chunks;
            let is_first = last.replace(want.destination) != Some(want.destination);
            match plan.wishes[want.destination as usize].asked {
                Asked::Parts(_) => continue,
                Asked::Piece(_) if is_first && !want.is_apart => {
                    // Of empty ones nothing is ever read.
                    for chunk in chunks.iter().filter(|chunk| chunk.part.volume() > 0) {
                        turn_of(chunk.item.file);
                    }
                }
                _ => {}
            }
            want.turn = turn_of(chunks[want.chunk].item.file);
        }
    }

    fn resolve_parts(
        &self,
        parts: &[PlacedPart],
        destination: u32,
        memory_len: u64,
        into: &mut Vec<Wanted>,
    ) -> Result<()> {
        let mut placed = Vec::with_capacity(parts.len());
        for wish in parts {
            let PlacedPart { tensor, chunk, part, placement } = wish;
            let stored =
                self.tensors().get(*tensor).and_then(|tensor| Some((tensor, tensor.chunks.get(*chunk)?)));
            let (tensor, chunk) = stored
                .ok_or_else(|| Error::Invalid(format!("there is no chunk {chunk} of a tensor {tensor}")))?;
            let refused = |what: String| Error::Invalid(format!("{}: {what}", tensor.name));
            let sizes = &chunk.part.sizes;
            if !part.is_within(sizes) || part.volume() == 0 {
                return Err(refused(format!("{part:?} is no part of a chunk of {sizes:?}")));
            }
            let own = Placed { placement, sizes: &part.sizes, element: tensor.dtype.bytes() };
            if own.end().is_none_or(|end| end > memory_len) {
                return Err(refused(format!(
                    "{:?} at {placement:?} is not within {memory_len} bytes",
                    part.sizes
                )));
            }
            if !own.is_single() {
                return Err(refused(format!(
                    "elements of {:?} at {placement:?} lie over each other",
                    part.sizes
                )));
            }
            placed.push(own);
        }
        let apart = apart(&placed);
        for (PlacedPart { tensor, chunk, part, placement }, is_apart) in parts.iter().cloned().zip(apart) {
            into.push(Wanted { tensor, chunk, part, destination, placement, is_apart, turn: 0 });
        }
        Ok(())
    }
}

/// Which of them surely share no byte with any other.
fn apart(placed: &[Placed<'_>]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..placed.len()).collect();
    order.sort_by_key(|&index| placed[index].placement.start);
    let mut is_apart = vec![true; placed.len()];
    for (turn, &one) in order.iter().enumerate() {
        let end = placed[one].end().unwrap_or(u64::MAX);
        for &other in order[turn + 1..].iter().take_while(|&&other| placed[other].placement.start < end) {
            // Of those of which it is known already nobody has to ask again.
            if (is_apart[one] || is_apart[other]) && !placed[one].is_apart(&placed[other]) {
                is_apart[one] = false;
                is_apart[other] = false;
            }
        }
    }
    is_apart
}
