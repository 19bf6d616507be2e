//! What hostile checkpoints make a reader take: never more than some times their own bytes, whatever they announce.

#[path = "checkpoint/writer.rs"]
#[allow(dead_code)]
mod writer;

use std::fs;
use std::path::Path;

use shardfeed::checkpoint::{
    Checkpoint, ConvertOptions, Dtype, Metadata, OpenOptions, ReadOptions, RunLimits, convert_checkpoint,
    diff_checkpoints, verify_checkpoint,
};
use writer::{Item, Value, Writer, archive, end_archive};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const MIB: usize = 1 << 20;
const FILE: &str = "__0_0.distcp";

/// Bytes that were taken at most while something was done.
fn taken(work: impl FnOnce()) -> usize {
    let _profiler = dhat::Profiler::builder().testing().build();
    work();
    dhat::HeapStats::get().max_bytes
}

/// A value that is written the first time and remembered as this number.
fn remembered(value: &Value, number: u8) -> Value {
    let pickled = value.pickled(2);
    Value::Raw([&pickled[2..pickled.len() - 1], &[b'q', number]].concat())
}

fn again(number: u8) -> Value {
    Value::Raw(vec![b'h', number])
}

fn metadata(
    entries: Vec<(Value, Value)>,
    stored: Vec<(Value, Value)>,
    paths: Vec<(Value, Value)>,
) -> Vec<u8> {
    metadata_of(entries, stored, paths).pickled(2)
}

/// Metadata by their two dictionaries and one more.
fn metadata_of(
    entries: Vec<(Value, Value)>,
    stored: Vec<(Value, Value)>,
    paths: Vec<(Value, Value)>,
) -> Value {
    let fields = vec![
        ("storage_data", Value::Dict(stored)),
        ("state_dict_metadata", Value::Dict(entries)),
        ("planner_data", Value::Dict(paths)),
    ];
    Value::object("torch.distributed.checkpoint.metadata", "Metadata", fields)
}

fn index(name: Value, offset: u64) -> Value {
    let fields = vec![("fqn", name), ("offset", Value::numbers(&[offset]))];
    Value::object("m", "MetadataIndex", fields)
}

fn info(transforms: Value) -> Value {
    let fields = vec![
        ("relative_path", Value::text(FILE)),
        ("offset", Value::Int(0)),
        ("length", Value::Int(1)),
        ("transform_descriptors", transforms),
    ];
    Value::object("f", "_StorageInfo", fields)
}

