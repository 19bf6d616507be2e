//! Checkpoints that mean harm, and files that change or vanish under a reader.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};

use shardfeed::checkpoint::{
    Checkpoint, Dtype, Metadata, OpenOptions, Problem, ReadOptions, ReadPlan, RunLimits, verify_checkpoint,
};
use shardfeed::{Error, Result};

use crate::support::{scratch, some_bytes};
use crate::writer::{Item, Value, Writer};

const FILE: &str = "__0_0.distcp";

fn one_after_another() -> ReadOptions {
    ReadOptions { use_parallel: false, verify: true, ..ReadOptions::default() }
}

fn on_threads(workers: usize) -> ReadOptions {
    let limits = RunLimits { block: 64, gap: 0, direct: 64 };
    ReadOptions { num_workers: Some(workers), limits, verify: true, ..ReadOptions::default() }
}

fn item(seed: u64) -> Item {
    Item::row_major(Dtype::Float32, &[3, 5], &some_bytes(60, seed))
}

/// Two tensors in a file.
fn small() -> Writer {
    let mut writer = Writer::new();
    writer.whole(FILE, "a", &item(1)).whole(FILE, "b", &item(2));
    writer
}

fn written(writer: &Writer) -> tempfile::TempDir {
    let directory = scratch();
    writer.write(directory.path());
    directory
}

/// Why a checkpoint is not opened. The error names its directory.
fn refused(directory: &Path) -> String {
    let error = Checkpoint::open(directory).unwrap_err().to_string();
    assert!(error.contains(directory.to_str().unwrap()), "{error}");
    error
}

/// Everything that a checkpoint holds, by name.
fn read_all(directory: &Path, options: ReadOptions) -> Result<BTreeMap<String, Vec<u8>>> {
    let checkpoint = Checkpoint::open(directory)?.with_options(options);
    let names = checkpoint.tensors().iter().map(|tensor| tensor.name.clone());
    names.map(|name| Ok((name.clone(), checkpoint.read(&name)?.bytes))).collect()
}

/// Operations that make Python run a command, each in another way, and leave one value.
fn executing(command: &str) -> Vec<(&'static str, Vec<u8>)> {
    let text = [b"X", &(command.len() as u32).to_le_bytes()[..], command.as_bytes()].concat();
    let python = format!("__import__('os').system({command:?})");
    let python = [b"X", &(python.len() as u32).to_le_bytes()[..], python.as_bytes()].concat();
    let around = |before: &[u8], text: &[u8], after: &[u8]| [before, text, after].concat();
    vec![
        ("REDUCE", around(b"cos\nsystem\n", &text, b"\x85R")),
        ("INST", around(b"(", &text, b"ios\nsystem\n")),
        ("OBJ", around(b"(cos\nsystem\n", &text, b"o")),
        ("STACK_GLOBAL", around(b"\x8c\x05posix\x8c\x06system\x93", &text, b"\x85R")),
        ("NEWOBJ", around(b"cbuiltins\neval\n", &python, b"\x85\x81")),
        ("NEWOBJ_EX", around(b"csubprocess\ngetoutput\n", &text, b"\x85}\x92")),
        ("BUILD", around(b"cbuiltins\nexec\n", &python, b"\x85R}b")),
    ]
}

#[test]
fn nothing_that_a_pickle_would_call_is_called() {
    let outside = scratch();
    let mark = outside.path().join("executed");
    for (way, operations) in executing(&format!("touch {}", mark.display())) {
        let evil = Value::Raw(operations);
        // A field that torch does not have is printed, as what it is.
        let mut writer = small();
        writer.others.push(("extra".to_owned(), evil.clone()));
        let directory = written(&writer);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let [(name, printed)] = &checkpoint.metadata().others[..] else { panic!("{way}") };
        assert_eq!(name, "extra");
        let names =
            ["os.system(", "posix.system(", "builtins.eval(", "subprocess.getoutput(", "builtins.exec("];
        assert!(names.iter().any(|name| printed.starts_with(name)), "{way}: {printed}");
        assert_eq!(checkpoint.read("a").unwrap().bytes, item(1).storage, "{way}");
        // As the metadata themselves, it is refused.
        fs::write(directory.path().join(".metadata"), evil.pickled(4)).unwrap();
        let error = refused(directory.path());
        assert!(error.contains("not the metadata of a distributed checkpoint: it holds"), "{way}: {error}");
        // As something that is needed, too.
        let mut writer = small();
        writer.tensors[1].dtype = evil.clone();
        let error = refused(written(&writer).path());
        assert!(error.contains("b: its dtype") && error.contains("is not known here"), "{way}: {error}");
        // And as the description of a tensor.
        let records = [("data.pkl", evil.pickled(2)), ("data/0", vec![0; 60]), ("version", b"3\n".to_vec())];
        let mut writer = Writer::new();
        writer.tensor("a", Dtype::Float32, &[3, 5]);
        let place = writer.append(FILE, &crate::writer::archive(&records, true).bytes);
        writer.add_chunk(&[0, 0], &[3, 5], place);
        let directory = written(&writer);
        for options in [one_after_another(), on_threads(2)] {
            let error = read_all(directory.path(), options).unwrap_err().to_string();
            assert!(error.contains(FILE) && error.contains("no plain tensor, but"), "{way}: {error}");
        }
        assert!(!mark.exists(), "{way} was executed");
    }
}

