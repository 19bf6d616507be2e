//! Random checkpoints, random parts of their tensors, random ways to read: always what was written.

use std::ops::Range;

use shardfeed::checkpoint::{Checkpoint, DirectIo, Dtype, ReadOptions, ReadPlan, RunLimits};

use crate::common::{Dice, cases};
use crate::support::{scratch, some_bytes};
use crate::writer::{Item, Writer};

/// A tensor as it was written, row by row, and its chunks in the order of the metadata.
struct Model {
    name: String,
    width: usize,
    shape: Vec<u64>,
    chunks: Vec<ModelChunk>,
}

struct ModelChunk {
    file: String,
    offsets: Vec<u64>,
    sizes: Vec<u64>,
    elements: Vec<u8>,
}

/// A tensor, a part of it, and where it goes.
type Wish<'a> = (&'a Model, Vec<Range<u64>>);

/// Every index of a box, the last one fastest.
fn indexes(sizes: &[u64]) -> impl Iterator<Item = Vec<u64>> + '_ {
    (0..sizes.iter().product::<u64>()).map(|number| {
        let mut rest = number;
        let mut index = vec![0; sizes.len()];
        for dim in (0..sizes.len()).rev() {
            index[dim] = rest % sizes[dim];
            rest /= sizes[dim];
        }
        index
    })
}

fn place(index: &[u64], sizes: &[u64]) -> usize {
    index.iter().zip(sizes).fold(0, |place, (index, size)| place * size + index) as usize
}

/// Splits a dimension at random places; some parts are empty.
fn cuts(size: u64, dice: &mut Dice) -> Vec<Range<u64>> {
    let mut places: Vec<u64> = (0..dice.below(3)).map(|_| dice.below(size as usize + 1) as u64).collect();
    places.extend([0, size]);
    places.sort_unstable();
    places.windows(2).map(|pair| pair[0]..pair[1]).filter(|part| size == 0 || !part.is_empty()).collect()
}

fn shape(dice: &mut Dice) -> Vec<u64> {
    // Now and then one that is too large to be read as a whole, or with the cache.
    match dice.below(12) {
        0 => vec![200 + dice.below(200) as u64, 100 + dice.below(100) as u64],
        1 => vec![40, 1 + dice.below(40) as u64, 30],
        _ => (0..dice.below(5)).map(|_| dice.pick(&[0, 1, 1, 2, 3, 4, 5, 7, 11])).collect(),
    }
}

fn item(dtype: Dtype, sizes: &[u64], elements: &[u8], dice: &mut Dice) -> Item {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    if dice.one_in(2) {
        (1..order.len()).for_each(|index| order.swap(index, dice.below(index + 1)));
    }
    let item = Item::permuted(dtype, sizes, elements, &order);
    let item = if dice.one_in(4) { item.big_endian() } else { item };
    if dice.one_in(3) { item.without_crc() } else { item }
}

fn tensor(writer: &mut Writer, number: usize, dice: &mut Dice) -> Model {
    let dtypes: Vec<Dtype> = Dtype::all().collect();
    let (dtype, shape, name) = (dice.pick(&dtypes), shape(dice), format!("layer.{number}"));
    let width = dtype.bytes() as usize;
    writer.tensor(&name, dtype, &shape);
    let whole = some_bytes(shape.iter().product::<u64>() as usize * width, dice.word());
    let grid: Vec<Vec<Range<u64>>> = shape.iter().map(|&size| cuts(size, dice)).collect();
    let counts: Vec<u64> = grid.iter().map(|cuts| cuts.len() as u64).collect();
    let mut boxes: Vec<Vec<Range<u64>>> = indexes(&counts)
        .map(|index| index.iter().zip(&grid).map(|(&cut, cuts)| cuts[cut as usize].clone()).collect())
        .collect();
    // Some lie over each other: the last one that is read stays, and holds something else.
    let own = boxes.len();
    if dice.one_in(5) && !shape.is_empty() && !whole.is_empty() {
        let offset = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.start).collect::<Vec<_>>();
        let other: Vec<Range<u64>> = shape.iter().map(|&size| part(size, dice)).collect();
        // Torch tells chunks by where they begin.
        if boxes.iter().all(|known| offset(known) != offset(&other)) {
            boxes.insert(dice.below(own + 1), other);
        }
    }
    (1..boxes.len()).for_each(|index| boxes.swap(index, dice.below(index + 1)));
    let is_changed = boxes.len() > own;
    let mut chunks = Vec::new();
    for ranges in boxes {
        let offsets: Vec<u64> = ranges.iter().map(|range| range.start).collect();
        let sizes: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
        let mut elements = Vec::new();
        for index in indexes(&sizes) {
            let at: Vec<u64> = index.iter().zip(&offsets).map(|(index, offset)| index + offset).collect();
            elements.extend_from_slice(&whole[place(&at, &shape) * width..][..width]);
        }
        if is_changed {
            elements = some_bytes(elements.len(), dice.word());
        }
        let file = format!("__{}_0.distcp", dice.below(3));
        let item = item(dtype, &sizes, &elements, dice);
        if dice.one_in(4) {
            writer.packed_chunk(&file, &offsets, &item);
        } else {
            writer.chunk(&file, &offsets, &item);
        }
        chunks.push(ModelChunk { file, offsets, sizes, elements });
    }
    Model { name, width, shape, chunks }
}

