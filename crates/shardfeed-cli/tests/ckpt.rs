//! `shardfeed ckpt` as people and programs use it.

#[path = "../../shardfeed/tests/checkpoint/writer.rs"]
#[allow(dead_code)]
mod writer;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use shardfeed::checkpoint::{Checkpoint, Dtype, write_sample};
use writer::{Item, Writer};

fn ckpt(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shardfeed")).arg("ckpt").args(args).current_dir(dir).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap() + std::str::from_utf8(&output.stderr).unwrap()
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let output = ckpt(dir, &[args, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
}

fn world() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_sample(&dir.path().join("saved")).unwrap();
    dir
}

/// Changes a byte of a tensor of the sample.
fn damage(dir: &Path, checkpoint: &str, tensor: &str) {
    let opened = Checkpoint::open(dir.join(checkpoint)).unwrap();
    let (item, elements) =
        (opened.tensor(tensor).unwrap().chunks[0].item.clone(), opened.read(tensor).unwrap().bytes);
    let path = dir.join(checkpoint).join("__0_0.distcp");
    let mut bytes = std::fs::read(&path).unwrap();
    let own = &mut bytes[item.offset as usize..(item.offset + item.length) as usize];
    let at = own.windows(elements.len()).position(|window| window == elements).unwrap();
    own[at + 2] ^= 0x40;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn paths_that_are_no_text_are_told_to_programs_too() {
    let dir = world();
    let strange = OsStr::from_bytes(b"saved-\xff");
    std::fs::rename(dir.path().join("saved"), dir.path().join(strange)).unwrap();
    let run = |args: &[&OsStr]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardfeed"));
        let output = command.arg("ckpt").args(args).arg("--json").current_dir(dir.path()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
    };
    let shown = "saved-\u{fffd}";
    assert_eq!(run(&["inspect".as_ref(), strange])["path"], shown);
    let out = OsStr::from_bytes(b"out-\xfe");
    assert_eq!(run(&["convert".as_ref(), strange, out])["out"], "out-\u{fffd}");
    std::fs::write(dir.path().join(strange).join("left.distcp"), "x").unwrap();
    let report = run(&["verify".as_ref(), strange]);
    assert!(report["problems"][0]["path"].as_str().unwrap().contains(shown), "{report}");
}

#[test]
fn inspect_shows_a_tree_and_tells_programs_where_everything_lies() {
    let dir = world();
    let shown = text(&ckpt(dir.path(), &["inspect", "saved"]));
    for line in [
        "│  ├─ embedding   bfloat16  [6, 4]",
        "├─ epoch          object",
        "tensors   7 of 80 elements, 267 B",
        "objects   3",
    ] {
        assert!(shown.contains(line), "{line:?} in\n{shown}");
    }
    let shown = text(&ckpt(dir.path(), &["inspect", "saved", "--depth=1"]));
    assert!(shown.contains("├─ model      5 below") && !shown.contains("embedding"), "{shown}");
    let report = json(dir.path(), &["inspect", "saved"]);
    let weight =
        report["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == "model.weight").unwrap();
    assert_eq!((&weight["dtype"], weight["bytes"].as_u64()), (&Value::from("float32"), Some(64)));
    assert_eq!(weight["chunks"][0]["stored"]["file"], "__0_0.distcp");
}

#[test]
fn verify_passes_what_is_whole_and_names_what_is_not() {
    let dir = world();
    let output = ckpt(dir.path(), &["verify", "saved"]);
    assert!(
        output.status.success() && text(&output).contains("compared in all 10 items\nnothing is wrong"),
        "{}",
        text(&output)
    );
    damage(dir.path(), "saved", "model.bias");
    std::fs::write(dir.path().join("saved/__7_0.distcp"), "left over").unwrap();
    let output = ckpt(dir.path(), &["verify", "saved"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("2 things are wrong:") && text(&output).contains("model.bias at byte"),
        "{}",
        text(&output)
    );
    let report = json(dir.path(), &["verify", "saved"]);
    let kinds: Vec<&str> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["checksum", "orphan_file"]);
    assert_eq!(ckpt(dir.path(), &["verify", "nowhere"]).status.code(), Some(3));
}

#[test]
fn diff_says_which_tensors_differ_and_by_how_much() {
    let dir = world();
    write_sample(&dir.path().join("other")).unwrap();
    let output = ckpt(dir.path(), &["diff", "saved", "other"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(
        text(&output).contains("no difference: 10 the same (7 seen by their checksums alone)"),
        "{}",
        text(&output)
    );
    let converted = ckpt(dir.path(), &["convert", "saved", "model", "--include=model.*", "--exclude=*.mask"]);
    assert!(converted.status.success(), "{}", text(&converted));
    // By content, where one side has no checksums.
    let report = json(dir.path(), &["diff", "saved", "model"]);
    let names: Vec<&str> =
        report["differences"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["config.betas", "config.lr", "epoch", "model.mask", "optimizer.exp_avg", "optimizer.step"]
    );
    assert_eq!((report["same"].as_u64(), report["same_by_checksum"].as_u64()), (Some(4), Some(0)));
    // The checksum stays as it was, as that of bytes that a disk has changed does: their sums are told apart by reading nothing.
    let changed = dir.path().join("model/model.safetensors");
    let mut bytes = std::fs::read(&changed).unwrap();
    let weight = Checkpoint::open(dir.path().join("model")).unwrap().tensor("model.weight").unwrap().chunks
        [0]
    .item
    .offset;
    bytes[weight as usize + 4..][..4].copy_from_slice(&3.0_f32.to_le_bytes());
    std::fs::write(&changed, bytes).unwrap();
    let report = json(dir.path(), &["diff", "saved", "model"]);
    let weight =
        report["differences"].as_array().unwrap().iter().find(|one| one["name"] == "model.weight").unwrap();
    assert_eq!(
        (weight["different"].as_u64(), weight["of"].as_u64(), weight["largest"].as_f64()),
        (Some(1), Some(16), Some(2.0))
    );
}

#[test]
fn diff_looks_at_what_stays_of_chunks_that_overlap_and_at_what_is_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let item = |number: f32, count: usize| {
        Item::row_major(Dtype::Float32, &[count as u64], &number.to_le_bytes().repeat(count))
    };
    let save = |name: &str, chunks: &[(&str, u64, Item)]| {
        let mut writer = Writer::new();
        writer.tensor("t", Dtype::Float32, &[6]);
        for (file, at, item) in chunks {
            writer.chunk(file, &[*at], item);
        }
        std::fs::create_dir(dir.path().join(name)).unwrap();
        writer.write(&dir.path().join(name));
    };
    save("one", &[("__0_0.distcp", 0, item(1.0, 4)), ("__1_0.distcp", 2, item(2.0, 4))]);
    save("other", &[("__1_0.distcp", 2, item(2.0, 4)), ("__0_0.distcp", 0, item(1.0, 4))]);
    let report = json(dir.path(), &["diff", "one", "other"]);
    assert_eq!(report["differences"][0]["different"], 2, "{report}");
    let report = json(dir.path(), &["bench", "one", "--rounds=1", "--workers=1"]);
    assert_eq!(report["bytes"], 24, "{report}");
    save("none", &[("__0_0.distcp", 0, item(f32::NAN, 6))]);
    let report = json(dir.path(), &["diff", "one", "none"]);
    assert_eq!(report["differences"][0]["without_distance"], 6, "{report}");
    assert!(text(&ckpt(dir.path(), &["diff", "one", "none"])).contains("6 not finite"));
}

#[test]
fn names_that_mean_harm_are_printed_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new();
    let item = Item::row_major(Dtype::Uint8, &[1], &[1]);
    writer.whole("__0_0.distcp", &format!("a{}", ".a".repeat(200_000)), &item);
    writer.whole("__0_0.distcp", "\u{1b}[2Jclear", &item);
    writer.write(dir.path());
    let output = ckpt(dir.path(), &["inspect", "."]);
    assert!(output.status.success() && !output.stdout.contains(&0x1b));
    writer.tensors[1].chunks[0].sizes = vec![2];
    writer.write(dir.path());
    let output = ckpt(dir.path(), &["inspect", "."]);
    assert!(output.status.code() == Some(3) && !output.stderr.contains(&0x1b), "{}", text(&output));
    assert!(text(&output).contains("[2Jclear"), "{}", text(&output));
}

#[test]
fn convert_writes_what_was_chosen_cast_and_renamed_in_several_files() {
    let dir = world();
    let args = [
        "convert",
        "saved",
        "out",
        "--include=model.*",
        "--strip-prefix=model.",
        "--dtype=float64",
        "--file-size=200",
    ];
    let report = json(dir.path(), &args);
    assert_eq!(
        (
            report["tensors"].as_u64(),
            report["tensors_left_out"].as_u64(),
            report["objects_left_out"].as_u64()
        ),
        (Some(5), Some(2), Some(3))
    );
    let (saved, out) = (
        Checkpoint::open(dir.path().join("saved")).unwrap(),
        Checkpoint::open(dir.path().join("out")).unwrap(),
    );
    assert!(
        report["files"].as_array().unwrap().len() > 1
            && dir.path().join("out/model.safetensors.index.json").is_file()
    );
    let names: Vec<&str> = out.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["bias", "embedding", "mask", "transposed", "weight"]);
    assert_eq!(out.read("mask").unwrap(), saved.read("model.mask").unwrap());
    let weight: Vec<u8> = (0..16).flat_map(|number| f64::from(number).to_le_bytes()).collect();
    assert_eq!(out.read("weight").unwrap().bytes, weight);
    // What is there stays; nothing half-made is left.
    let again = ckpt(dir.path(), &args);
    assert!(
        again.status.code() == Some(2) && text(&again).contains("it is there already"),
        "{}",
        text(&again)
    );
    let none = ckpt(dir.path(), &["convert", "saved", "none", "--include=nothing"]);
    assert!(
        none.status.code() == Some(2) && text(&none).contains("none of its 7 tensors is chosen"),
        "{}",
        text(&none)
    );
    std::fs::write(dir.path().join("saved/__0_0.distcp"), "cut short").unwrap();
    let broken = ckpt(dir.path(), &["convert", "saved", "broken"]);
    assert!(broken.status.code() == Some(3) && text(&broken).contains("cut short"), "{}", text(&broken));
    let mut left: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["out", "saved"]);
}

#[test]
fn bench_measures_and_draws() {
    let dir = world();
    let report =
        json(dir.path(), &["bench", "saved", "--rounds=1", "--workers=1,2", "--cold", "--svg=speed.svg"]);
    let readers: Vec<&str> =
        report["scores"].as_array().unwrap().iter().map(|score| score["reader"].as_str().unwrap()).collect();
    let count = |name: &str| readers.iter().filter(|reader| **reader == name).count();
    assert_eq!((count("plain pread"), count("shardfeed"), count("shardfeed, by itself")), (2, 2, 1));
    // Where the file system has no way past its cache, there is nothing to tell of the disk.
    assert!(matches!(count("the disk alone"), 0 | 2), "{readers:?}");
    let picture = std::fs::read_to_string(dir.path().join("speed.svg")).unwrap();
    assert!(picture.contains("plain pread") && picture.ends_with("</svg>\n"), "{picture}");
    assert!(text(&ckpt(dir.path(), &["bench", "saved", "--rounds=1", "--workers=1"])).contains("× pread"));
}

/// The most memory that a process had, in MiB, and how it ended.
fn peak_memory(command: &mut Command) -> (u64, bool) {
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let told = std::fs::read_to_string(&status).unwrap_or_default();
        let line = told.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
        peak = kibibytes.unwrap_or(0_u64).max(peak);
        if let Some(ended) = child.try_wait().unwrap() {
            return (peak >> 10, ended.success());
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn converting_a_gibibyte_takes_little_memory_and_eight_take_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let files = if std::env::var_os("SHARDFEED_LONG").is_some() { 128 } else { 16 };
    let rows = 4096_u64;
    let elements: Vec<u8> = (0..rows * 4096).flat_map(|number| (number as f32).to_le_bytes()).collect();
    let item = Item::row_major(Dtype::Float32, &[rows, 4096], &elements);
    // Each file is as large as the others, so one is made and copied.
    let mut writer = Writer::new();
    for file in 0..files {
        writer.whole("first", &format!("layers.{file}.weight"), &item);
        let place = writer.place(file, 0);
        (place.file, place.offset) = (format!("__{file}_0.distcp"), 0);
        let bytes = writer.files.remove("first").unwrap();
        std::fs::create_dir_all(dir.path().join("saved")).unwrap();
        std::fs::write(dir.path().join(format!("saved/__{file}_0.distcp")), bytes).unwrap();
    }
    writer.write(&dir.path().join("saved"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardfeed"));
    command.args(["ckpt", "convert", "saved", "out", "--file-size=400M"]).current_dir(dir.path());
    let (peak, is_done) = peak_memory(&mut command);
    assert!(is_done);
    println!("{} MiB converted, {peak} MiB of memory", files * 64);
    assert!(peak > 1 && peak < 128, "{peak} MiB");
    let output = ckpt(dir.path(), &["diff", "saved", "out"]);
    assert!(text(&output).contains(&format!("no difference: {files} the same")), "{}", text(&output));
}

/// A safetensors file of one tensor of zeros, which takes no room on the disk.
fn sparse(dir: &Path, bytes: u64) {
    use std::os::unix::fs::FileExt;
    let json = format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[0,{bytes}]}}}}");
    std::fs::create_dir(dir).unwrap();
    let file = std::fs::File::create(dir.join("model.safetensors")).unwrap();
    file.set_len(8 + json.len() as u64 + bytes).unwrap();
    file.write_all_at(&(json.len() as u64).to_le_bytes(), 0).unwrap();
    file.write_all_at(json.as_bytes(), 8).unwrap();
}