#[test]
fn a_million_values_in_each_other_are_walked_without_going_down() {
    // Lists, tuples, calls and persistent names: a reader that calls itself for each would have no stack left.
    let nests: [(&str, Vec<u8>); 4] = [
        ("lists", [vec![b']'; 1_000_000], vec![b'a'; 999_999]].concat()),
        ("tuples", [vec![b')'], vec![0x85; 1_000_000]].concat()),
        ("persistent names", [vec![b')'], vec![b'Q'; 1_000_000]].concat()),
        ("calls", [b"cos\nsystem\n".to_vec(), b")R".repeat(1_000_000)].concat()),
    ];
    for (what, operations) in nests {
        let mut writer = small();
        writer.others.push(("deep".to_owned(), Value::Raw(operations.clone())));
        let directory = written(&writer);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert!(checkpoint.metadata().others[0].1.len() < 1000, "{what}");
        fs::write(directory.path().join(".metadata"), [operations, vec![b'.']].concat()).unwrap();
        let error = refused(directory.path());
        assert!(error.len() < 2000, "{what}: {error}");
    }
}

#[test]
fn headers_of_safetensors_in_each_other_are_refused() {
    let directory = scratch();
    let json = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    assert!(
        refused(directory.path())
            .contains("model.safetensors: the header at byte 8: not as safetensors has it")
    );
}

#[test]
fn shapes_with_more_elements_than_there_are_numbers_are_refused_or_empty() {
    for (shape, word) in [
        (vec![1 << 62, 1 << 62], "larger than any memory"),
        (vec![i64::MAX as u64, 2], "larger than any memory"),
        (vec![1; 65], "is no size"),
        (vec![1 << 40], "1099511627761 of its 1099511627776 elements are in none of its 1 chunks"),
    ] {
        let mut writer = small();
        let chunk = &mut writer.tensors[1].chunks[0];
        (chunk.offsets, chunk.sizes) = (vec![0; shape.len()], vec![1; shape.len()]);
        chunk.sizes[0] = 15.min(shape[0]);
        writer.tensors[1].shape = shape.clone();
        let error = refused(written(&writer).path());
        assert!(error.contains("b: ") && error.contains(word), "{shape:?}: {error}");
    }
    // Nothing, however wide, is nothing.
    let mut writer = small();
    let wide = [0, 1 << 62, 1 << 62];
    writer.tensor("wide", Dtype::Float32, &wide);
    writer.chunk(
        FILE,
        &[0, 0, 0],
        &Item { strides: vec![1, 1, 1], ..Item::row_major(Dtype::Float32, &[0], &[]) },
    );
    writer.tensors[2].chunks[0].sizes = wide.to_vec();
    let directory = written(&writer);
    for options in [one_after_another(), on_threads(2)] {
        assert!(read_all(directory.path(), options).unwrap()["wide"].is_empty());
    }
}

#[test]
fn an_empty_safetensors_tensor_may_be_as_wide_as_it_likes() {
    let directory = scratch();
    let json =
        r#"{"a":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}"#;
    let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    for options in [one_after_another(), on_threads(2)] {
        assert!(read_all(directory.path(), options).unwrap()["a"].is_empty());
    }
    let report = shardfeed::checkpoint::verify_checkpoint(directory.path(), &OpenOptions::default(), None);
    assert_eq!(report.unwrap().problems, []);
}

