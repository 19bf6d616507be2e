//! `verify_checkpoint` finds every kind of damage, and says where it is.

use std::path::Path;
use std::sync::Arc;

use shardfeed::checkpoint::{
    Checkpoint, Dtype, OpenOptions, Problem, ProblemKind, TellProgress, verify_checkpoint,
};

use crate::support::{copy_of, fixture_names, fixtures, scratch, some_bytes};
use crate::writer::{Item, Writer};

const FIRST: &str = "__0_0.distcp";
const SECOND: &str = "__1_0.distcp";

/// A tensor over two files, one that is compressed, a small one and an object.
fn good() -> Writer {
    let rows = |seed| Item::row_major(Dtype::Float32, &[2, 6], &some_bytes(48, seed));
    let mut writer = Writer::new();
    writer.object(FIRST, "step", &Item::row_major(Dtype::Int64, &[], &[7, 0, 0, 0, 0, 0, 0, 0]).bytes());
    writer.tensor("model.weight", Dtype::Float32, &[4, 6]);
    writer.chunk(FIRST, &[0, 0], &rows(1)).chunk(SECOND, &[2, 0], &rows(2));
    writer.whole(FIRST, "model.bias", &Item::row_major(Dtype::Bfloat16, &[6], &some_bytes(12, 3)));
    let item = Item::row_major(Dtype::Int64, &[5], &some_bytes(40, 4));
    writer.tensor("packed", Dtype::Int64, &[5]).packed_chunk(SECOND, &[0], &item);
    writer
}

/// Where a tensor's chunk begins in its file.
fn start(writer: &mut Writer, tensor: usize, chunk: usize) -> usize {
    writer.place(tensor, chunk).offset as usize
}

fn problems(directory: &Path) -> Vec<Problem> {
    let report = verify_checkpoint(directory, &OpenOptions::default(), None).unwrap();
    let mut sorted = report.problems.clone();
    sorted.sort();
    assert_eq!(report.problems, sorted, "by file and place");
    report.problems
}

fn problems_of(writer: &Writer) -> Vec<Problem> {
    let directory = scratch();
    writer.write(directory.path());
    problems(directory.path())
}

/// The one problem there is.
fn only(mut problems: Vec<Problem>) -> Problem {
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems.remove(0)
}

/// What a problem is about: its file's name, item, place and kind. Its reason must hold these words.
fn about<'a>(problem: &'a Problem, words: &[&str]) -> (&'a str, &'a str, u64, ProblemKind) {
    for word in words {
        assert!(problem.reason.contains(word), "no {word:?} in {:?}", problem.reason);
    }
    let file = problem.path.file_name().unwrap().to_str().unwrap();
    (file, problem.item.as_str(), problem.offset, problem.kind)
}

/// Flips a bit of a record of `model.weight`'s second chunk, `at` bytes into it, and says what is found.
fn flipped_in_record(record: &str, at: usize) -> Problem {
    let mut writer = good();
    let place = Item::row_major(Dtype::Float32, &[2, 6], &some_bytes(48, 2)).placed().records[record].start;
    let begin = start(&mut writer, 0, 1);
    writer.files.get_mut(SECOND).unwrap()[begin + place + at] ^= 1;
    only(problems_of(&writer))
}

#[test]
fn nothing_is_wrong_with_any_fixture() {
    for name in fixture_names() {
        let report = verify_checkpoint(&fixtures().join(&name), &OpenOptions::default(), None).unwrap();
        assert_eq!(report.problems, [], "{name}");
        assert!(report.bytes > 0 && report.files > 0 && report.tensors > 0, "{name}: {report:?}");
    }
}

#[test]
fn nothing_is_wrong_with_what_the_tests_write() {
    let directory = scratch();
    good().write(directory.path());
    let report = verify_checkpoint(directory.path(), &OpenOptions::default(), None).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!((report.tensors, report.objects, report.files), (3, 1, 2));
    assert_eq!((report.items_with_checksums, report.items_without), (5, 0));
}

#[test]
fn a_flipped_byte_of_a_tensor_is_found_by_its_checksum() {
    for at in [0, 17, 47] {
        let problem = flipped_in_record("data/0", at);
        let found = about(&problem, &["archive/data/0: its bytes have the checksum", "copy the file again"]);
        assert_eq!(found, (SECOND, "model.weight", 0, ProblemKind::Checksum));
    }
}

#[test]
fn a_flipped_byte_of_every_other_record_is_found() {
    for record in ["data.pkl", ".format_version", "byteorder", "version", ".data/serialization_id"] {
        let problem = flipped_in_record(record, 0);
        let (file, item, offset, kind) = about(&problem, &[record.trim_start_matches('.')]);
        assert_eq!((file, item, offset), (SECOND, "model.weight", 0), "{record}");
        assert!(matches!(kind, ProblemKind::Layout | ProblemKind::Checksum), "{record}: {problem:?}");
    }
}