fn part(size: u64, dice: &mut Dice) -> Range<u64> {
    let (one, other) = (dice.below(size as usize + 1) as u64, dice.below(size as usize + 1) as u64);
    one.min(other)..one.max(other)
}

fn options(dice: &mut Dice) -> ReadOptions {
    let limits = RunLimits {
        block: dice.pick(&[64, 100, 4096, 65_536, 1 << 20]),
        gap: dice.pick(&[0, 1, 64, 4096, u64::MAX]),
        direct: dice.pick(&[1, 64, 4096, 1 << 20]),
    };
    ReadOptions {
        num_workers: Some(dice.pick(&[1, 1, 2, 3, 8, 64])),
        verify: dice.one_in(2),
        memory_budget: dice.one_in(4).then_some(1),
        direct_io: dice.pick(&[DirectIo::Auto, DirectIo::Always, DirectIo::Never]),
        limits,
        ..ReadOptions::default()
    }
}

/// What a plan gives: files in the order in which they are needed first, chunks in the order of the wishes, element after element.
fn naive(wishes: &[Wish<'_>]) -> Vec<Vec<u8>> {
    let mut memory: Vec<Vec<u8>> = wishes
        .iter()
        .map(|(model, ranges)| {
            vec![
                0xa5;
                ranges.iter().map(|range| (range.end - range.start) as usize).product::<usize>() * model.width
            ]
        })
        .collect();
    let is_wanted = |chunk: &ModelChunk, ranges: &[Range<u64>]| {
        (0..ranges.len()).all(|dim| {
            let start = chunk.offsets[dim].max(ranges[dim].start);
            start < (chunk.offsets[dim] + chunk.sizes[dim]).min(ranges[dim].end)
        })
    };
    let mut files: Vec<&str> = Vec::new();
    for (model, ranges) in wishes {
        for chunk in model.chunks.iter().filter(|chunk| is_wanted(chunk, ranges)) {
            if !files.contains(&chunk.file.as_str()) {
                files.push(&chunk.file);
            }
        }
    }
    for file in files {
        for ((model, ranges), memory) in wishes.iter().zip(&mut memory) {
            let sizes: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
            for chunk in model.chunks.iter().filter(|chunk| chunk.file == file) {
                for index in indexes(&chunk.sizes) {
                    let at: Vec<u64> =
                        index.iter().zip(&chunk.offsets).map(|(one, other)| one + other).collect();
                    if !at.iter().zip(ranges).all(|(at, range)| range.contains(at)) {
                        continue;
                    }
                    let to: Vec<u64> = at.iter().zip(ranges).map(|(at, range)| at - range.start).collect();
                    let (from, to) = (place(&index, &chunk.sizes), place(&to, &sizes));
                    memory[to * model.width..][..model.width]
                        .copy_from_slice(&chunk.elements[from * model.width..][..model.width]);
                }
            }
        }
    }
    memory
}

fn read(checkpoint: &Checkpoint, wishes: &[Wish<'_>], expected: &[Vec<u8>], what: &str) {
    let mut memory: Vec<Vec<u8>> = expected.iter().map(|bytes| vec![0xa5; bytes.len()]).collect();
    let mut plan = ReadPlan::new();
    for ((model, ranges), memory) in wishes.iter().zip(&mut memory) {
        plan.read_slice(&model.name, ranges, memory);
    }
    checkpoint.read_into(plan).unwrap_or_else(|error| panic!("{what}: {error}"));
    for (((model, ranges), memory), expected) in wishes.iter().zip(&memory).zip(expected) {
        assert!(memory == expected, "{what}: {} {:?} {ranges:?}", model.name, model.shape);
    }
}

#[test]
fn threads_one_after_another_and_a_naive_model_agree() {
    for case in 0..u64::from(cases(1_000).cases) {
        let mut dice = Dice::new(case.wrapping_mul(0x2545_f491_4f6c_dd1d));
        // On a disk now and then, where the cache can be passed by.
        let directory = if case % 4 == 0 { tempfile::tempdir().unwrap() } else { scratch() };
        let mut writer = Writer { protocol: dice.pick(&[2, 4]), ..Writer::new() };
        let models: Vec<Model> =
            (0..=dice.below(6)).map(|number| tensor(&mut writer, number, &mut dice)).collect();
        writer.write(directory.path());
        let mut checkpoint =
            Checkpoint::open(directory.path()).unwrap_or_else(|error| panic!("case {case}: {error}"));
        for round in 0..3 {
            let wishes: Vec<Wish<'_>> = (0..=dice.below(models.len() * 2))
                .map(|_| {
                    let model = &models[dice.below(models.len())];
                    let is_whole = dice.one_in(3);
                    let range = |&size: &u64| if is_whole { 0..size } else { part(size, &mut dice) };
                    (model, model.shape.iter().map(range).collect())
                })
                .collect();
            let expected = naive(&wishes);
            let one_after_another =
                ReadOptions { use_parallel: false, verify: true, ..ReadOptions::default() };
            for options in [one_after_another, options(&mut dice), options(&mut dice)] {
                let what = format!("case {case}, round {round}, {options:?}");
                checkpoint = checkpoint.with_options(options);
                read(&checkpoint, &wishes, &expected, &what);
            }
        }
    }
}