#[test]
fn memory_for_more_than_a_machine_has_is_an_error() {
    // More than the item has bytes for is not believed.
    let mut writer = small();
    writer.tensors[1].shape = vec![1 << 60];
    let chunk = &mut writer.tensors[1].chunks[0];
    (chunk.offsets, chunk.sizes) = (vec![0], vec![1 << 60]);
    let error = Checkpoint::open(written(&writer).path()).unwrap_err().to_string();
    assert!(error.contains("4611686018427387904 bytes of elements cannot be stored in"), "{error}");
    // A file with a hole as large as a disk: nothing is behind it.
    let directory = scratch();
    let mut writer = small();
    let huge = 1_i64 << 42;
    writer.place(1, 0).length = huge;
    writer.place(1, 0).transforms = vec!["stream.zstd/1".to_owned()];
    let mut object = writer.place(1, 0).clone();
    object.transforms.clear();
    writer.objects.push(("o".to_owned(), object));
    writer.write(directory.path());
    fs::File::options().write(true).open(directory.path().join(FILE)).unwrap().set_len(1 << 43).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let said = |error: Error| {
        let error = error.to_string();
        assert!(error.contains(FILE) && error.contains("more than this machine has memory for"), "{error}");
    };
    said(checkpoint.read_object("o").unwrap_err());
    said(checkpoint.read("b").unwrap_err());
    said(checkpoint.with_options(one_after_another()).read("b").unwrap_err());
    // Two bytes that are far apart, and blocks as large as anybody likes: they would be read with everything between them.
    let sparse = scratch();
    let (rows, row) = (2_u64, 1_u64 << 42);
    let json = format!(
        "{{\"b\":{{\"dtype\":\"U8\",\"shape\":[{rows},{row}],\"data_offsets\":[0,{}]}}}}",
        rows * row
    );
    let path = sparse.path().join(FILE.replace("distcp", "safetensors"));
    fs::write(&path, [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()).unwrap();
    let len = 8 + json.len() as u64 + rows * row;
    fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
    let limits = RunLimits { block: u64::MAX, gap: u64::MAX, direct: u64::MAX };
    let greedy = ReadOptions { memory_budget: Some(u64::MAX), limits, ..ReadOptions::default() };
    let opened = Checkpoint::open(sparse.path()).unwrap().with_options(greedy);
    let error = opened.read_slice("b", &[0..2, 0..1]).unwrap_err().to_string();
    assert!(
        error.contains("b at byte") && error.contains("more than this machine has memory for"),
        "{error}"
    );
    // Whoever only looks through it needs no memory for it.
    let report = verify_checkpoint(directory.path(), &OpenOptions::default(), None).unwrap();
    let found = |problem: &Problem| problem.item == "b" && problem.reason.contains("cannot decompress it");
    assert!(report.problems.iter().any(found), "{:#?}", report.problems);
}

#[test]
fn places_that_no_file_has_are_refused() {
    for (offset, length, words) in [
        (i64::MAX, 1, "more than a file can have"),
        (1, i64::MAX, "more than a file can have"),
        (-1, 10, "its offset is no number of bytes"),
        (0, -10, "its length is no number of bytes"),
        (1 << 60, 10, "it ends at byte 1152921504606846986 and the file has"),
        (0, 1 << 60, "it ends at byte 1152921504606846976 and the file has"),
    ] {
        let mut writer = small();
        (writer.place(1, 0).offset, writer.place(1, 0).length) = (offset, length);
        let error = refused(written(&writer).path());
        assert!(error.contains('b') && error.contains(words), "{error}");
    }
}

#[test]
fn paths_that_leave_the_directory_are_refused() {
    let outside = scratch();
    fs::write(outside.path().join("x"), item(2).bytes()).unwrap();
    let absolute = outside.path().join("x").to_str().unwrap().to_owned();
    let up = format!("../{}/x", outside.path().file_name().unwrap().to_str().unwrap());
    for path in ["../x", &up, &absolute, "a/../../x", "a\0b", "..\\x", "C:\\x", "", ".", "a/", "./x"] {
        let mut writer = small();
        path.clone_into(&mut writer.place(1, 0).file);
        writer.place(1, 0).offset = 0;
        let error = refused(written(&writer).path());
        let expected = format!("b: its file {path:?} would lie outside of the checkpoint; it is not read");
        assert!(error.contains(&expected), "{error}");
    }
    // The index of safetensors files names paths, too.
    let directory = scratch();
    let index = directory.path().join("model.safetensors.index.json");
    fs::write(&index, format!("{{\"weight_map\":{{\"a\":{absolute:?}}}}}")).unwrap();
    assert!(refused(directory.path()).contains("would lie outside of the checkpoint"));
}

#[test]
fn links_out_of_the_directory_are_followed_for_those_who_say_so() {
    let (outside, directory) = (scratch(), written(&small()));
    let path = directory.path().join(FILE);
    fs::rename(&path, outside.path().join("elsewhere")).unwrap();
    symlink(outside.path().join("elsewhere"), &path).unwrap();
    let error = refused(directory.path());
    assert!(error.contains(FILE) && error.contains("outside of the checkpoint, and is not read"), "{error}");
    let follow = OpenOptions { follow_links: true, ..OpenOptions::default() };
    let checkpoint = Checkpoint::open_with(directory.path(), &follow).unwrap();
    assert_eq!(checkpoint.read("b").unwrap().bytes, item(2).storage);
    // Links within are nobody's secret.
    fs::remove_file(&path).unwrap();
    fs::rename(outside.path().join("elsewhere"), directory.path().join("within")).unwrap();
    symlink("within", &path).unwrap();
    assert_eq!(read_all(directory.path(), on_threads(1)).unwrap()["b"], item(2).storage);
    // A folder that is a link, and metadata that are one.
    let mut writer = small();
    writer.place(1, 0).file = "folder/x".to_owned();
    writer.place(1, 0).offset = 0;
    let directory = written(&writer);
    fs::write(outside.path().join("x"), item(2).bytes()).unwrap();
    symlink(outside.path(), directory.path().join("folder")).unwrap();
    assert!(refused(directory.path()).contains("outside of the checkpoint"));
    let directory = written(&small());
    let metadata = directory.path().join(".metadata");
    fs::rename(&metadata, outside.path().join("metadata")).unwrap();
    symlink(outside.path().join("metadata"), &metadata).unwrap();
    assert!(refused(directory.path()).contains(".metadata: it is a link to"));
    Checkpoint::open_with(directory.path(), &follow).unwrap();
}

/// The header of a safetensors file with the tensor `a` of 2 x 3 numbers, filled up to a length.
fn header(len: usize) -> Vec<u8> {
    let mut json = br#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#.to_vec();
    json.resize(len, b' ');
    [&(len as u64).to_le_bytes()[..], &json].concat()
}

#[test]
fn safetensors_whose_length_reads_like_an_archive_are_read() {
    // 19,280 is "PK" with its small end first, and 0x04034b50 all of an archive's mark.
    for len in [19_280, 19_280 + (1 << 16), 0x0403_4b50] {
        let elements = some_bytes(24, len as u64);
        let mut writer = Writer::new();
        writer.tensor("a", Dtype::Float32, &[2, 3]);
        writer.append(FILE, &[&header(len)[..], &elements].concat());
        let place = crate::writer::Place { length: 24, offset: 0, ..writer.append(FILE, &[]) };
        writer.add_chunk(&[0, 0], &[2, 3], place);
        let directory = written(&writer);
        for options in [one_after_another(), on_threads(2)] {
            assert_eq!(read_all(directory.path(), options).unwrap()["a"], elements, "{len}");
        }
        let report = verify_checkpoint(directory.path(), &OpenOptions::default(), None).unwrap();
        assert_eq!(report.problems, [], "{len}");
    }
}

#[test]
fn a_long_name_that_is_used_often_is_looked_at_once() {
    // Four megabytes, a hundred thousand times: minutes, for whoever looks at it each time.
    let name = "x".repeat(4 << 20);
    let text = [b"X", &(name.len() as u32).to_le_bytes()[..], name.as_bytes(), b"q\x00"].concat();
    let (first, again) = (Value::Raw(text), Value::Raw(b"h\x00".to_vec()));
    let place = |name: &Value, number: i64| {
        let fields = vec![("fqn", name.clone()), ("offset", Value::Tuple(vec![Value::Int(number)]))];
        let stored =
            vec![("relative_path", Value::text(FILE)), ("offset", Value::Int(0)), ("length", Value::Int(1))];
        (Value::object("m", "MetadataIndex", fields), Value::object("f", "_StorageInfo", stored))
    };
    let stored = (0..100_000).map(|number| place(if number == 0 { &first } else { &again }, number));
    let paths = (0..100_000).map(|number| (again.clone(), Value::Tuple(vec![Value::Int(number)])));
    let chunk = |number: i64| {
        let numbers = |number| Value::Tuple(vec![Value::Int(number)]);
        let fields = vec![("offsets", numbers(number)), ("sizes", numbers(1))];
        Value::object("m", "ChunkStorageMetadata", fields)
    };
    let dtype = Value::Tuple(vec![Value::Global("torch", "uint8")]);
    let fields = vec![
        ("properties", Value::Made("m", "TensorProperties", Box::new(dtype))),
        ("size", Value::numbers(&[100_000])),
        ("chunks", Value::List((0..100_000).map(chunk).collect())),
    ];
    let tensor = Value::object("m", "TensorStorageMetadata", fields);
    let fields = vec![
        ("storage_data", Value::Dict(stored.collect())),
        ("state_dict_metadata", Value::Dict(vec![(again.clone(), tensor)])),
        ("planner_data", Value::Dict(paths.collect())),
    ];
    let bytes = Value::object("m", "Metadata", fields).pickled(2);
    let metadata = Metadata::parse(&bytes).unwrap();
    assert_eq!((metadata.tensors.len(), metadata.tensors[0].chunks.len()), (1, 100_000));
    assert_eq!(metadata.paths[&name], [shardfeed::checkpoint::PathPart::Index(99_999)]);
}

#[test]
fn a_checksum_of_an_object_is_compared_for_those_who_ask() {
    let mut writer = small();
    let stored = Item::row_major(Dtype::Int64, &[], &[7; 8]).placed();
    writer.object(FILE, "step", &stored.bytes);
    let at = writer.objects[0].1.offset as usize + stored.records["data/0"].start;
    writer.files.get_mut(FILE).unwrap()[at] ^= 1;
    let directory = written(&writer);
    let open = |verify| {
        let options = ReadOptions { verify, ..ReadOptions::default() };
        Checkpoint::open(directory.path()).unwrap().with_options(options)
    };
    assert_eq!(open(false).read_object("step").unwrap().len(), stored.bytes.len());
    let error = open(true).read_object("step").unwrap_err().to_string();
    assert!(error.contains(FILE) && error.contains("step at byte") && error.contains("checksum"), "{error}");
}

#[test]
fn what_decompresses_to_far_too_much_is_refused() {
    let mut writer = Writer::new();
    writer.tensor("a", Dtype::Float32, &[3, 5]);
    let bomb = zstd::encode_all(std::io::Read::take(std::io::repeat(0), 1 << 30), 1).unwrap();
    assert!(bomb.len() < 1 << 18);
    let mut place = writer.append(FILE, &bomb);
    place.transforms = vec!["stream.zstd/1".to_owned()];
    writer.add_chunk(&[0, 0], &[3, 5], place);
    let directory = written(&writer);
    for options in [one_after_another(), on_threads(2)] {
        let error = read_all(directory.path(), options).unwrap_err().to_string();
        assert!(
            error.contains(FILE) && error.contains("a at byte 0: it decompresses to more than"),
            "{error}"
        );
    }
}

/// Twenty thousand streams in each other would take gigabytes, and more stack than there is.
#[test]
fn thousands_of_transforms_over_each_other_are_refused() {
    let mut writer = Writer::new();
    writer.tensor("a", Dtype::Float32, &[3, 5]).packed_chunk(FILE, &[0, 0], &item(1));
    let stacked = vec!["stream.zstd/1".to_owned(); 20_000];
    writer.place(0, 0).transforms.clone_from(&stacked);
    writer.object(FILE, "b", &zstd::encode_all(&b"some object"[..], 1).unwrap());
    writer.objects[0].1.transforms = stacked;
    let directory = written(&writer);
    let path = directory.path().join(FILE);
    let said = |name: &str, offset: i64| {
        format!("{}: {name} at byte {offset}: it was changed by 20000 transforms", path.display())
    };
    let (first, second) = (said("a", 0), said("b", writer.objects[0].1.offset));
    for options in [one_after_another(), on_threads(2)] {
        let error = read_all(directory.path(), options).unwrap_err().to_string();
        assert!(error.contains(&first), "{error}");
    }
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let error = checkpoint.read_object("b").unwrap_err().to_string();
    assert!(error.contains(&second), "{error}");
    let report = verify_checkpoint(directory.path(), &OpenOptions::default(), None).unwrap();
    let names: Vec<&str> = report.problems.iter().map(|problem| problem.item.as_str()).collect();
    assert_eq!(names, ["a", "b"], "{:?}", report.problems);
}

#[test]
fn metadata_cut_anywhere_are_refused() {
    for protocol in [2, 4] {
        let writer = Writer { protocol, ..small() };
        let directory = written(&writer);
        let path = directory.path().join(".metadata");
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let error = refused(directory.path());
            assert!(error.contains("/.metadata: not a readable pickle: byte "), "{len}: {error}");
        }
        // What follows the end was never needed.
        fs::write(&path, [&whole[..], b"and more"].concat()).unwrap();
        assert_eq!(read_all(directory.path(), one_after_another()).unwrap()["b"], item(2).storage);
    }
}