#[test]
fn a_damaged_directory_of_an_item_says_what_to_do() {
    let mut writer = Writer::new();
    let item = Item::row_major(Dtype::Uint8, &[300_000], &some_bytes(300_000, 1));
    writer.whole(FIRST, "weight", &item);
    let bytes = writer.files.get_mut(FIRST).unwrap();
    let end = bytes.len();
    bytes[end - 22] ^= 1;
    let directory = scratch();
    writer.write(directory.path());
    let error = Checkpoint::open(directory.path()).unwrap().read("weight").unwrap_err().to_string();
    assert!(
        error.contains("weight at byte 0") && error.ends_with("torch did not write it: copy the file again"),
        "{error}"
    );
}

#[test]
fn a_flipped_byte_of_an_object_is_found() {
    let mut writer = good();
    let place = Item::row_major(Dtype::Int64, &[], &[0; 8]).placed().records["data/0"].start;
    writer.files.get_mut(FIRST).unwrap()[place] ^= 0x40;
    let found = only(problems_of(&writer));
    assert_eq!(about(&found, &["archive/data/0"]), (FIRST, "step", 0, ProblemKind::Checksum));
}

/// Flips each bit of a range of an item, one at a time: it is found, or nothing that is read depends on it.
fn flips_of(range: std::ops::Range<usize>) -> usize {
    let elements = some_bytes(48, 2);
    let item = Item::row_major(Dtype::Float32, &[2, 6], &elements);
    let mut writer = Writer::new();
    writer.whole(FIRST, "weight", &item);
    let directory = scratch();
    writer.write(directory.path());
    let mut found = 0;
    for bit in range.start * 8..range.end * 8 {
        let mut bytes = item.bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(directory.path().join(FIRST), bytes).unwrap();
        let problems = problems(directory.path());
        if problems.is_empty() {
            let read = Checkpoint::open(directory.path()).unwrap().read("weight").unwrap();
            assert_eq!(read.bytes, elements, "bit {bit} changes what is read, and nobody finds it");
            continue;
        }
        let (file, name, offset, kind) = about(&problems[0], &[]);
        assert_eq!((file, name, offset, problems.len()), (FIRST, "weight", 0, 1));
        assert!(matches!(kind, ProblemKind::Layout | ProblemKind::Checksum), "{problems:?}");
        found += 1;
    }
    found
}

#[test]
fn every_bit_of_the_directory_of_an_item_is_found_or_means_nothing() {
    let placed = Item::row_major(Dtype::Float32, &[2, 6], &some_bytes(48, 2)).placed();
    // Marks, checksums, lengths, names and places are found; versions, times and attributes mean nothing here.
    let found = flips_of(placed.directory.clone());
    assert!(found > placed.directory.len() * 8 / 3, "{found}");
    assert!(flips_of(placed.directory.end..placed.bytes.len()) > 8 * 40);
}

#[test]
fn every_bit_of_a_local_header_is_found_or_means_nothing() {
    let placed = Item::row_major(Dtype::Float32, &[2, 6], &some_bytes(48, 2)).placed();
    let header = placed.headers["data/0"];
    // The mark, and the lengths of what comes before the bytes.
    assert!(flips_of(header..header + 30) >= 32 + 8);
}

#[test]
fn a_file_that_is_cut_short_is_found_with_every_item_that_it_lost() {
    let mut writer = good();
    let bias = start(&mut writer, 1, 0);
    writer.files.get_mut(FIRST).unwrap().truncate(bias - 10);
    let problems = problems_of(&writer);
    let weight = start(&mut writer, 0, 0) as u64;
    assert_eq!(problems.len(), 2, "{problems:#?}");
    let end = format!("it ends at byte {bias} and the file has {}; copy the file again", bias - 10);
    assert_eq!(about(&problems[0], &[&end]), (FIRST, "model.weight", weight, ProblemKind::CutShort));
    assert_eq!(about(&problems[1], &[]), (FIRST, "model.bias", bias as u64, ProblemKind::CutShort));
}

#[test]
fn a_missing_file_is_found_once() {
    let mut writer = good();
    writer.files.remove(FIRST);
    let problem = only(problems_of(&writer));
    assert_eq!(about(&problem, &["the file is missing"]), (FIRST, "", 0, ProblemKind::MissingFile));
}