/// Small metadata that stand for a thousand times as much, each for another reason: what is written once is used thousands of times.
fn bombs() -> Vec<(&'static str, Vec<u8>)> {
    let long = "x".repeat(MIB / 2);
    let (times, items) = (500, 2_000);
    let offset = |number: usize| number as u64;
    // One name, half a megabyte long, for every place.
    let names = (0..times).map(|number| {
        let name = if number == 0 { remembered(&Value::text(&long), 0) } else { again(0) };
        (index(name, offset(number)), info(Value::None))
    });
    let names = metadata(vec![], names.collect(), vec![]);
    // One list of transforms for every place.
    let list = Value::List(vec![Value::text("stream.zstd/1"); items]);
    let transforms = (0..times).map(|number| {
        let list = if number == 0 { remembered(&list, 0) } else { again(0) };
        (index(Value::text("a"), offset(number)), info(list))
    });
    let transforms = metadata(vec![], transforms.collect(), vec![]);
    // One path of two thousand steps for every name.
    let path = Value::Tuple(vec![Value::text("step"); items]);
    let paths = (0..times).map(|number| {
        let path = if number == 0 { remembered(&path, 0) } else { again(0) };
        (Value::text(number.to_string()), path)
    });
    let paths = metadata(vec![], vec![], paths.collect());
    // One list of chunks for every tensor.
    let chunk = Value::object(
        "m",
        "ChunkStorageMetadata",
        vec![("offsets", Value::numbers(&[0])), ("sizes", Value::numbers(&[1]))],
    );
    let mut list = vec![again(0); items];
    list[0] = remembered(&chunk, 0);
    let properties =
        Value::Made("m", "TensorProperties", Box::new(Value::Tuple(vec![Value::Global("torch", "uint8")])));
    let tensors = (0..times).map(|number| {
        let chunks = if number == 0 { remembered(&Value::List(list.clone()), 1) } else { again(1) };
        let fields =
            vec![("properties", properties.clone()), ("size", Value::numbers(&[1])), ("chunks", chunks)];
        (Value::text(number.to_string()), Value::object("m", "TensorStorageMetadata", fields))
    });
    let stored = (0..times).map(|number| (index(Value::text(number.to_string()), 0), info(Value::None)));
    let chunks = metadata(tensors.collect(), stored.collect(), vec![]);
    // One description of a tensor with many dimensions, under thousands of names of three letters, which take seven bytes each.
    let fields = vec![
        ("properties", properties.clone()),
        ("size", Value::numbers(&[0; 64])),
        ("chunks", Value::List(vec![])),
    ];
    let described = Value::object("m", "TensorStorageMetadata", fields);
    let tensors = (0..20_000_u32).map(|number| {
        let described = if number == 0 { remembered(&described, 0) } else { again(0) };
        let name: String = [number, number / 32, number / 1024]
            .iter()
            .map(|part| char::from(b'A' + (part % 32) as u8))
            .collect();
        (Value::text(name), described)
    });
    let dimensions = metadata_of(tensors.collect(), vec![], vec![]).pickled(4);
    // One long name of a field that nobody knows, thousands of times.
    let others = [
        b"cm\nMetadata\n)\x81}(X\x0c\0\0\0storage_data}X\x13\0\0\0state_dict_metadata}".to_vec(),
        [b"X", &(long.len() as u32).to_le_bytes()[..], long.as_bytes(), b"q\x00N"].concat(),
        b"h\x00N".repeat(900),
        b"ub.".to_vec(),
    ];
    vec![
        ("names", names),
        ("transforms", transforms),
        ("paths", paths),
        ("chunks", chunks),
        ("dimensions", dimensions),
        ("others", others.concat()),
    ]
}

fn metadata_that_stand_for_far_more_take_some_times_their_bytes() {
    for (what, bytes) in bombs() {
        let most = taken(|| match Metadata::parse(&bytes) {
            // A long name that is borrowed for each of its places takes nothing.
            Ok(_) => assert_eq!(what, "names"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("far more memory than the file has bytes"), "{what}: {said}");
            }
        });
        assert!(most < 100 * bytes.len() + 2 * MIB, "{what}: {most} bytes for {}", bytes.len());
    }
}

/// Zeros take next to nothing when they are compressed; whoever looks through them must not hold them.
fn what_is_compressed_is_looked_through_in_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let len = 96 * MIB;
    let stored = Item::row_major(Dtype::Uint8, &[len as u64], &vec![0; len]).bytes();
    // Of zeros two layers make less than a hundred bytes.
    for layers in [1, 2] {
        let mut packed = stored.clone();
        for _ in 0..layers {
            packed = zstd::encode_all(&packed[..], 1).unwrap();
        }
        let mut writer = Writer::new();
        writer.tensor("a", Dtype::Uint8, &[len as u64]);
        let transforms = vec!["stream.zstd/1".to_owned(); layers];
        let place = writer::Place { transforms, ..writer.append(FILE, &packed) };
        writer.add_chunk(&[0], &[len as u64], place);
        writer.write(directory.path());
        let most = taken(|| {
            let report = verify_checkpoint(directory.path(), &OpenOptions::default(), None).unwrap();
            assert_eq!((report.problems.len(), report.items_with_checksums), (0, 1), "{report:?}");
        });
        assert!(most < 16 * MIB, "{layers} layers: {most}");
    }
    // There is an end to that: so little cannot be so much, however often it was compressed.
    let mut writer = Writer::new();
    writer.tensor("a", Dtype::Uint8, &[2 << 30]);
    let place =
        writer.append(FILE, &zstd::encode_all(&zstd::encode_all(&stored[..], 1).unwrap()[..], 1).unwrap());
    let place = writer::Place { transforms: vec!["stream.zstd/1".to_owned(); 2], ..place };
    writer.add_chunk(&[0], &[2 << 30], place);
    writer.write(directory.path());
    let error = Checkpoint::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("cannot be stored in"), "{error}");
}