#[test]
fn a_file_cut_anywhere_is_refused_by_name() {
    let mut writer = small();
    let needed = writer.files[FILE].len();
    writer.append(FILE, b"nobody needs this");
    let directory = written(&writer);
    let path = directory.path().join(FILE);
    for len in 0..writer.files[FILE].len() {
        fs::write(&path, &writer.files[FILE][..len]).unwrap();
        if len >= needed {
            assert_eq!(read_all(directory.path(), on_threads(1)).unwrap()["b"], item(2).storage);
            continue;
        }
        let error = refused(directory.path());
        assert!(error.contains(&format!("{}: b at byte ", path.display())), "{error}");
        assert!(error.contains(&format!("and the file has {len}: the file is cut short")), "{error}");
    }
}

#[test]
fn an_item_cut_anywhere_is_refused_by_name_also_if_the_metadata_agree() {
    let whole = item(2).bytes();
    for is_filled in [false, true] {
        for len in 0..whole.len() {
            let mut writer = Writer::new();
            writer.whole(FILE, "a", &item(1));
            let start = writer.files[FILE].len();
            writer.tensor("b", Dtype::Float32, &[3, 5]);
            let mut place = writer.append(FILE, &whole[..len]);
            if is_filled {
                // As copies look that were given up: the length is right, the rest is zeros.
                writer.append(FILE, &vec![0; whole.len() - len]);
                place.length = whole.len() as i64;
            }
            writer.add_chunk(&[0, 0], &[3, 5], place);
            let directory = written(&writer);
            for options in [one_after_another(), on_threads(1)] {
                let place = format!("{}: b at byte {start}: ", directory.path().join(FILE).display());
                match read_all(directory.path(), options) {
                    Err(error) => assert!(error.to_string().contains(&place), "{len}: {error}"),
                    // The end of an archive says again, in fewer bits, what was said before it.
                    Ok(read) => {
                        assert!(is_filled && len > whole.len() - 22, "{len} of {}", whole.len());
                        assert_eq!(read["b"], item(2).storage);
                    }
                }
            }
        }
    }
}