#[test]
fn files_of_an_unfinished_save_are_found() {
    let mut writer = good();
    for name in ["__2_0.distcp", ".metadata.tmp"] {
        writer.files.insert(name.to_owned(), b"left".to_vec());
    }
    // What others put there is theirs.
    writer.files.insert("config.json".to_owned(), b"{}".to_vec());
    let problems = problems_of(&writer);
    let orphan = |problem| about(problem, &["a save that was not finished"]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert_eq!(orphan(&problems[0]), (".metadata.tmp", "", 0, ProblemKind::OrphanFile));
    assert_eq!(orphan(&problems[1]), ("__2_0.distcp", "", 0, ProblemKind::OrphanFile));
}

#[test]
fn files_of_an_unfinished_save_are_found_in_folders_too() {
    let directory = scratch();
    good().write(directory.path());
    std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
    std::fs::write(directory.path().join("a/b/__7_0.distcp"), b"left").unwrap();
    std::fs::write(directory.path().join("a/notes.txt"), b"theirs").unwrap();
    // A link to a folder is not followed: this one never ends.
    std::os::unix::fs::symlink(directory.path(), directory.path().join("a/again")).unwrap();
    let problem = only(problems(directory.path()));
    assert_eq!(about(&problem, &[]), ("__7_0.distcp", "", 0, ProblemKind::OrphanFile));
    assert_eq!(problem.path, directory.path().join("a/b/__7_0.distcp"));
}

#[test]
fn parts_that_torch_made_whole_tensors_of_are_no_orphans() {
    let directory = copy_of("f13_hf_full");
    std::fs::create_dir(directory.path().join("sharded")).unwrap();
    let part = "sharded/shard-00001-model-00001-of-00001.safetensors";
    std::fs::write(directory.path().join(part), b"theirs").unwrap();
    assert_eq!(problems(directory.path()), []);
    // Under other names, and beside what torch saved in its own format, they are.
    std::fs::write(directory.path().join("sharded/model.safetensors"), b"left").unwrap();
    let problem = only(problems(directory.path()));
    assert_eq!(about(&problem, &[]), ("model.safetensors", "", 0, ProblemKind::OrphanFile));
    let directory = scratch();
    good().write(directory.path());
    std::fs::create_dir(directory.path().join("sharded")).unwrap();
    std::fs::write(directory.path().join("sharded/shard-1.distcp"), b"left").unwrap();
    assert_eq!(only(problems(directory.path())).kind, ProblemKind::OrphanFile);
}

/// Without the files of the last rank it looks whole, and torch notes nothing that says otherwise.
#[test]
fn of_what_ranks_saved_as_safetensors_it_is_told_that_nobody_knows_how_many_they_were() {
    let directory = copy_of("f13_hf_full");
    let verify = || verify_checkpoint(directory.path(), &OpenOptions::default(), None).unwrap();
    assert!(!verify().ranks_not_noted);
    std::fs::remove_file(directory.path().join("model.safetensors.index.json")).unwrap();
    let file = "model-00001-of-00001.safetensors";
    std::fs::rename(directory.path().join(file), directory.path().join(format!("shard-00001-{file}")))
        .unwrap();
    let report = verify();
    assert!(report.ranks_not_noted && report.problems.is_empty(), "{report:?}");
}

#[test]
fn ranks_that_saved_other_things_under_one_name_are_found() {
    let directory = scratch();
    for (rank, shape) in [(0, 6), (1, 4)] {
        let mut writer = Writer::new();
        let item = Item::row_major(Dtype::Uint8, &[shape], &some_bytes(shape as usize, rank));
        writer.whole(&format!("__{rank}_0.distcp"), "t", &item);
        writer.write(directory.path());
        let own = directory.path().join(format!("__{rank}.metadata"));
        std::fs::rename(directory.path().join(".metadata"), own).unwrap();
    }
    let problem = only(problems(directory.path()));
    let words = ["this rank saved uint8 of shape [4], and another one uint8 of shape [6]"];
    assert_eq!(about(&problem, &words), ("__1.metadata", "t", 0, ProblemKind::Metadata));
}

#[test]
fn a_part_that_torch_wrote_over_is_found() {
    // Torch keeps one part under each name of a file as safetensors, whatever the metadata say.
    let json = r#"{"__metadata__":{"DCP_VERSION":"1.0","DCP_SHARDING_INFO":"{\"t\":{\"saved_offsets\":[2]}}"},"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &[1, 2]].concat();
    let mut writer = Writer::new();
    writer.tensor("t", Dtype::Uint8, &[4]);
    let place = writer.append(FIRST, &bytes);
    let place = crate::writer::Place { length: 2, ..place };
    writer.add_chunk(&[0], &[2], place.clone()).add_chunk(&[2], &[2], place);
    let problem = only(problems_of(&writer));
    let words = ["the file holds the part at [2], not the one at [0]: torch kept only the last of several"];
    assert_eq!(about(&problem, &words), (FIRST, "t", 0, ProblemKind::Layout));
}

#[test]
fn a_damaged_header_of_safetensors_that_torch_wrote_is_found() {
    let directory = copy_of("f11_fs_safetensors");
    let opened = Checkpoint::open(directory.path()).unwrap();
    let tensors = opened.tensors().len();
    let path = opened.files().next().unwrap().0.to_owned();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = b'[';
    std::fs::write(&path, bytes).unwrap();
    let found = problems(directory.path());
    assert!(!found.is_empty() && found.len() <= tensors, "{found:#?}");
    for problem in &found {
        about(problem, &["neither an archive of torch.save nor safetensors"]);
        assert_eq!((&problem.path, problem.kind), (&path, ProblemKind::Layout));
    }
}

#[test]
fn records_that_share_bytes_are_found() {
    let item = Item::row_major(Dtype::Uint8, &[40], &some_bytes(40, 1)).placed();
    let mut writer = Writer::new();
    writer.tensor("t", Dtype::Uint8, &[40]);
    let place = writer.append(FIRST, &item.bytes);
    writer.add_chunk(&[0], &[40], place);
    // The entry of the directory for the version says that it begins where the elements do.
    let bytes = writer.files.get_mut(FIRST).unwrap();
    let entries: Vec<usize> =
        (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == *b"PK\x01\x02").collect();
    let name = |at: usize| {
        let len = u16::from_le_bytes([bytes[at + 28], bytes[at + 29]]) as usize;
        String::from_utf8(bytes[at + 46..at + 46 + len].to_vec()).unwrap()
    };
    let of = |end: &str| *entries.iter().find(|&&at| name(at).ends_with(end)).unwrap();
    let (data, version) = (of("data/0"), of("version"));
    let copied: Vec<u8> = bytes[data + 42..data + 46].to_vec();
    bytes[version + 42..version + 46].copy_from_slice(&copied);
    let problem = only(problems_of(&writer));
    assert_eq!(about(&problem, &["share bytes"]), (FIRST, "t", 0, ProblemKind::Layout));
}

#[test]
fn what_metadata_say_wrongly_is_found_with_the_byte() {
    let mut writer = good();
    writer.tensors[1].dtype = crate::writer::Value::Global("torch", "float33");
    let problem = only(problems_of(&writer));
    about(
        &problem,
        &["byte ", "model.bias: its dtype torch.float33 is not known here; a newer torch wrote it"],
    );
    let metadata = writer.metadata().pickled(writer.protocol);
    let byte = problem.reason.strip_prefix("byte ").and_then(|rest| rest.split(':').next());
    let byte: usize = byte.unwrap().parse().unwrap();
    // That is where the description is made: after its name, before the dtype.
    let place = |text: &[u8]| metadata.windows(text.len()).position(|window| window == text).unwrap();
    assert!((place(b"model.bias")..place(b"float33")).contains(&byte), "byte {byte}");
    writer.tensors[1].dtype = crate::writer::Value::Global("torch", "quint8");
    let problem = only(problems_of(&writer));
    about(&problem, &["model.bias: it is quantized (torch.quint8); only torch makes sense of that"]);
}

#[test]
fn elements_that_no_chunk_holds_are_found() {
    let mut writer = good();
    writer.tensors[0].chunks.remove(1);
    let problem = only(problems_of(&writer));
    let expected = (".metadata", "model.weight", 0, ProblemKind::Uncovered);
    assert_eq!(about(&problem, &["12 of its 24 elements are in none of its 1 chunks"]), expected);
}

#[test]
fn chunks_that_lie_over_each_other_are_found() {
    let mut writer = good();
    let item = Item::row_major(Dtype::Float32, &[1, 6], &some_bytes(24, 9));
    let place = writer.append(SECOND, &item.bytes());
    let chunk = crate::writer::Chunk { offsets: vec![1, 0], sizes: vec![1, 6], place: Some(place) };
    writer.tensors[0].chunks.push(chunk);
    let problem = only(problems_of(&writer));
    let expected = (".metadata", "model.weight", 0, ProblemKind::OverlappingChunks);
    assert_eq!(about(&problem, &["in several of its chunks"]), expected);
}

#[test]
fn items_that_share_bytes_are_found_also_behind_a_short_one() {
    // A long object reaches over three tensors: the last one overlaps it too, though not the one before.
    let mut writer = Writer::new();
    let item = |seed| Item::row_major(Dtype::Uint8, &[3], &some_bytes(3, seed));
    writer.whole(FIRST, "a", &item(1)).whole(FIRST, "b", &item(2)).whole(FIRST, "c", &item(3));
    let all = writer.files[FIRST].len() as i64;
    let mut place = writer.place(0, 0).clone();
    place.length = all;
    writer.objects.push(("all".to_owned(), place));
    let (b, c) = (start(&mut writer, 1, 0) as u64, start(&mut writer, 2, 0) as u64);
    let problems = problems_of(&writer);
    let overlaps: Vec<_> =
        problems.iter().filter(|problem| problem.kind == ProblemKind::OverlappingItems).collect();
    assert_eq!(overlaps.len(), 3, "{problems:#?}");
    assert_eq!(overlaps[0].offset, 0);
    for (problem, name, offset) in [(overlaps[1], "b", b), (overlaps[2], "c", c)] {
        let words = format!("it begins before all has ended, at byte {all}");
        assert_eq!(about(problem, &[&words]), (FIRST, name, offset, ProblemKind::OverlappingItems));
    }
}

#[test]
fn damaged_metadata_are_found_with_the_byte() {
    let writer = good();
    let directory = scratch();
    writer.write(directory.path());
    let path = directory.path().join(".metadata");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2] = 0xff;
    std::fs::write(&path, &bytes).unwrap();
    let problem = only(problems(directory.path()));
    let words = ["not a readable pickle: byte 2: 0xff is no operation", "it is damaged"];
    assert_eq!(about(&problem, &words), (".metadata", "", 0, ProblemKind::Metadata));
    bytes.truncate(0);
    std::fs::write(&path, &bytes).unwrap();
    let problem = only(problems(directory.path()));
    assert_eq!(about(&problem, &["byte 0"]), (".metadata", "", 0, ProblemKind::Metadata));
}

