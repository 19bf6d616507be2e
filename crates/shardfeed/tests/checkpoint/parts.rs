//! Parts of stored chunks, each to places of its own: what other languages' tensors ask for.

use shardfeed::Error;
use shardfeed::checkpoint::{
    Checkpoint, Dtype, ItemFailure, Metadata, OpenOptions, Part, PlacedPart, Placement, RawItem, ReadOptions,
    ReadPlan, Stop, write_sample,
};

use crate::support::{open, scratch, ways};

/// `model.weight` of the sample: 4 by 4 numbers of four bytes.
fn weight(checkpoint: &Checkpoint) -> (usize, Vec<u8>) {
    let tensor = checkpoint.tensors().iter().position(|tensor| tensor.name == "model.weight").unwrap();
    assert_eq!(checkpoint.tensors()[tensor].dtype, Dtype::Float32);
    assert_eq!(checkpoint.tensors()[tensor].shape, [4, 4]);
    (tensor, checkpoint.read("model.weight").unwrap().bytes)
}

/// All chunks of a tensor, each to where it belongs in a memory of these strides.
fn all_of(checkpoint: &Checkpoint, tensor: usize, start: u64, strides: [u64; 2]) -> Vec<PlacedPart> {
    let chunks = checkpoint.tensors()[tensor].chunks.iter().enumerate();
    let part = |(chunk, stored): (usize, &shardfeed::checkpoint::StoredChunk)| PlacedPart {
        tensor,
        chunk,
        part: Part::whole(&stored.part.sizes),
        placement: Placement {
            start: start + stored.part.offsets[0] * strides[0] + stored.part.offsets[1] * strides[1],
            strides: strides.to_vec(),
        },
    };
    chunks.map(part).collect()
}

#[test]
fn metadata_of_somebody_else_are_refused_where_chunks_are_not_in_their_tensors() {
    let dir = scratch();
    write_sample(dir.path()).unwrap();
    let metadata = open(dir.path()).metadata().clone();
    let tensor = metadata.tensors.iter().position(|tensor| tensor.name == "model.weight").unwrap();
    let described = |shape: &[u64], part: Part| {
        let mut metadata = metadata.clone();
        metadata.tensors[tensor].shape = shape.to_vec();
        metadata.tensors[tensor].chunks[0].part = part;
        Checkpoint::open_described(dir.path(), metadata, &OpenOptions::default())
    };
    let part = |offsets: &[u64], sizes: &[u64]| Part { offsets: offsets.to_vec(), sizes: sizes.to_vec() };
    described(&[4, 4], part(&[0, 0], &[2, 4])).unwrap();
    for (shape, outside) in [
        (&[4, 4][..], part(&[3, 0], &[2, 4])),
        (&[4, 4], part(&[u64::MAX, 0], &[2, 4])),
        (&[4, 4], part(&[0], &[2])),
        (&[4], part(&[0, 0], &[2, 1])),
    ] {
        let error = described(shape, outside).unwrap_err().to_string();
        assert!(error.contains("model.weight") && error.contains("is no part of its shape"), "{error}");
    }
    let error = described(&[1 << 32, 1 << 32], part(&[0, 0], &[2, 4])).unwrap_err().to_string();
    assert!(error.contains("is larger than any memory"), "{error}");
}

#[test]
fn elements_go_to_where_they_belong_and_nothing_between_them_is_touched() {
    let dir = scratch();
    write_sample(dir.path()).unwrap();
    let mut checkpoint = open(dir.path());
    let (tensor, bytes) = weight(&checkpoint);
    for options in ways() {
        checkpoint = checkpoint.with_options(options);
        // Row by row, column by column, with room between the rows, and with room between all numbers.
        for (start, strides) in [(0, [16, 4]), (0, [4, 16]), (12, [40, 4]), (3, [64, 9])] {
            let mut memory = vec![0xa5; 400];
            let mut expected = memory.clone();
            for (number, element) in bytes.chunks(4).enumerate() {
                let to = start + number as u64 / 4 * strides[0] + number as u64 % 4 * strides[1];
                expected[to as usize..to as usize + 4].copy_from_slice(element);
            }
            let mut plan = ReadPlan::new();
            plan.read_parts("weight", all_of(&checkpoint, tensor, start, strides), &mut memory);
            let stats = checkpoint.read_into(plan).unwrap();
            assert_eq!(memory, expected, "{start} {strides:?}");
            assert_eq!(stats.bytes, 64);
        }
    }
}