#[test]
fn a_file_that_changes_after_it_was_opened_is_not_read() {
    type Change = fn(&Path);
    let changes: [(&str, Change, &str); 4] = [
        ("replaced", |path| replace(path, |bytes| bytes), "it changed after the checkpoint was opened"),
        (
            "longer",
            |path| fs::write(path, [fs::read(path).unwrap(), vec![0]].concat()).unwrap(),
            "it changed after the checkpoint was opened",
        ),
        (
            "shorter",
            |path| replace(path, |bytes| bytes[..9].to_vec()),
            "it changed after the checkpoint was opened",
        ),
        ("removed", |path| fs::remove_file(path).unwrap(), "cannot open it"),
    ];
    for (change, make, words) in changes {
        for options in [one_after_another(), on_threads(3)] {
            let directory = written(&small());
            let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options);
            assert_eq!(checkpoint.read("b").unwrap().bytes, item(2).storage);
            make(&directory.path().join(FILE));
            let error = checkpoint.read("b").unwrap_err().to_string();
            assert!(error.contains(FILE) && error.contains(words), "{change}: {error}");
        }
    }
}

/// Puts another file in the place of one, as savers do: both are there for an instant, so that they are different files. They are of the
/// same time, as two are that are written within a tick of the clock.
fn replace(path: &Path, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    let other = path.with_extension("new");
    fs::write(&other, change(fs::read(path).unwrap())).unwrap();
    let time = fs::metadata(path).unwrap().modified().unwrap();
    fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
    fs::rename(other, path).unwrap();
}