#[test]
fn missing_metadata_are_found() {
    let directory = scratch();
    good().write(directory.path());
    std::fs::remove_file(directory.path().join(".metadata")).unwrap();
    let problem = only(problems(directory.path()));
    assert_eq!((problem.path.as_path(), problem.kind), (directory.path(), ProblemKind::Metadata));
    assert!(problem.reason.contains("neither .metadata"), "{problem:?}");
}

#[test]
fn a_directory_that_is_not_there_is_a_mistake() {
    let directory = scratch();
    let error = verify_checkpoint(&directory.path().join("x"), &OpenOptions::default(), None).unwrap_err();
    assert!(error.to_string().contains(directory.path().join("x").to_str().unwrap()), "{error}");
}

#[test]
fn damage_of_a_compressed_item_is_found() {
    let mut writer = good();
    let place = writer.place(2, 0).clone();
    let (begin, end) = (place.offset as usize, (place.offset + place.length) as usize);
    let expected = (SECOND, "packed", begin as u64, ProblemKind::Layout);
    let good_bytes = writer.files[SECOND].clone();
    // The mark of its frame, and zeros in its middle.
    writer.files.get_mut(SECOND).unwrap()[begin] ^= 1;
    assert_eq!(about(&only(problems_of(&writer)), &["cannot decompress it (zstd)"]), expected);
    writer.files.insert(SECOND.to_owned(), good_bytes.clone());
    writer.files.get_mut(SECOND).unwrap()[begin + 20..begin + 60].fill(0);
    assert_eq!(about(&only(problems_of(&writer)), &[]).0, SECOND);
    // Every byte: what is decompressed has checksums of its own.
    for at in begin..end {
        let mut bytes = good_bytes.clone();
        bytes[at] ^= 0x10;
        writer.files.insert(SECOND.to_owned(), bytes);
        let directory = scratch();
        writer.write(directory.path());
        if problems(directory.path()).is_empty() {
            let read = Checkpoint::open(directory.path()).unwrap().read("packed").unwrap();
            assert_eq!(read.bytes, some_bytes(40, 4), "byte {at}");
        }
    }
}