/// Names of a few bytes that speak of a hundred thousand files each.
fn series_that_an_index_announces_are_not_written_out() {
    let directory = tempfile::tempdir().unwrap();
    let files = (0..60).map(|number| format!("\"t{number}\":\"m{number}-00001-of-99999.safetensors\""));
    let index = format!("{{\"weight_map\":{{{}}}}}", files.collect::<Vec<_>>().join(","));
    fs::write(directory.path().join("model.safetensors.index.json"), index).unwrap();
    let most = taken(|| {
        let error = Checkpoint::open(directory.path()).unwrap_err().to_string();
        assert!(error.starts_with("1060 things are wrong"), "{error}");
    });
    assert!(most < 4 * MIB, "{most}");
}

fn lengths_that_a_pickle_announces_are_not_taken() {
    let huge = (1_u64 << 62).to_le_bytes();
    let announcements: [(&str, Vec<u8>); 7] = [
        ("bytes", [b"\x8e", &huge[..]].concat()),
        ("text", [b"\x8d", &huge[..]].concat()),
        ("bytearray", [b"\x96", &huge[..]].concat()),
        ("long", b"\x8b\xff\xff\xff\x7f".to_vec()),
        ("frame", [b"\x95", &huge[..], b"N"].concat()),
        ("memo", b"Nr\xff\xff\xff\x7f".to_vec()),
        ("memo as text", b"Np2147483647\n".to_vec()),
    ];
    for (what, operations) in announcements {
        let bytes = [b"\x80\x04", &operations[..], b"."].concat();
        let most = taken(|| drop(Metadata::parse(&bytes).unwrap_err()));
        assert!(most < MIB, "{what}: {most}");
    }
}

/// Values, marks and numbers to remember by that take a byte or two of a pickle each, and far more of memory.
fn pickles_of_next_to_nothing_take_some_times_their_bytes() {
    let len = 32 * MIB;
    let announced = [b"\x8e", &(len as u64).to_le_bytes()[..]].concat();
    let number = (len as u32 - 1).to_le_bytes();
    for (what, bytes) in [
        ("values", vec![b']'; len]),
        ("marks", vec![b'('; len]),
        ("memo", [&announced[..], &vec![0; len], b"Nr", &number, b"."].concat()),
    ] {
        let most = taken(|| drop(Metadata::parse(&bytes).unwrap_err()));
        assert!(most < 5 * len, "{what}: {} MiB", most / MIB);
    }
}

/// Parts of JSON that nobody reads, one within the other and one after another.
fn what_nobody_reads_of_json_takes_nothing() {
    let len = 16 * MIB;
    let junk = "[],".repeat(len / 3);
    let index = format!("{{\"metadata\":[{junk}0],\"weight_map\":{{\"a\":\"a.safetensors\"}}}}");
    let entry = "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]";
    let header = format!("{{\"a\":{{{entry},\"more\":[{junk}0]}}}}");
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"x"].concat();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.safetensors"), file).unwrap();
    fs::write(directory.path().join("model.safetensors.index.json"), index).unwrap();
    let most = taken(|| assert_eq!(Checkpoint::open(directory.path()).unwrap().tensors().len(), 1));
    assert!(most < 4 * len, "{} MiB", most / MIB);
}

/// A checkpoint of one tensor whose item is these bytes.
fn with_item(bytes: &[u8], directory: &Path, transforms: Vec<String>) {
    let mut writer = Writer::new();
    writer.tensor("a", Dtype::Float32, &[3]);
    let place = writer::Place { transforms, ..writer.append(FILE, bytes) };
    writer.add_chunk(&[0], &[3], place);
    writer.write(directory);
}

/// Reads both ways and verifies: all of them must find something.
fn fails_within(directory: &Path, what: &str) {
    let limits = RunLimits { block: 4096, gap: 0, direct: 64 };
    let ways = [
        ReadOptions { use_parallel: false, ..ReadOptions::default() },
        ReadOptions { num_workers: Some(1), limits, ..ReadOptions::default() },
    ];
    for options in ways {
        let most = taken(|| {
            let read = Checkpoint::open(directory).and_then(|opened| opened.with_options(options).read("a"));
            let error = read.expect_err(what).to_string();
            assert!(error.contains(directory.to_str().unwrap()), "{what}: {error}");
        });
        assert!(most < 16 * MIB, "{what}: {most}");
    }
    let most = taken(|| {
        let report = verify_checkpoint(directory, &OpenOptions::default(), None).unwrap();
        assert!(!report.problems.is_empty(), "{what}");
    });
    assert!(most < 16 * MIB, "{what}: {most}");
}

