//! What a conversion writes is what reading gives.

use shardfeed::checkpoint::{Checkpoint, ConvertOptions, Dtype, convert_checkpoint, diff_checkpoints};

use crate::support::{open, scratch, some_bytes};
use crate::writer::{Item, Writer};

const COLUMNS: u64 = 1 << 10;

#[test]
fn where_chunks_lie_over_each_other_pieces_hold_what_the_whole_holds() {
    for is_packed in [false, true] {
        let directory = scratch();
        let mut writer = Writer::new();
        // 8 MiB, so that it is converted in pieces. By files the first and the last chunk come before the second, which lies over the
        // last: in the whole it counts there, though a piece without the first chunk meets it before the last.
        writer.tensor("t", Dtype::Float32, &[2048, COLUMNS]);
        for (seed, (file, start, end)) in
            (1..).zip([("__0_0.distcp", 0, 512), ("__1_0.distcp", 256, 2048), ("__0_0.distcp", 512, 2048)])
        {
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
        assert!(converted.read("t").unwrap() == whole, "packed: {is_packed}");
        let diff = diff_checkpoints(&checkpoint, &converted, None).unwrap();
        assert_eq!((diff.same, diff.differences.len()), (1, 0), "packed: {is_packed}");
    }
}