#[test]
fn a_compressed_object_of_many_records_is_whole_and_damage_of_each_is_found() {
    let records: Vec<(String, Vec<u8>)> =
        (0..40).map(|number| (format!("data/{number}"), some_bytes(16 << 10, number))).collect();
    let records: Vec<(&str, Vec<u8>)> =
        records.iter().map(|(name, content)| (name.as_str(), content.clone())).collect();
    let placed = crate::writer::archive(&records, true);
    let packed = |bytes: &[u8]| {
        let mut writer = Writer::new();
        writer.object(FIRST, "opt", &zstd::encode_all(bytes, 1).unwrap());
        writer.objects[0].1.transforms = vec!["stream.zstd/1".to_owned()];
        writer
    };
    assert_eq!(problems_of(&packed(&placed.bytes)), []);
    for name in ["data/0", "data/17", "data/39"] {
        let mut bytes = placed.bytes.clone();
        bytes[placed.records[name].start + 5] ^= 1;
        let problem = only(problems_of(&packed(&bytes)));
        let words = [&format!("archive/{name}: its bytes have the checksum")[..]];
        assert_eq!(about(&problem, &words), (FIRST, "opt", 0, ProblemKind::Checksum));
    }
}

#[test]
fn bytes_that_belong_to_nothing_are_found() {
    // After the tensor that is last in a file.
    let mut writer = good();
    let end = writer.files[FIRST].len();
    writer.files.get_mut(FIRST).unwrap().extend_from_slice(b"more");
    let problem = only(problems_of(&writer));
    let words = [&format!("bytes {end} to {} belong to nothing", end + 4)[..]];
    assert_eq!(about(&problem, &words), (FIRST, "", end as u64, ProblemKind::Unclaimed));
    // Of what is compressed torch may write some bytes more than it notes, and of objects beside safetensors.
    let mut writer = good();
    writer.files.get_mut(SECOND).unwrap().extend_from_slice(b"more");
    assert_eq!(problems_of(&writer), []);
    let mut writer = good();
    writer.object(FIRST, "last", &Item::row_major(Dtype::Int64, &[], &[7; 8]).bytes());
    writer.files.get_mut(FIRST).unwrap().extend_from_slice(b"more");
    assert_eq!(problems_of(&writer), []);
    // After the last tensor of a safetensors file, between two and before the first.
    let name = "model.safetensors";
    let file = |places: [(u64, u64); 2], bytes: usize| {
        let entry = |(start, end): (u64, u64)| {
            format!("{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}", end - start)
        };
        let json = format!("{{\"a\":{},\"b\":{}}}", entry(places[0]), entry(places[1]));
        let directory = scratch();
        let content = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![7; bytes]].concat();
        std::fs::write(directory.path().join(name), content).unwrap();
        (8 + json.len() as u64, directory)
    };
    let (_, whole) = file([(3, 5), (0, 3)], 5);
    assert_eq!(problems(whole.path()), []);
    for (places, bytes, from) in
        [([(0, 2), (2, 5)], 6, 5), ([(0, 2), (3, 5)], 5, 2), ([(1, 2), (2, 5)], 5, 0)]
    {
        let (header, directory) = file(places, bytes);
        let problem = only(problems(directory.path()));
        let words = [&format!("bytes {} to {} belong to nothing", header + from, header + from + 1)[..]];
        assert_eq!(about(&problem, &words), (name, "", header + from, ProblemKind::Unclaimed));
    }
}