#[test]
fn a_file_that_may_not_be_read_is_an_error_that_names_it() {
    let directory = written(&small());
    let path = directory.path().join(FILE);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // Nothing can be denied to root: there the reader has its way, and nothing else can be seen.
    if fs::File::open(&path).is_ok() {
        assert_eq!(read_all(directory.path(), on_threads(1)).unwrap()["b"], item(2).storage);
        return;
    }
    for options in [one_after_another(), on_threads(2)] {
        let error = read_all(directory.path(), options).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("ermission denied"), "{error}");
    }
}

/// Chunks that lie over each other, in files whose order is not that of the chunks.
fn overlapping() -> Writer {
    let chunk = |value: u8, count: usize| Item::row_major(Dtype::Uint8, &[count as u64], &vec![value; count]);
    let mut writer = Writer::new();
    writer.tensor("a", Dtype::Uint8, &[8]);
    writer.chunk("first.distcp", &[0], &chunk(1, 4)).chunk("second.distcp", &[2], &chunk(2, 4));
    writer.chunk("first.distcp", &[3], &chunk(3, 5));
    writer
}

#[test]
fn chunks_that_lie_over_each_other_are_read_in_torchs_order() {
    let directory = written(&overlapping());
    let many = ReadOptions { num_workers: Some(64), ..ReadOptions::default() };
    for options in [one_after_another(), on_threads(1), on_threads(8), many] {
        let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options);
        // The first file is needed first, so both its chunks come before that of the second.
        assert_eq!(checkpoint.read("a").unwrap().bytes, [1, 1, 2, 2, 2, 2, 3, 3]);
        // Here the second file is needed first.
        let part = |range| checkpoint.read_slice("a", &[range]).unwrap().bytes;
        assert_eq!(part(4..8), [3, 3, 3, 3]);
        assert_eq!(part(3..8), [2, 2, 2, 3, 3]);
        // Both at once: the order is that of the whole plan, which needs the second file first.
        let (mut one, mut two) = (vec![0; 4], vec![0; 8]);
        let mut plan = ReadPlan::new();
        plan.read_slice("a", std::slice::from_ref(&(4..8)), &mut one).read("a", &mut two);
        checkpoint.read_into(plan).unwrap();
        assert_eq!((one, two), (vec![3; 4], vec![1, 1, 1, 3, 3, 3, 3, 3]));
    }
}

