use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardfeed_plan::checkpoint::{Cover, Dtype, Fix, StoredTensor};

use super::bytes::FileBytes;
use super::checksums::Checksums;
use super::locate::{Headers, locate};
use super::number::for_each_number;
use super::opened::Checkpoint;
use super::options::{DirectIo, ReadOptions, TellProgress, Telling};
use super::parallel::Kept;
use super::slabs::{for_each_piece, is_packed};
use super::verify::records_of;
use super::wanted::Asked;
use crate::error::Result;
use crate::parallel::{default_threads, map_in_parallel};

/// Bytes of a tensor that are compared at a time.
const SLAB_BYTES: u64 = 8 << 20;

/// How two checkpoints differ.
#[derive(Clone, Debug, Default)]
pub struct CheckpointDiff {
    /// Everything that is not the same, by name.
    pub differences: Vec<Difference>,
    /// Tensors and objects that are the same.
    pub same: usize,
    /// How many of those were seen to be so by checksums that were stored with them, without reading them.
    pub same_by_checksum: usize,
}

/// Something that two checkpoints do not have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The tensor or object.
    pub name: String,
    /// What is different.
    pub what: DifferenceKind,
}

/// What can be different.
#[derive(Clone, Debug, PartialEq)]
pub enum DifferenceKind {
    /// Only the first has it.
    OnlyInFirst,
    /// Only the second has it.
    OnlyInSecond,
    /// Types or shapes differ: those of the first, those of the second.
    Form(String, String),
    /// Elements differ.
    Elements {
        /// How many.
        different: u64,
        /// Of how many.
        of: u64,
        /// How many of them are no number, or infinite, on one side: those have no distance.
        without_distance: u64,
        /// The largest distance of the others.
        largest: f64,
        /// The largest distance in relation to the larger of the two.
        largest_relative: f64,
    },
    /// Bytes of an object differ.
    Bytes,
}

/// Compares two checkpoints: by stored checksums where both have them for the same chunks, otherwise by what they hold.
pub fn diff_checkpoints(
    first: &Checkpoint,
    second: &Checkpoint,
    progress: Option<&TellProgress>,
) -> Result<CheckpointDiff> {
    let mut diff = CheckpointDiff::default();
    let mut differ = |name: &str, what| diff.differences.push(Difference { name: name.to_owned(), what });
    let mut common = Vec::new();
    for tensor in first.tensors() {
        match second.tensor(&tensor.name) {
            None => differ(&tensor.name, DifferenceKind::OnlyInFirst),
            Some(other) if (other.dtype, &other.shape) != (tensor.dtype, &tensor.shape) => {
                differ(&tensor.name, DifferenceKind::Form(form(tensor), form(other)));
            }
            Some(other) => common.push((tensor, other)),
        }
    }
    let news = second.tensors().iter().filter(|tensor| first.tensor(&tensor.name).is_none());
    news.for_each(|tensor| differ(&tensor.name, DifferenceKind::OnlyInSecond));
    let bytes_total = common.iter().map(|(tensor, _)| tensor.bytes()).sum();
    let telling = Telling::new(bytes_total, progress);
    let compared = map_in_parallel(&common, default_threads(), |(one, other)| {
        let outcome = compare(first, one, second, other)?;
        telling.came(one.bytes(), Some(&one.name));
        Ok::<_, crate::Error>(outcome)
    })?;
    for ((tensor, _), outcome) in common.iter().zip(compared) {
        match outcome {
            Outcome::SameByChecksum => diff.same_by_checksum += 1,
            Outcome::Same => {}
            Outcome::Different(what) => {
                diff.differences.push(Difference { name: tensor.name.clone(), what });
                continue;
            }
        }
        diff.same += 1;
    }
    objects(first, second, &mut diff)?;
    diff.differences.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(diff)
}

fn form(tensor: &StoredTensor) -> String {
    format!("{} {:?}", tensor.dtype, tensor.shape)
}