#[test]
fn a_file_that_is_written_to_while_it_is_looked_at_is_found() {
    let directory = scratch();
    // Far more than threads: when the first was looked at, others are still to come.
    let tensor =
        |at: usize| format!(r#""t{at}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{}]}}"#, at + 1);
    let json = format!("{{{}}}", (0..1000).map(tensor).collect::<Vec<_>>().join(","));
    let path = directory.path().join("model.safetensors");
    let header = (json.len() as u64).to_le_bytes();
    std::fs::write(&path, [&header[..], json.as_bytes(), &[0; 1000]].concat()).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let tell: TellProgress = Arc::new(move |_| file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap());
    let report = verify_checkpoint(directory.path(), &OpenOptions::default(), Some(&tell)).unwrap();
    let problem = report.problems.first().expect("it is found");
    about(problem, &["it changed after the checkpoint was opened"]);
}

#[test]
fn a_transform_that_nobody_knows_is_found() {
    let mut writer = good();
    writer.place(2, 0).transforms = vec!["stream.lz4/1".to_owned()];
    let problem = only(problems_of(&writer));
    let offset = writer.place(2, 0).offset as u64;
    let expected = (SECOND, "packed", offset, ProblemKind::Layout);
    assert_eq!(about(&problem, &["\"stream.lz4/1\", which is not known here"]), expected);
}

#[test]
fn an_item_of_another_type_or_shape_is_found() {
    let mut writer = good();
    writer.tensors[1].dtype = crate::writer::Value::Global("torch", "float16");
    let problem = only(problems_of(&writer));
    let words = ["it holds bfloat16 of shape [6], and the metadata say float16 of shape [6]"];
    let offset = writer.place(1, 0).offset as u64;
    assert_eq!(about(&problem, &words), (FIRST, "model.bias", offset, ProblemKind::Layout));
    let mut writer = good();
    writer.tensors[1].shape = vec![2, 3];
    let chunk = &mut writer.tensors[1].chunks[0];
    (chunk.offsets, chunk.sizes) = (vec![0, 0], vec![2, 3]);
    let problem = only(problems_of(&writer));
    about(&problem, &["of shape [6], and the metadata say bfloat16 of shape [2, 3]"]);
}

#[test]
fn a_damaged_safetensors_header_is_found() {
    let directory = copy_of("f13_hf_full");
    let name = "model-00001-of-00001.safetensors";
    let path = directory.path().join(name);
    let good = std::fs::read(&path).unwrap();
    for (at, value, word) in
        [(7, 0x7f, "no safetensors file, or cut short"), (8, b'[', "not as safetensors has it")]
    {
        let mut bytes = good.clone();
        bytes[at] = value;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(about(&only(problems(directory.path())), &[word]), (name, "", 0, ProblemKind::Metadata));
    }
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert_eq!(about(&only(problems(directory.path())), &["after the header"]).0, name);
}

#[test]
fn a_file_that_only_an_index_knows_is_found() {
    let directory = copy_of("f13_hf_full");
    let index = directory.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    let renamed = text.replacen("model-00001-of-00001.safetensors", "model-00009.safetensors", 1);
    assert_ne!(text, renamed);
    std::fs::write(&index, renamed).unwrap();
    let problems = problems(directory.path());
    let missing = problems.iter().find(|problem| problem.kind == ProblemKind::MissingFile);
    let found = about(missing.unwrap(), &["the file is missing"]);
    assert_eq!(found, ("model-00009.safetensors", "", 0, ProblemKind::MissingFile));
}

#[test]
fn a_file_that_is_a_folder_is_found() {
    let mut writer = good();
    writer.files.remove(SECOND);
    let directory = scratch();
    writer.write(directory.path());
    std::fs::create_dir(directory.path().join(SECOND)).unwrap();
    let problem = only(problems(directory.path()));
    assert_eq!(about(&problem, &["it is no file"]), (SECOND, "", 0, ProblemKind::MissingFile));
}

#[test]
fn all_damage_is_listed_and_not_only_the_first() {
    let mut writer = good();
    let (weight, bias) = (start(&mut writer, 0, 0), start(&mut writer, 1, 0));
    let item = Item::row_major(Dtype::Float32, &[2, 6], &some_bytes(48, 1)).placed();
    let first = writer.files.get_mut(FIRST).unwrap();
    first[weight + item.records["data/0"].start] ^= 1;
    first[bias + 2] ^= 1;
    let packed = start(&mut writer, 2, 0);
    writer.files.get_mut(SECOND).unwrap()[packed] ^= 1;
    writer.files.insert("__7_0.distcp".to_owned(), Vec::new());
    writer.whole("__3_0.distcp", "gone", &Item::row_major(Dtype::Uint8, &[1], &[1]));
    writer.files.remove("__3_0.distcp");
    writer.tensor("uncovered", Dtype::Uint8, &[3]);
    let problems = problems_of(&writer);
    let found: Vec<_> = problems.iter().map(|problem| about(problem, &[])).collect();
    let expected = [
        (".metadata", "uncovered", 0, ProblemKind::Uncovered),
        (FIRST, "model.weight", weight as u64, ProblemKind::Checksum),
        (FIRST, "model.bias", bias as u64, ProblemKind::Layout),
        (SECOND, "packed", packed as u64, ProblemKind::Layout),
        ("__3_0.distcp", "", 0, ProblemKind::MissingFile),
        ("__7_0.distcp", "", 0, ProblemKind::OrphanFile),
    ];
    assert_eq!(found, expected);
    // The file that only cut items would tell of is opened as an error that names all, too.
    let directory = scratch();
    writer.files.get_mut(SECOND).unwrap().truncate(5);
    writer.write(directory.path());
    let error = Checkpoint::open(directory.path()).unwrap_err().to_string();
    for file in [SECOND, "__3_0.distcp"] {
        assert!(error.contains(directory.path().join(file).to_str().unwrap()), "{error}");
    }
}

#[test]
fn what_two_ranks_saved_under_one_name_is_looked_at_twice() {
    for cut in [false, true] {
        let directory = copy_of("f33_no_collectives_2r");
        let path = directory.path().join(SECOND);
        let mut bytes = std::fs::read(&path).unwrap();
        if cut {
            bytes.truncate(100);
        } else {
            // Both ranks have a tensor "a" of three numbers.
            let options = OpenOptions { rank: Some(1), ..OpenOptions::default() };
            let a = Checkpoint::open_with(directory.path(), &options).unwrap().read("a").unwrap().bytes;
            let at = bytes.windows(12).position(|window| window == a).unwrap();
            bytes[at] ^= 1;
        }
        std::fs::write(&path, bytes).unwrap();
        let found = problems(directory.path());
        let expected = if cut { ProblemKind::CutShort } else { ProblemKind::Checksum };
        assert!(
            !found.is_empty() && found.iter().all(|problem| problem.kind == expected && problem.path == path),
            "{found:#?}"
        );
    }
}

#[test]
fn an_index_that_names_what_its_file_has_not_is_found() {
    let directory = copy_of("f13_hf_full");
    let path = directory.path().join("model.safetensors.index.json");
    let index = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, index.replace("\"t.bool\"", "\"t.lost\"")).unwrap();
    let problem = only(problems(directory.path()));
    assert!(problem.reason.contains("the index says that t.lost is in it"), "{problem:?}");
    assert!(Checkpoint::open(directory.path()).unwrap_err().to_string().contains("t.lost"));
}