#[test]
fn one_chunk_goes_to_as_many_places_as_want_it() {
    // Larger than what is read as a whole, so that parts of it are read once for several.
    let elements = some_bytes(400_000, 5);
    let mut writer = Writer::new();
    writer.whole(FILE, "a", &Item::row_major(Dtype::Float32, &[1000, 100], &elements));
    let directory = written(&writer);
    for options in [one_after_another(), on_threads(1), on_threads(7), ReadOptions::default()] {
        let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options);
        let mut memory: Vec<Vec<u8>> = vec![vec![0; 400_000]; 3];
        let mut rows: Vec<Vec<u8>> = vec![vec![0; 10 * 400]; 20];
        let mut column = vec![0; 4000];
        let mut plan = ReadPlan::new();
        for memory in &mut memory {
            plan.read("a", memory);
        }
        for (index, memory) in rows.iter_mut().enumerate() {
            let row = index as u64 * 7;
            plan.read_slice("a", &[row..row + 10, 0..100], memory);
        }
        plan.read_slice("a", &[0..1000, 3..4], &mut column);
        checkpoint.read_into(plan).unwrap();
        assert!(memory.iter().all(|memory| *memory == elements));
        for (index, memory) in rows.iter().enumerate() {
            assert_eq!(memory[..], elements[index * 7 * 400..][..4000]);
        }
        assert!(column.chunks(4).zip(elements.chunks(400)).all(|(element, row)| element == &row[12..16]));
    }
}

/// Eight files with a tensor each.
fn eight_files() -> Writer {
    let mut writer = Writer::new();
    for number in 0..8 {
        writer.whole(&format!("__{number}_0.distcp"), &format!("t{number}"), &item(number));
    }
    writer
}