#[test]
fn bench_refuses_what_is_larger_than_memory() {
    let dir = tempfile::tempdir().unwrap();
    sparse(&dir.path().join("saved"), 4 << 40);
    let output = ckpt(dir.path(), &["bench", "saved"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("which takes 4.0 TiB, and "), "{}", text(&output));
}

#[test]
fn convert_refuses_damaged_bytes_for_those_who_ask() {
    let dir = world();
    let output = ckpt(dir.path(), &["convert", "saved", "good", "--verify"]);
    assert!(output.status.success(), "{}", text(&output));
    damage(dir.path(), "saved", "model.bias");
    let output = ckpt(dir.path(), &["convert", "saved", "out", "--verify"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let said = text(&output);
    assert!(said.contains("model.bias at byte ") && said.contains("they are damaged"), "{said}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "saved" || name == "good"), "{left:?}");
}

#[test]
fn a_conversion_that_is_stopped_leaves_nothing_behind() {
    for signal in ["-INT", "-TERM"] {
        let dir = tempfile::tempdir().unwrap();
        sparse(&dir.path().join("saved"), 64 << 30);
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardfeed"));
        command.args(["ckpt", "convert", "saved", "out"]).current_dir(dir.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let entries = || std::fs::read_dir(dir.path()).unwrap().count();
        while entries() < 2 {
            assert_eq!(child.try_wait().unwrap(), None, "it ended before it was stopped");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}");
        assert_eq!(entries(), 1, "{signal}: only what was saved is there");
    }
}

#[test]
fn convert_refuses_whatever_is_there_already() {
    let dir = world();
    std::fs::write(dir.path().join("file"), "theirs").unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    for out in ["file", "pipe", "saved"] {
        let output = ckpt(dir.path(), &["convert", "saved", out]);
        assert_eq!(output.status.code(), Some(2), "{out}: {}", text(&output));
        assert!(text(&output).contains("it is there already"), "{out}: {}", text(&output));
    }
}

#[test]
fn what_has_no_elements_or_no_files_is_told_without_numbers_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved");
    std::fs::create_dir(&saved).unwrap();
    let mut writer = Writer::new();
    writer.whole("__0_0.distcp", "empty", &Item::row_major(Dtype::Float32, &[0], &[]));
    writer.write(&saved);
    let said = text(&ckpt(dir.path(), &["bench", "saved", "--rounds=1", "--workers=1"]));
    assert!(said.contains("plain pread") && !said.contains("NaN"), "{said}");
    std::fs::remove_file(saved.join("__0_0.distcp")).unwrap();
    let said = text(&ckpt(dir.path(), &["verify", "saved"]));
    assert!(said.contains("checksums  none were compared"), "{said}");
}

/// Runs the program as somebody to whom `path` is denied. To root nothing is: somebody else looks then, with a program that lies where
/// everybody may go.
fn ckpt_denied(dir: &Path, path: &Path, args: &[&str]) -> Output {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let allow = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    allow(dir, 0o755);
    allow(path, 0o000);
    let program = dir.join("shardfeed");
    std::fs::copy(env!("CARGO_BIN_EXE_shardfeed"), &program).unwrap();
    let mut command = Command::new(&program);
    command.arg("ckpt").args(args).current_dir(dir);
    if std::fs::File::open(path).is_ok() {
        command.uid(65_534).gid(65_534);
    }
    let output = command.output().unwrap();
    allow(path, 0o755);
    output
}

#[test]
fn verify_names_a_file_that_may_not_be_read() {
    let dir = world();
    let path = dir.path().join("saved/__0_0.distcp");
    let output = ckpt_denied(dir.path(), &path, &["verify", "saved", "--json"]);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    let problems = report["problems"].as_array().unwrap();
    assert!(!problems.is_empty() && !output.status.success(), "{report:#}");
    for problem in problems {
        assert_eq!(problem["kind"], "unreadable", "{problem:#}");
        assert!(problem["reason"].as_str().unwrap().contains("ermission denied"), "{problem:#}");
        assert!(problem["path"].as_str().unwrap().ends_with("__0_0.distcp"), "{problem:#}");
    }
}

#[test]
fn verify_mentions_a_folder_that_may_not_be_listed_and_goes_on() {
    let dir = world();
    let folder = dir.path().join("saved/lost+found");
    std::fs::create_dir(&folder).unwrap();
    let output = ckpt_denied(dir.path(), &folder, &["verify", "saved"]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("folders    saved/lost+found may not be listed"), "{said}");
    assert!(said.ends_with("nothing is wrong\n"), "{said}");
    let output = ckpt_denied(dir.path(), &folder, &["verify", "saved", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["folders_not_listed"][0], "saved/lost+found");
}