#[test]
fn of_two_files_with_one_name_the_index_says_which_counts_and_without_it_nobody() {
    let directory = scratch();
    let write = |file: &str, tensors: &[(&str, &[u8])]| {
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        for (name, bytes) in tensors {
            let (start, len) = (data.len(), bytes.len());
            entries.push(format!(
                "\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{start},{}]}}",
                start + len
            ));
            data.extend_from_slice(bytes);
        }
        let json = format!("{{{}}}", entries.join(","));
        let content = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &data].concat();
        std::fs::write(directory.path().join(file), content).unwrap();
    };
    let index = directory.path().join("model.safetensors.index.json");
    for other in [&[4, 5, 6][..], &[4, 5]] {
        write("a.safetensors", &[("w", &[1, 2, 3])]);
        write("b.safetensors", &[("v", &[9]), ("w", other)]);
        for (file, expected) in [("a", &[1, 2, 3][..]), ("b", other)] {
            let map = format!("{{\"w\":\"{file}.safetensors\",\"v\":\"b.safetensors\"}}");
            std::fs::write(&index, format!("{{\"weight_map\":{map}}}")).unwrap();
            // Both files are named by the index, but for one that it does not need.
            let checkpoint = Checkpoint::open(directory.path()).unwrap();
            assert_eq!(checkpoint.read("w").unwrap().bytes, expected);
            assert_eq!(checkpoint.read("v").unwrap().bytes, [9]);
        }
        std::fs::remove_file(&index).unwrap();
        let error = Checkpoint::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("b.safetensors: w: it is in a.safetensors, too"), "{error}");
    }
}

#[test]
fn a_missing_file_of_a_series_without_an_index_is_found() {
    let directory = copy_of("f13_hf_full");
    std::fs::remove_file(directory.path().join("model.safetensors.index.json")).unwrap();
    assert_eq!(problems(directory.path()), []);
    let (one, renamed) = ("model-00001-of-00001.safetensors", "model-00001-of-00003.safetensors");
    std::fs::rename(directory.path().join(one), directory.path().join(renamed)).unwrap();
    let found = problems(directory.path());
    let names: Vec<&str> = found.iter().map(|problem| about(problem, &["one of theirs"]).0).collect();
    assert_eq!(names, ["model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"]);
}