#[test]
fn one_report_names_every_file_that_fails() {
    let mut writer = eight_files();
    let directory = scratch();
    for number in [1, 3, 5] {
        writer.files.get_mut(&format!("__{number}_0.distcp")).unwrap().truncate(number * 100);
    }
    writer.files.remove("__6_0.distcp");
    writer.write(directory.path());
    let Err(Error::CheckpointDamaged(failures)) = Checkpoint::open(directory.path()) else {
        panic!("four files are damaged")
    };
    let files: Vec<_> =
        failures.0.iter().map(|failure| failure.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(files, ["__1_0.distcp", "__3_0.distcp", "__5_0.distcp", "__6_0.distcp"]);
    let said = failures.to_string();
    assert!(said.starts_with("4 things are wrong with the checkpoint:\n"), "{said}");
    assert!(files.iter().all(|file| said.contains(file)), "{said}");
}

/// What is told of a read, call by call.
type Told = Arc<Mutex<Vec<(u64, u64, Option<String>)>>>;

fn listening(options: &ReadOptions) -> (ReadOptions, Told) {
    let told = Told::default();
    let to = Arc::clone(&told);
    let progress = Arc::new(move |progress: shardfeed::checkpoint::ReadProgress<'_>| {
        let finished = progress.finished.map(str::to_owned);
        to.lock().unwrap().push((progress.bytes, progress.bytes_total, finished));
    });
    (ReadOptions { progress: Some(progress), ..options.clone() }, told)
}

#[test]
fn the_first_failure_stops_new_work() {
    let mut writer = eight_files();
    for bytes in writer.files.values_mut() {
        let place = item(0).placed().records["data/0"].start;
        bytes[place] ^= 1;
    }
    let directory = written(&writer);
    for (options, failures_max) in [(one_after_another(), 1), (on_threads(1), 1), (on_threads(3), 3)] {
        let (options, told) = listening(&options);
        let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options);
        let mut memory = vec![vec![0; 60]; 8];
        let mut plan = ReadPlan::new();
        for (number, memory) in memory.iter_mut().enumerate() {
            plan.read(&format!("t{number}"), memory);
        }
        let Err(Error::CheckpointDamaged(failures)) = checkpoint.read_into(plan) else { panic!("damaged") };
        assert!((1..=failures_max).contains(&failures.0.len()), "{failures}");
        assert!(failures.to_string().contains("__0_0.distcp: t0 at byte 0: its bytes have the checksum"));
        assert_eq!(told.lock().unwrap().len(), 0, "nothing was finished");
    }
}

#[test]
fn progress_reaches_the_total_and_names_everything_once() {
    let mut writer = eight_files();
    writer.whole("__0_0.distcp", "empty", &Item::row_major(Dtype::Float32, &[0, 3], &[]));
    let large = Item::row_major(Dtype::Uint8, &[300_000], &some_bytes(300_000, 1));
    writer.whole("__1_0.distcp", "large", &large);
    let overlapped = overlapping();
    writer.tensors.extend(overlapped.tensors);
    writer.files.extend(overlapped.files);
    let directory = written(&writer);
    for options in [one_after_another(), on_threads(1), on_threads(5), ReadOptions::default()] {
        let (options, told) = listening(&options);
        let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options);
        let mut names: Vec<String> = checkpoint.tensors().iter().map(|tensor| tensor.name.clone()).collect();
        let mut memory: Vec<Vec<u8>> =
            checkpoint.tensors().iter().map(|tensor| vec![0; tensor.bytes() as usize]).collect();
        let mut plan = ReadPlan::new();
        for (name, memory) in names.iter().zip(&mut memory) {
            plan.read(name, memory);
        }
        checkpoint.read_into(plan).unwrap();
        let told = told.lock().unwrap();
        let total = 8 * 60 + 300_000 + 8;
        assert!(told.iter().all(|(bytes, bytes_total, _)| *bytes_total == total && *bytes <= total));
        assert!(told.is_sorted_by_key(|(bytes, ..)| *bytes), "it never goes back");
        assert_eq!(told.iter().map(|(bytes, ..)| *bytes).max(), Some(total));
        let mut finished: Vec<String> = told.iter().filter_map(|(.., finished)| finished.clone()).collect();
        finished.sort_unstable();
        names.sort_unstable();
        assert_eq!(finished, names);
    }
}