#[test]
fn of_parts_that_lie_over_each_other_the_last_one_stays() {
    let dir = scratch();
    write_sample(dir.path()).unwrap();
    let mut checkpoint = open(dir.path());
    let (tensor, bytes) = weight(&checkpoint);
    let row = |index: u64| PlacedPart {
        tensor,
        chunk: 0,
        part: Part { offsets: vec![index, 0], sizes: vec![1, 4] },
        placement: Placement { start: 0, strides: vec![16, 4] },
    };
    for options in ways() {
        checkpoint = checkpoint.with_options(options);
        for order in [[0, 1], [1, 0]] {
            let mut memory = [0; 16];
            let mut plan = ReadPlan::new();
            plan.read_parts("rows", order.map(row).to_vec(), &mut memory);
            checkpoint.read_into(plan).unwrap();
            let last = order[1] as usize * 16;
            assert_eq!(memory, bytes[last..last + 16]);
        }
    }
}

#[test]
fn parts_that_are_not_there_or_do_not_fit_are_refused() {
    let dir = scratch();
    write_sample(dir.path()).unwrap();
    let checkpoint = open(dir.path());
    let (tensor, _) = weight(&checkpoint);
    let good = PlacedPart {
        tensor,
        chunk: 0,
        part: Part { offsets: vec![0, 0], sizes: vec![1, 4] },
        placement: Placement { start: 0, strides: vec![16, 4] },
    };
    let refused = |wrong: PlacedPart| {
        let mut memory = [0; 16];
        let mut plan = ReadPlan::new();
        plan.read_parts("wrong", vec![wrong], &mut memory);
        checkpoint.read_into(plan).unwrap_err().to_string()
    };
    assert!(refused(PlacedPart { tensor: 99, ..good.clone() }).contains("no chunk 0 of a tensor 99"));
    assert!(refused(PlacedPart { chunk: 99, ..good.clone() }).contains("no chunk 99"));
    let part = Part { offsets: vec![4, 0], sizes: vec![1, 4] };
    assert!(refused(PlacedPart { part, ..good.clone() }).contains("is no part of a chunk"));
    let late = Placement { start: 4, strides: vec![16, 4] };
    assert!(refused(PlacedPart { placement: late, ..good.clone() }).contains("is not within 16 bytes"));
    let single = Placement { start: 0, strides: vec![16, 0] };
    assert!(refused(PlacedPart { placement: single, ..good.clone() }).contains("lie over each other"));
    let flat = Placement { start: 0, strides: vec![4] };
    assert!(refused(PlacedPart { placement: flat, ..good }).contains("is not within 16 bytes"));
}

#[test]
fn items_come_as_they_are_stored() {
    let dir = scratch();
    write_sample(dir.path()).unwrap();
    let checkpoint = open(dir.path());
    let chunk = &checkpoint.tensors()[weight(&checkpoint).0].chunks[0];
    let wish = RawItem { name: "w".to_owned(), item: chunk.item.clone(), bytes_max: 1 << 20 };
    let read = checkpoint.read_items(&[wish.clone(), wish.clone()]).unwrap();
    let (path, _) = checkpoint.files().nth(chunk.item.file as usize).unwrap();
    let stored = std::fs::read(path).unwrap();
    let stored = &stored[chunk.item.offset as usize..(chunk.item.offset + chunk.item.length) as usize];
    if chunk.item.transforms.is_empty() {
        assert_eq!(read, [stored, stored]);
    }
    let mut late = wish.clone();
    late.item.length = 1 << 40;
    let mut nowhere = wish;
    nowhere.item.file = 99;
    let error = checkpoint.read_items(&[late]).unwrap_err().to_string();
    assert!(error.contains("does not end within") && error.contains(path.to_str().unwrap()), "{error}");
    assert!(checkpoint.read_items(&[nowhere]).unwrap_err().to_string().contains("file number 99"));
}