#[test]
fn more_elements_than_bytes_can_hold_are_found_before_room_is_made_for_them() {
    let item = Item::row_major(Dtype::Float32, &[2, 6], &some_bytes(48, 1));
    for is_packed in [false, true] {
        let mut writer = Writer::new();
        writer.tensor("t", Dtype::Float32, &[1 << 42, 6]);
        if is_packed {
            writer.packed_chunk(FIRST, &[0, 0], &item);
        } else {
            writer.chunk(FIRST, &[0, 0], &item);
        }
        writer.tensors[0].chunks[0].sizes = vec![1 << 42, 6];
        let problem = only(problems_of(&writer));
        assert_eq!(about(&problem, &["cannot be stored in"]), (FIRST, "t", 0, ProblemKind::Layout));
        let directory = scratch();
        writer.write(directory.path());
        assert!(Checkpoint::open(directory.path()).unwrap_err().to_string().contains("cannot be stored in"));
    }
}

#[test]
fn what_else_is_wrong_is_listed_beside_a_missing_safetensors_file() {
    let directory = copy_of("f13_hf_full");
    let path = |name: &str| directory.path().join(name);
    let own = "model-00001-of-00001.safetensors";
    // Another file, which the index names and nobody has; and more bytes at the end of the one that is there.
    let index = std::fs::read_to_string(path("model.safetensors.index.json")).unwrap();
    let index = index.replace("\"weight_map\": {", "\"weight_map\": {\"lost\": \"lost.safetensors\",");
    std::fs::write(path("model.safetensors.index.json"), index).unwrap();
    let mut bytes = std::fs::read(path(own)).unwrap();
    let len = bytes.len() as u64;
    bytes.extend_from_slice(b"more");
    std::fs::write(path(own), bytes).unwrap();
    std::fs::write(path("left.safetensors"), b"left").unwrap();
    let found = problems(directory.path());
    let found: Vec<_> = found.iter().map(|problem| about(problem, &[])).collect();
    let expected = [
        ("left.safetensors", "", 0, ProblemKind::OrphanFile),
        ("lost.safetensors", "", 0, ProblemKind::MissingFile),
        (own, "", len, ProblemKind::Unclaimed),
    ];
    assert_eq!(found, expected);
}

#[test]
fn what_else_is_wrong_is_listed_beside_metadata_of_a_rank_that_cannot_be_read() {
    let directory = copy_of("f33_no_collectives_2r");
    let (metadata, first) = (directory.path().join("__1.metadata"), directory.path().join(FIRST));
    let options = OpenOptions { rank: Some(0), ..OpenOptions::default() };
    let a = Checkpoint::open_with(directory.path(), &options).unwrap().read("a").unwrap().bytes;
    let mut bytes = std::fs::read(&first).unwrap();
    let at = bytes.windows(a.len()).position(|window| window == a).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&first, bytes).unwrap();
    std::fs::write(&metadata, b"nothing").unwrap();
    let found = problems(directory.path());
    let found: Vec<_> = found.iter().map(|problem| (problem.path.clone(), problem.kind)).collect();
    // The second rank's file is that rank's, whatever its metadata say.
    assert_eq!(found, [(first, ProblemKind::Checksum), (metadata.clone(), ProblemKind::Metadata)]);
    let error = Checkpoint::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains(metadata.to_str().unwrap()), "{error}");
}

#[test]
fn one_rank_of_several_that_saved_by_themselves_is_whole_by_itself() {
    let directory = scratch();
    let rows = |seed| Item::row_major(Dtype::Float32, &[2, 6], &some_bytes(48, seed));
    for (rank, file) in (0..2).zip([FIRST, SECOND]) {
        let mut writer = Writer::new();
        writer.tensor("model.weight", Dtype::Float32, &[4, 6]).chunk(file, &[2 * rank, 0], &rows(rank));
        writer.write(directory.path());
        std::fs::rename(
            directory.path().join(".metadata"),
            directory.path().join(format!("__{rank}.metadata")),
        )
        .unwrap();
    }
    for rank in [None, Some(0), Some(1)] {
        let options = OpenOptions { rank, ..OpenOptions::default() };
        let report = verify_checkpoint(directory.path(), &options, None).unwrap();
        assert_eq!(report.problems, [], "{rank:?}");
    }
    // Together they are not if one has lost its part.
    std::fs::remove_file(directory.path().join("__1.metadata")).unwrap();
    std::fs::remove_file(directory.path().join(SECOND)).unwrap();
    let problem = only(problems(directory.path()));
    assert_eq!(about(&problem, &["12 of its 24"]).3, ProblemKind::Uncovered);
}

#[test]
fn a_damaged_item_is_not_counted_among_those_without_checksums() {
    let mut writer = good();
    let place = Item::row_major(Dtype::Int64, &[], &[0; 8]).placed().records["data/0"].start;
    writer.files.get_mut(FIRST).unwrap()[place] ^= 0x40;
    let directory = scratch();
    writer.write(directory.path());
    let report = verify_checkpoint(directory.path(), &OpenOptions::default(), None).unwrap();
    assert_eq!((report.problems.len(), report.items_with_checksums, report.items_without), (1, 4, 0));
}
