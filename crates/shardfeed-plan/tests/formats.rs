//! Stored formats of every release, as another implementation wrote them from `docs/formats.md` alone.

use shardfeed_plan::{
    DataFile, IdType, Manifest, Packing, PageChecksum, PageChecksums, PieceCounts, RowGroup, StreamSettings,
    StreamState, TokenColumn, decode_manifest, encode_manifest,
};

#[test]
fn states_of_format_1_are_read_and_written_byte_for_byte() {
    let json = include_str!("../../../testdata/formats/state-1.json");
    let state = StreamState::from_json(json).unwrap();
    assert_eq!(state.to_json(), json);
    let settings = StreamSettings {
        seq_len: 2048,
        packing: Packing::Pad,
        eos_id: None,
        seed: u64::MAX,
        shuffle: true,
        lanes: 128,
        window: 64,
    };
    assert_eq!((&state.settings, state.epoch, state.position), (&settings, 2, 4242));
    assert_eq!(state.fingerprint.to_string(), "0123456789abcdef0123456789abcdef");
    assert_eq!(state.skips.ranges(), [5000..5256, 9000..9001]);
    assert_eq!((state.steps.global_batch(), state.steps.changes().len()), (128, 2));
}

#[test]
fn manifests_of_format_1_are_read() {
    let bytes = include_bytes!("../../../testdata/formats/manifest-1");
    assert_eq!(decode_manifest(bytes), Ok(manifest()));
}

#[test]
fn manifests_of_format_2_are_read_and_written_byte_for_byte() {
    let bytes = include_bytes!("../../../testdata/formats/manifest-2");
    let read = decode_manifest(bytes).unwrap();
    assert_eq!(encode_manifest(&read), bytes);
    assert_eq!(read.fingerprint(), manifest().fingerprint());
    let page = |at, header, body| PageChecksum { at, header, body };
    let mut checksums = PageChecksums::default();
    checksums.push(&[
        page(4, 0x0123_4567, 0x89ab_cdef),
        page(304, 0, 0xffff_ffff),
        page(2304, 0xdead_beef, 1),
    ]);
    checksums.push(&[]);
    let mut expected = manifest();
    expected.set_checksums(checksums).unwrap();
    assert_eq!(read, expected);
}

/// The manifest of the files, but for its checksums.
fn manifest() -> Manifest {
    let column = |name: &str, ids, present_level, nullable_items| TokenColumn {
        name: name.to_owned(),
        ids,
        present_level,
        nullable_items,
    };
    let group = |rows, tokens, documents, chunk_start, chunk_len, codec| RowGroup {
        file: 0,
        number: 0,
        rows,
        tokens,
        documents,
        chunk_start,
        chunk_len,
        codec,
    };
    let first = DataFile {
        name: "a.parquet".to_owned(),
        size: 5000,
        modified_ns: 1_700_000_000_123_456_789,
        column: column("input_ids", IdType::I32, 3, true),
        pieces: vec![PieceCounts { seq_len: 2048, counts: vec![120, 50] }],
    };
    let second = DataFile {
        name: "b/ü.parquet".to_owned(),
        size: 12,
        modified_ns: -1,
        column: column("token_ids", IdType::U64, 1, false),
        pieces: vec![],
    };
    let groups = vec![group(100, 51_200, 98, 4, 2400, 1), group(50, 300, 50, 2404, 700, 6)];
    Manifest::new(vec![(first, groups), (second, vec![])]).unwrap()
}