fn lengths_that_an_archive_announces_are_not_taken() {
    let placed = Item::row_major(Dtype::Float32, &[3], &[1; 12]).placed();
    let end = placed.bytes.len() - 22 - 20 - 56;
    let entry = placed.directory.start;
    // Places in the ends and in the first entry of the directory, and what is written there.
    for (what, at, number) in [
        ("entries", end + 32, 1 << 60),
        ("size of the directory", end + 40, 1 << 60),
        ("place of the directory", end + 48, 1 << 60),
        ("size of data.pkl", entry + 20, 0xffff_fffe_ffff_fffe),
        ("place of data.pkl", entry + 42, 0x6372_6161_ffff_fffe),
    ] {
        let mut bytes = placed.bytes.clone();
        bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(number));
        let directory = tempfile::tempdir().unwrap();
        with_item(&bytes, directory.path(), vec![]);
        fails_within(directory.path(), what);
    }
    // A description of sizes that no tensor has.
    let mut item = Item::row_major(Dtype::Float32, &[3], &[1; 12]);
    (item.sizes, item.strides) = (vec![i64::MAX as u64; 3], vec![i64::MAX as u64; 3]);
    let directory = tempfile::tempdir().unwrap();
    with_item(&item.bytes(), directory.path(), vec![]);
    fails_within(directory.path(), "sizes");
    let records = [("data.pkl", b"\x80\x02\x8e\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec())];
    with_item(&archive(&records, true).bytes, directory.path(), vec![]);
    fails_within(directory.path(), "data.pkl");
}

fn a_bomb_is_put_out_early() {
    let bomb = zstd::encode_all(std::io::Read::take(std::io::repeat(0), 1 << 28), 1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    with_item(&bomb, directory.path(), vec!["stream.zstd/1".to_owned()]);
    fails_within(directory.path(), "zstd");
}

fn lengths_that_safetensors_announce_are_not_taken() {
    let one = |shape: &str, end: u64| {
        let json = format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,{end}]}}}}");
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
    };
    for (what, bytes) in [
        ("header", [&(1_u64 << 62).to_le_bytes()[..], b"{}"].concat()),
        ("header of the largest size", [&100_000_000_u64.to_le_bytes()[..], b"{}"].concat()),
        ("shape", one("[4611686018427387904,4611686018427387904]", 12)),
        ("offsets", one("[1152921504606846976]", 1 << 62)),
    ] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("model.safetensors"), &bytes).unwrap();
        fails_within(directory.path(), what);
        // The same within a file of a distributed checkpoint.
        let directory = tempfile::tempdir().unwrap();
        with_item(&bytes, directory.path(), vec![]);
        fails_within(directory.path(), what);
    }
}

/// Bytes that were taken altogether while something was done.
fn taken_in_turn(work: impl FnOnce()) -> usize {
    let _profiler = dhat::Profiler::builder().testing().build();
    work();
    dhat::HeapStats::get().total_bytes as usize
}

/// Of 48 MiB, compressed or not, by somebody who wants the slow reader and checksums.
fn pieces_of_an_item_do_not_read_it_again_for_each() {
    let len = 48 * MIB;
    let options = ReadOptions { use_parallel: false, verify: true, ..ReadOptions::default() };
    for is_packed in [false, true] {
        let write = |last: u8| {
            let directory = tempfile::tempdir().unwrap();
            let mut elements = vec![0; len];
            elements[len - 1] = last;
            let item = Item::row_major(Dtype::Uint8, &[len as u64], &elements);
            let mut writer = Writer::new();
            writer.tensor("a", Dtype::Uint8, &[len as u64]);
            if is_packed {
                writer.packed_chunk(FILE, &[0], &item)
            } else {
                writer.chunk(FILE, &[0], &item)
            };
            writer.write(directory.path());
            let opened = Checkpoint::open(directory.path()).unwrap().with_options(options.clone());
            (directory, opened)
        };
        let ((_one, first), (two, second)) = (write(1), write(3));
        let taken = taken_in_turn(|| {
            let diff = diff_checkpoints(&first, &second, None).unwrap();
            assert_eq!(diff.differences.len(), 1);
        });
        // Both, each once: as it is decompressed, in memory that grows, and as it is compared.
        assert!(taken < 8 * len, "diff, {is_packed}: {} MiB", taken / MIB);
        let taken = taken_in_turn(|| {
            convert_checkpoint(&second, &two.path().join("out"), &ConvertOptions::default()).unwrap();
        });
        assert!(taken < 5 * len, "convert, {is_packed}: {} MiB", taken / MIB);
    }
}