fn objects(first: &Checkpoint, second: &Checkpoint, diff: &mut CheckpointDiff) -> Result<()> {
    let names = |checkpoint: &Checkpoint| {
        checkpoint.objects().iter().map(|object| object.name.clone()).collect::<BTreeSet<_>>()
    };
    let (one, other) = (names(first), names(second));
    for name in one.union(&other) {
        let what = match (one.contains(name), other.contains(name)) {
            (true, false) => DifferenceKind::OnlyInFirst,
            (false, true) => DifferenceKind::OnlyInSecond,
            // Archives hold a number that differs from save to save, after the pickle.
            _ if says_the_same(&first.read_object(name)?, &second.read_object(name)?) => {
                diff.same += 1;
                continue;
            }
            _ => DifferenceKind::Bytes,
        };
        diff.differences.push(Difference { name: name.clone(), what });
    }
    Ok(())
}

/// Whether two objects say the same: by the records of their archives but those that say how they were written, or by their bytes if
/// one of them is none.
fn says_the_same(one: &[u8], other: &[u8]) -> bool {
    match (said(one), said(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// What an object says, by the names of its records. Nothing is copied: an archive may say that a million records lie in the same bytes.
fn said(object: &[u8]) -> Option<BTreeMap<String, &[u8]>> {
    let mut said = BTreeMap::new();
    for (record, data) in records_of(object).ok()? {
        let name = record.name.split_once('/').map(|(_, name)| name);
        if let Some(name) =
            name.filter(|name| *name == "data.pkl" || name.starts_with("data/") || *name == "byteorder")
            && said.insert(name.to_owned(), &object[data.start as usize..data.end as usize]).is_some()
        {
            return None; // Nobody knows which of the two counts.
        }
    }
    Some(said)
}

enum Outcome {
    SameByChecksum,
    Same,
    Different(DifferenceKind),
}

fn compare(
    first: &Checkpoint,
    one: &StoredTensor,
    second: &Checkpoint,
    other: &StoredTensor,
) -> Result<Outcome> {
    if let (Some(sums), Some(others)) = (checksums(first, one), checksums(second, other))
        && sums == others
    {
        return Ok(Outcome::SameByChecksum);
    }
    for (checkpoint, tensor) in [(first, one), (second, other)] {
        if checkpoint.options.verify {
            checkpoint.check_empty_chunks(tensor, &checkpoint.options)?;
        }
    }
    let mut distance = Distance::default();
    let seen = [(); 2].map(|()| Arc::new(Checksums::default()));
    for_each_piece(divided(one, other), SLAB_BYTES, &mut |ranges| {
        let read = |checkpoint: &Checkpoint, seen: &Arc<Checksums>| {
            let kept = Kept::sharing(Arc::clone(seen));
            let asked = Asked::Piece(ranges.to_vec());
            checkpoint.read_with(&one.name, asked, &checkpoint.options.of_pieces(), &kept)
        };
        distance.add(one.dtype, &read(first, &seen[0])?.bytes, &read(second, &seen[1])?.bytes);
        Ok(())
    })?;
    for (checkpoint, seen) in [(first, &seen[0]), (second, &seen[1])] {
        if checkpoint.options.verify {
            // Others are compared at the same time.
            let options = ReadOptions { num_workers: Some(1), ..checkpoint.options.of_pieces() };
            checkpoint.compare_rest_with(seen, &options)?;
        }
    }
    if distance.different == 0 {
        return Ok(Outcome::Same);
    }
    Ok(Outcome::Different(DifferenceKind::Elements {
        different: distance.different,
        of: one.shape.iter().product(),
        without_distance: distance.without,
        largest: distance.largest,
        largest_relative: distance.largest_relative,
    }))
}

/// In whose pieces two tensors of the same shape are compared: chunks of the one that is compressed, so that each of them is decompressed
/// once. If both are, and are divided in other ways, those of the other one are decompressed for each piece that they have a part in.
fn divided<'t>(one: &'t StoredTensor, other: &'t StoredTensor) -> &'t StoredTensor {
    let packed = [one, other].into_iter().filter(|tensor| is_packed(tensor));
    packed.min_by_key(|tensor| tensor.chunks.len()).unwrap_or(one)
}

/// The checksum of each chunk with how it lies, if every chunk has one and its bytes are its numbers.
fn checksums(checkpoint: &Checkpoint, tensor: &StoredTensor) -> Option<Vec<String>> {
    // Where chunks overlap, it matters which comes last.
    if tensor.cover() != Cover::Exact {
        return None;
    }
    let headers = Headers::default();
    let mut sums = Vec::new();
    for chunk in &tensor.chunks {
        if !chunk.item.transforms.is_empty() {
            return None;
        }
        let facts = &checkpoint.files[chunk.item.file as usize];
        let mut file = FileBytes::open(facts, DirectIo::Never, Vec::new()).ok()?;
        let located = locate(tensor, chunk, checkpoint.found.is_raw, &mut file, facts.len, &headers).ok()?;
        let view = &located.view;
        if Fix::of(view).is_some() {
            return None;
        }
        let len = view.data.end - view.data.start;
        sums.push(format!("{:?} {:?} {} {len} {:08x}", chunk.part, view.strides, view.start, located.crc?));
    }
    sums.sort_unstable();
    Some(sums)
}

#[derive(Default)]
struct Distance {
    different: u64,
    without: u64,
    largest: f64,
    largest_relative: f64,
}

impl Distance {
    fn add(&mut self, dtype: Dtype, one: &[u8], other: &[u8]) {
        if one == other {
            return;
        }
        let bytes = dtype.bytes() as usize;
        for (one, other) in one.chunks_exact(bytes).zip(other.chunks_exact(bytes)) {
            if one == other {
                continue;
            }
            self.different += 1;
            if let (Some(one), Some(other)) = (whole_number(dtype, one), whole_number(dtype, other)) {
                self.note(one.abs_diff(other) as f64, one.unsigned_abs().max(other.unsigned_abs()) as f64);
                continue;
            }
            let (mut ones, mut others) = ([0.0; 2], [0.0; 2]);
            collect(dtype, one, &mut ones);
            collect(dtype, other, &mut others);
            if !ones.iter().chain(&others).all(|number| number.is_finite()) {
                self.without += 1;
                continue;
            }
            for (one, other) in ones.into_iter().zip(others) {
                self.note((one - other).abs(), one.abs().max(other.abs()));
            }
        }
    }

    fn note(&mut self, distance: f64, scale: f64) {
        self.largest = self.largest.max(distance);
        self.largest_relative = self.largest_relative.max(if scale > 0.0 { distance / scale } else { 0.0 });
    }
}

/// A number of 64 bits, of which neighbours may be the same as numbers with a fraction.
fn whole_number(dtype: Dtype, element: &[u8]) -> Option<i128> {
    match dtype {
        Dtype::Int64 => Some(i64::from_le_bytes(element.try_into().ok()?).into()),
        Dtype::Uint64 => Some(u64::from_le_bytes(element.try_into().ok()?).into()),
        _ => None,
    }
}

fn collect(dtype: Dtype, element: &[u8], into: &mut [f64; 2]) {
    let mut index = 0;
    for_each_number(dtype, element, |number| {
        into[index] = number;
        index += 1;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_among_large_whole_numbers_are_one_apart() {
        for (dtype, one, other) in [
            (Dtype::Int64, (1_i64 << 53).to_le_bytes(), ((1_i64 << 53) + 1).to_le_bytes()),
            (Dtype::Int64, i64::MIN.to_le_bytes(), (i64::MIN + 1).to_le_bytes()),
            (Dtype::Uint64, u64::MAX.to_le_bytes(), (u64::MAX - 1).to_le_bytes()),
        ] {
            let mut distance = Distance::default();
            distance.add(dtype, &one, &other);
            assert_eq!((distance.different, distance.without), (1, 0), "{dtype}");
            assert_eq!(distance.largest.to_bits(), 1_f64.to_bits(), "{dtype}");
            assert!(distance.largest_relative > 0.0);
        }
        let mut distance = Distance::default();
        distance.add(Dtype::Int64, &i64::MIN.to_le_bytes(), &i64::MAX.to_le_bytes());
        assert_eq!(distance.largest.to_bits(), 2_f64.powi(64).to_bits());
    }
}
