//! What a conversion writes is what reading gives.

use shardfeed::checkpoint::{Checkpoint, ConvertOptions, Dtype, convert_checkpoint, diff_checkpoints};

use crate::support::{open, scratch, some_bytes};
use crate::writer::{Item, Writer};

const COLUMNS: u64 = 1 << 10;

/// Writes a tensor of 8 MiB, so that it is converted in pieces, with its chunks by file, first row and row after the last: what is converted
/// is what is read.
fn is_converted_as_it_is_read(chunks: &[(&str, u64, u64)], is_packed: bool) {
    let directory = scratch();
    let mut writer = Writer::new();
    writer.tensor("t", Dtype::Float32, &[2048, COLUMNS]);
    for (seed, &(file, start, end)) in (1..).zip(chunks) {
        let sizes = [end - start, COLUMNS];
        let elements = some_bytes((sizes[0] * COLUMNS * 4) as usize, seed);
        let item = Item::row_major(Dtype::Float32, &sizes, &elements);
        if is_packed {
            writer.packed_chunk(file, &[start, 0], &item);
        } else {
            writer.chunk(file, &[start, 0], &item);
        }
    }
    writer.write(directory.path());
    let checkpoint = open(directory.path());
    let whole = checkpoint.read("t").unwrap();
    let out = directory.path().join("out");
    convert_checkpoint(&checkpoint, &out, &ConvertOptions::default()).unwrap();
    let converted = Checkpoint::open(&out).unwrap();
    assert!(converted.read("t").unwrap() == whole, "{chunks:?}, packed: {is_packed}");
    let diff = diff_checkpoints(&checkpoint, &converted, None).unwrap();
    assert_eq!((diff.same, diff.differences.len()), (1, 0), "{chunks:?}, packed: {is_packed}");
}

#[test]
fn where_chunks_lie_over_each_other_pieces_hold_what_the_whole_holds() {
    let (one, other) = ("__0_0.distcp", "__1_0.distcp");
    for is_packed in [false, true] {
        // By files the first and the last chunk come before the second, which lies over the last: in the whole it counts there, though a
        // piece without the first chunk meets it before the last.
        is_converted_as_it_is_read(&[(one, 0, 512), (other, 256, 2048), (one, 512, 2048)], is_packed);
        // Of an empty chunk nothing is read, so that its file does not come first for it.
        is_converted_as_it_is_read(&[(other, 0, 0), (one, 0, 1024), (other, 512, 2048)], is_packed);
    }
}

/// Nothing of it is read: it would be written as it is described, and nobody would have looked.
#[test]
fn a_damaged_item_without_elements_is_found_on_request() {
    let directory = scratch();
    let mut writer = Writer::new();
    writer.whole("__0_0.distcp", "full", &Item::row_major(Dtype::Uint8, &[4], &[1, 2, 3, 4]));
    let place = writer.files["__0_0.distcp"].len();
    let empty = Item::row_major(Dtype::Float32, &[0, 4], &[]);
    writer.whole("__0_0.distcp", "empty", &empty);
    writer.files.get_mut("__0_0.distcp").unwrap()[place + empty.placed().records["data.pkl"].start] ^= 1;
    writer.write(directory.path());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let options = |verify| ConvertOptions { verify, ..ConvertOptions::default() };
    let error =
        convert_checkpoint(&checkpoint, &directory.path().join("out"), &options(true)).map(drop).unwrap_err();
    assert!(error.to_string().contains(&format!("empty at byte {place}")), "{error}");
    assert!(!directory.path().join("out").exists());
    convert_checkpoint(&checkpoint, &directory.path().join("out"), &options(false)).unwrap();
}