/// Kilobytes of storages of 40 MiB, whose checksums are of all of it.
fn what_nobody_wants_of_an_item_is_compared_in_the_memory_that_there_may_be() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new();
    for number in 0..3 {
        let item = Item::row_major(Dtype::Uint8, &[40 * MIB as u64], &vec![number; 40 * MIB]);
        let item = Item { sizes: vec![1000], ..item };
        writer.whole(FILE, &format!("t{number}"), &item);
    }
    writer.write(directory.path());
    let opened = Checkpoint::open(directory.path()).unwrap();
    for (budget, most) in [(Some(8 * MIB as u64), 10 * MIB), (None, 70 * MIB)] {
        let options = ConvertOptions { verify: true, memory_budget: budget, ..ConvertOptions::default() };
        let out = directory.path().join("out").join(most.to_string());
        let taken = taken(|| drop(convert_checkpoint(&opened, &out, &options).unwrap()));
        assert!(taken < most, "{budget:?}: {} MiB", taken / MIB);
    }
    // All of it is looked at.
    let mut bytes = fs::read(directory.path().join(FILE)).unwrap();
    let last = bytes.len() - 10 * MIB;
    bytes[last] ^= 1;
    fs::write(directory.path().join(FILE), bytes).unwrap();
    let opened = Checkpoint::open(directory.path()).unwrap();
    let options = ConvertOptions { verify: true, ..ConvertOptions::default() };
    let error = convert_checkpoint(&opened, &directory.path().join("none"), &options).map(drop).unwrap_err();
    assert!(error.to_string().contains("t2 at byte") && error.to_string().contains("checksum"), "{error}");
}

/// Half a megabyte, of which an archive's directory says that it is in hundreds of records.
fn records_that_share_bytes_are_not_copied_for_each() {
    let times = 500;
    let placed = archive(&[("data.pkl", vec![1; 9]), ("data/0", vec![2; MIB / 2])], true);
    let directory = &placed.bytes[placed.directory.clone()];
    let entry = &directory[46 + "archive/data.pkl".len()..];
    let mut crowded = placed.bytes[..placed.directory.start].to_vec();
    end_archive(&mut crowded, &[directory, &entry.repeat(times)].concat(), 2 + times as u64);
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new();
    writer.object(FILE, "o", &crowded);
    writer.write(directory.path());
    let opened = Checkpoint::open(directory.path()).unwrap();
    let most = taken(|| {
        let diff = diff_checkpoints(&opened, &opened, None).unwrap();
        assert_eq!((diff.same, diff.differences.len()), (1, 0));
    });
    assert!(most < 4 * MIB, "{most}");
}

/// One test: what is counted is counted for the whole process.
#[test]
fn nothing_takes_memory_because_it_says_so() {
    metadata_that_stand_for_far_more_take_some_times_their_bytes();
    what_is_compressed_is_looked_through_in_little_memory();
    series_that_an_index_announces_are_not_written_out();
    lengths_that_a_pickle_announces_are_not_taken();
    pickles_of_next_to_nothing_take_some_times_their_bytes();
    what_nobody_reads_of_json_takes_nothing();
    lengths_that_an_archive_announces_are_not_taken();
    a_bomb_is_put_out_early();
    lengths_that_safetensors_announce_are_not_taken();
    pieces_of_an_item_do_not_read_it_again_for_each();
    what_nobody_wants_of_an_item_is_compared_in_the_memory_that_there_may_be();
    records_that_share_bytes_are_not_copied_for_each();
}
