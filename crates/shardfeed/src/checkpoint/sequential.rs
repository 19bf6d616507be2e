use shardfeed_plan::checkpoint::{Fix, ZipItem};

use super::bytes::FileBytes;
use super::locate::{Headers, Located, locate, locate_in};
use super::opened::Checkpoint;
use super::options::{DirectIo, ReadOptions, ReadProgress};
use super::read::{ReadStats, decoded_bytes_max};
use super::undo::undo;
use super::wanted::{ReadPlan, Wanted, bytes_wanted};
use crate::failures::ItemFailure;

/// Reads item after item, each whole, and copies element after element: simple enough to be believed at a glance.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    mut plan: ReadPlan<'_>,
    wanted: &[Wanted],
    options: &ReadOptions,
) -> Result<ReadStats, ItemFailure> {
    let mut stats = ReadStats { workers: 1, ..ReadStats::default() };
    // As the stock reader takes them: where parts overlap, the last one stays.
    let mut in_turn: Vec<&Wanted> = wanted.iter().collect();
    in_turn.sort_by_key(|want| want.turn);
    // Bytes that each destination still waits for.
    let mut left = bytes_wanted(checkpoint, wanted, plan.wishes.len());
    let lens = plan.wishes.iter().zip(&left).map(|(wish, left)| *left.min(&(wish.memory.len() as u64)));
    let bytes_total: u64 = lens.sum();
    let tell = |bytes: u64, finished: Option<&str>| {
        if let Some(progress) = &options.progress {
            // Chunks that overlap bring more than is waited for.
            progress(ReadProgress { bytes: bytes.min(bytes_total), bytes_total, finished });
        }
    };
    // What is empty waits for nothing.
    plan.wishes.iter().filter(|wish| wish.memory.is_empty()).for_each(|wish| tell(0, Some(&wish.name)));
    for want in in_turn {
        let memory = &mut *plan.wishes[want.destination as usize].memory;
        stats.bytes_read += read_one(checkpoint, want, memory, options)?;
        let bytes = want.part.volume() * checkpoint.tensors()[want.tensor].dtype.bytes();
        stats.bytes += bytes;
        let left = &mut left[want.destination as usize];
        *left -= bytes;
        tell(stats.bytes, (*left == 0).then(|| plan.wishes[want.destination as usize].name.as_str()));
    }
    Ok(stats)
}

fn read_one(
    checkpoint: &Checkpoint,
    want: &Wanted,
    memory: &mut [u8],
    options: &ReadOptions,
) -> Result<u64, ItemFailure> {
    let tensor = &checkpoint.tensors()[want.tensor];
    let chunk = &tensor.chunks[want.chunk];
    let facts = &checkpoint.files[chunk.item.file as usize];
    let fail = |reason: String| checkpoint.item_failure(&chunk.item, &tensor.name, reason);
    let mut file =
        FileBytes::open(facts, DirectIo::Never, Vec::new()).map_err(fail)?.stopped_by(options.stop.clone());
    let item = file.read_all(chunk.item.offset..chunk.item.offset + chunk.item.length).map_err(fail)?;
    let transforms = &chunk.item.transforms;
    let item = if transforms.is_empty() {
        item
    } else {
        undo(transforms, &item, decoded_bytes_max(tensor, chunk)).map_err(fail)?
    };
    let is_archive = !checkpoint.found.is_raw && ZipItem::begins(&item);
    let (located, item) = if is_archive {
        (locate_in(tensor, chunk, &item).map_err(fail)?, item)
    } else {
        let located =
            locate(tensor, chunk, checkpoint.found.is_raw, &mut file, facts.len, &Headers::default())
                .map_err(fail)?;
        let data = located.view.data.clone();
        let item = file.read_all(data).map_err(fail)?;
        let view = shardfeed_plan::checkpoint::TensorView { data: 0..item.len() as u64, ..located.view };
        (Located { view, crc: located.crc }, item)
    };
    if options.verify {
        super::read::check_crc(&located, &item).map_err(fail)?;
    }
    copy(&located, &item, want, memory);
    let bytes_read = file.bytes_read;
    file.check(facts).map_err(fail)?;
    Ok(bytes_read)
}

fn copy(located: &Located, item: &[u8], want: &Wanted, memory: &mut [u8]) {
    let view = &located.view;
    let bytes = view.dtype.bytes() as usize;
    let fix = Fix::of(view);
    let source = &item[view.data.start as usize..view.data.end as usize];
    // Rows that lie together on both sides are copied at once. A tensor without dimensions is a row of one.
    let (sizes, strides) = (&want.part.sizes, &want.placement.strides);
    let is_dense = view.strides.last() == Some(&1) && strides.last() == Some(&(bytes as u64));
    let row = if is_dense { *sizes.last().unwrap_or(&1) } else { 1 };
    let mut index = vec![0_u64; sizes.len()];
    for _ in 0..want.part.volume() / row {
        let (mut from, mut to) = (view.start, want.placement.start);
        for (dim, index) in index.iter().enumerate() {
            from += (want.part.offsets[dim] + index) * view.strides[dim];
            to += index * strides[dim];
        }
        let elements = &mut memory[to as usize..][..row as usize * bytes];
        elements.copy_from_slice(&source[from as usize * bytes..][..row as usize * bytes]);
        if let Some(fix) = fix {
            fix.apply(elements);
        }
        for dim in (0..sizes.len() - usize::from(is_dense)).rev() {
            index[dim] += 1;
            if index[dim] < sizes[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}
