use shardfeed_plan::checkpoint::Fix;

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
    let bytes_total: u64 = plan.wishes.iter().map(|wish| wish.memory.len() as u64).sum();
    // Files in the order in which they are needed first, as the stock reader takes them: where parts overlap, the last one stays.
    let mut files: Vec<u32> = Vec::new();
    let file_of = |want: &Wanted| checkpoint.tensors()[want.tensor].chunks[want.chunk].item.file;
    for want in wanted {
        if !files.contains(&file_of(want)) {
            files.push(file_of(want));
        }
    }
    // Bytes that each destination still waits for.
    let mut left = bytes_wanted(checkpoint, wanted, plan.wishes.len());
    let tell = |bytes: u64, finished: Option<&str>| {
        if let Some(progress) = &options.progress {
            // Chunks that overlap bring more than is waited for.
            progress(ReadProgress { bytes: bytes.min(bytes_total), bytes_total, finished });
        }
    };
    // What is empty waits for nothing.
    plan.wishes.iter().filter(|wish| wish.memory.is_empty()).for_each(|wish| tell(0, Some(&wish.name)));
    for file in files {
        for want in wanted.iter().filter(|want| file_of(want) == file) {
            let memory = &mut *plan.wishes[want.destination as usize].memory;
            stats.bytes_read += read_one(checkpoint, want, memory, options.verify)?;
            let bytes = want.part.volume() * checkpoint.tensors()[want.tensor].dtype.bytes();
            stats.bytes += bytes;
            let left = &mut left[want.destination as usize];
            *left -= bytes;
            tell(stats.bytes, (*left == 0).then(|| plan.wishes[want.destination as usize].name.as_str()));
        }
    }
    Ok(stats)
}

fn read_one(
    checkpoint: &Checkpoint,
    want: &Wanted,
    memory: &mut [u8],
    verify: bool,
) -> Result<u64, ItemFailure> {
    let tensor = &checkpoint.tensors()[want.tensor];
    let chunk = &tensor.chunks[want.chunk];
    let facts = &checkpoint.files[chunk.item.file as usize];
    let fail = |reason: String| checkpoint.item_failure(&chunk.item, &tensor.name, reason);
    let mut file = FileBytes::open(facts, DirectIo::Never, Vec::new()).map_err(fail)?;
    let item = file.read_all(chunk.item.offset..chunk.item.offset + chunk.item.length).map_err(fail)?;
    let item = undo(&chunk.item.transforms, item, decoded_bytes_max(tensor, chunk)).map_err(fail)?;
    let is_archive = !checkpoint.found.is_raw && item.starts_with(b"PK");
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
    if verify {
        super::read::check_crc(&located, &item).map_err(fail)?;
    }
    copy(&located, &item, want, memory);
    let bytes_read = file.bytes_read;
    file.close(facts).map_err(fail)?;
    Ok(bytes_read)
}

fn copy(located: &Located, item: &[u8], want: &Wanted, memory: &mut [u8]) {
    let view = &located.view;
    let bytes = view.dtype.bytes() as usize;
    let fix = Fix::of(view);
    // A tensor without dimensions is a row of one.
    let (dims, row) = (want.shape.len().saturating_sub(1), want.part.sizes.last().copied().unwrap_or(1));
    let stride = view.strides.last().copied().unwrap_or(1);
    let mut index = vec![0_u64; want.shape.len()];
    for _ in 0..want.part.sizes[..dims].iter().product::<u64>() {
        let (mut from, mut to) = (view.start, 0);
        for (dim, index) in index.iter().enumerate() {
            from += (want.part.offsets[dim] + index) * view.strides[dim];
            to = to * want.shape[dim] + want.at[dim] + index;
        }
        let source = &item[view.data.start as usize..view.data.end as usize];
        let destination = &mut memory[to as usize * bytes..][..row as usize * bytes];
        if stride == 1 {
            destination.copy_from_slice(&source[from as usize * bytes..][..row as usize * bytes]);
        } else {
            for (element, at) in destination.chunks_exact_mut(bytes).zip(0..) {
                element.copy_from_slice(&source[(from + at * stride) as usize * bytes..][..bytes]);
            }
        }
        if let Some(fix) = fix {
            fix.apply(destination);
        }
        for dim in (0..dims).rev() {
            index[dim] += 1;
            if index[dim] < want.part.sizes[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}