#[test]
fn what_somebody_else_describes_is_opened_and_checked() {
    let dir = scratch();
    write_sample(dir.path()).unwrap();
    let known = open(dir.path());
    let (tensor, bytes) = weight(&known);
    let options = OpenOptions::default();
    let metadata = Metadata {
        tensors: vec![known.tensors()[tensor].clone()],
        files: known.metadata().files.clone(),
        ..Metadata::default()
    };
    let described = Checkpoint::open_described(dir.path(), metadata.clone(), &options).unwrap();
    assert_eq!(described.read("model.weight").unwrap().bytes, bytes);
    let outside = Metadata { files: vec!["../x".to_owned(); metadata.files.len()], ..metadata.clone() };
    let error = Checkpoint::open_described(dir.path(), outside, &options).unwrap_err().to_string();
    assert!(error.contains("outside of the checkpoint"), "{error}");
    let error = Checkpoint::open_described(dir.path(), Metadata { files: vec![], ..metadata }, &options);
    assert!(error.unwrap_err().to_string().contains("is stored in no file"));
}

/// A planner that converts saves fewer bytes than the metadata say, and who described that knows what to do about it.
#[test]
fn what_is_described_larger_than_it_is_stored_fails_where_it_is_read_and_takes_no_memory() {
    let dir = scratch();
    write_sample(dir.path()).unwrap();
    let known = open(dir.path());
    let (tensor, _) = weight(&known);
    let mut claimed = known.tensors()[tensor].clone();
    claimed.shape = vec![1 << 20, 1 << 20];
    claimed.chunks.truncate(1);
    claimed.chunks[0].part = Part { offsets: vec![0, 0], sizes: claimed.shape.clone() };
    let metadata =
        Metadata { tensors: vec![claimed], files: known.metadata().files.clone(), ..Metadata::default() };
    let described = Checkpoint::open_described(dir.path(), metadata, &OpenOptions::default()).unwrap();
    for error in [
        described.read("model.weight").unwrap_err(),
        described.read_slice("model.weight", &[0..1 << 20, 0..1 << 20]).unwrap_err(),
        described.read_each(["model.weight"], |_, _| Ok(())).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(error.contains("model.weight at byte") && error.contains("cannot be stored in"), "{error}");
    }
    let mut memory = [0; 16];
    let mut plan = ReadPlan::new();
    plan.read_slice("model.weight", &[0..1, 0..4], &mut memory);
    match described.read_into(plan).unwrap_err() {
        Error::CheckpointDamaged(failures) => {
            assert!(failures.0.iter().all(ItemFailure::is_other_than_described), "{failures}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_read_that_is_stopped_fails_and_says_so() {
    let dir = scratch();
    write_sample(dir.path()).unwrap();
    let stop = Stop::new();
    for use_parallel in [true, false] {
        let options = ReadOptions { use_parallel, stop: Some(stop.clone()), ..ReadOptions::default() };
        let checkpoint = open(dir.path()).with_options(options);
        if use_parallel {
            checkpoint.read("model.weight").unwrap();
        }
        stop.stop();
        let error = checkpoint.read("model.weight").unwrap_err().to_string();
        assert!(
            error.contains("stopped before it was finished") && error.contains("model.weight"),
            "{error}"
        );
        let chunk = checkpoint.tensors()[0].chunks[0].item.clone();
        let wish = RawItem { name: "w".to_owned(), item: chunk, bytes_max: 1 << 20 };
        assert!(checkpoint.read_items(&[wish]).unwrap_err().to_string().contains("stopped"));
    }
}
