//! The command line as people and programs use it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use shardfeed::sample::{SampleData, WriteOptions, write_sample};

fn shardfeed(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shardfeed")).args(args).current_dir(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a command that must succeed.
fn succeed(dir: &Path, args: &[&str]) -> String {
    let output = shardfeed(dir, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Exit code and message of a command that must fail.
fn fail(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = shardfeed(dir, args);
    assert!(!output.status.success(), "{args:?}");
    (output.status.code().unwrap(), text(&output.stderr))
}

fn lines_of(json: &str) -> Vec<Value> {
    json.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn world() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let options = WriteOptions { rows_per_group: 20, ..WriteOptions::default() };
    let sample = SampleData { files: 3, rows_per_file: 100, row_tokens_max: 60, seed: 5, options };
    write_sample(&dir.path().join("data"), &sample).unwrap();
    dir
}

const STREAM: [&str; 7] =
    ["data", "stream", "data", "--seq-len=32", "--global-batch=8", "--seed=3", "--json"];

fn stream<'a>(more: &[&'a str]) -> Vec<&'a str> {
    STREAM.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn the_demo_holds_every_promise_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let table = succeed(dir.path(), &["demo"]);
    assert!(table.contains("All 14 promises hold.") && !table.contains('✗'), "{table}");
    let json: Value = serde_json::from_str(&succeed(dir.path(), &["demo", "--json"])).unwrap();
    assert_eq!((json["failed"].as_u64(), json["checks"].as_array().unwrap().len()), (Some(0), 14));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_commands_of_the_readme_run_as_they_stand() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let commands: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("$ shardfeed ")).collect();
    assert_eq!(commands.len(), 10);
    // As a shell would: what is quoted is one word here, too.
    let words =
        |line: &&str| line.split(' ').map(|word| word.trim_matches('\'').to_owned()).collect::<Vec<_>>();
    let outputs: Vec<String> = commands
        .iter()
        .map(|line| succeed(dir.path(), &words(line).iter().map(String::as_str).collect::<Vec<_>>()))
        .collect();
    assert!(outputs[1].contains("tokens       908,101"), "{}", outputs[1]);
    assert!(outputs[2].contains("step       0") && outputs[2].contains("saved epoch 0, position 72"));
    assert!(outputs[3].contains("rank 1 of 5") && outputs[3].contains("step       3"), "{}", outputs[3]);
    assert!(outputs[4].contains("part-0000"), "{}", outputs[4]);
    assert!(outputs[5].contains("world size") && dir.path().join("try/plan.svg").exists(), "{}", outputs[5]);
    assert!(
        outputs[6].contains("everything is as it was when its checksums were recorded"),
        "{}",
        outputs[6]
    );
    assert!(
        outputs[7].contains("tensors   7 of 80 elements") && outputs[8].contains("nothing is wrong"),
        "{}",
        outputs[8]
    );
    assert!(
        outputs[9].contains("5 tensors") && dir.path().join("try/model/model.safetensors").exists(),
        "{}",
        outputs[9]
    );
}

#[test]
fn stopping_by_ctrl_c_and_continuing_shows_every_step_once() {
    let dir = world();
    // So many steps that a pipe does not hold their lines: the stream cannot end before it is stopped.
    let args = ["data", "stream", "data", "--seq-len=4", "--global-batch=2", "--json", "--state=s.json"];
    let whole = lines_of(&succeed(dir.path(), &args[..6]));
    assert!(whole.len() > 1000);
    let mut child = Command::new(env!("CARGO_BIN_EXE_shardfeed"))
        .args(args)
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = vec![lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()];
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    seen.extend(lines.map(Result::unwrap));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(seen.len() < whole.len());
    let rest = succeed(dir.path(), &args);
    assert_eq!(lines_of(&(seen.join("\n") + "\n" + &rest)), whole);
}

#[test]
fn a_few_steps_at_a_time_and_at_changing_world_sizes_add_up_to_the_whole() {
    let dir = world();
    let whole = lines_of(&succeed(dir.path(), &stream(&[])));
    let digest = |line: &Value| u64::from_str_radix(line["digest"].as_str().unwrap(), 16).unwrap();
    let mut steps = Vec::new();
    let mut world_size = 1;
    while steps.len() < whole.len() {
        let mut sums: Vec<u64> = Vec::new();
        for rank in 0..world_size {
            std::fs::copy(dir.path().join("s.json"), dir.path().join("r.json")).ok();
            let (rank, size) = (format!("--rank={rank}"), format!("--world-size={world_size}"));
            let lines =
                lines_of(&succeed(dir.path(), &stream(&["--state=r.json", "--steps=5", &rank, &size])));
            sums.resize(lines.len(), 0);
            sums.iter_mut().zip(&lines).for_each(|(sum, line)| *sum = sum.wrapping_add(digest(line)));
        }
        std::fs::rename(dir.path().join("r.json"), dir.path().join("s.json")).unwrap();
        steps.extend(sums);
        world_size = world_size % 8 + 1;
    }
    assert_eq!(steps, whole.iter().map(digest).collect::<Vec<_>>());
}

#[test]
fn skipped_steps_are_left_out_and_remembered() {
    let dir = world();
    let whole = lines_of(&succeed(dir.path(), &stream(&[])));
    let before = succeed(dir.path(), &stream(&["--skip=2..4", "--skip=6..7", "--steps=3", "--state=s.json"]));
    let after = succeed(dir.path(), &stream(&["--state=s.json"]));
    let expected: Vec<Value> =
        whole.into_iter().filter(|line| ![2, 3, 6].contains(&line["step"].as_u64().unwrap())).collect();
    assert_eq!(lines_of(&(before + &after)), expected);
}

#[test]
fn scan_counts_and_remembers() {
    let dir = world();
    let scan = |more: &[&str]| -> Value {
        let args: Vec<&str> = ["data", "scan", "data", "--json"].iter().chain(more).copied().collect();
        serde_json::from_str(&succeed(dir.path(), &args)).unwrap()
    };
    let first = scan(&[]);
    assert_eq!(
        (first["files"].as_u64(), first["files_read"].as_u64(), first["rows"].as_u64()),
        (Some(3), Some(3), Some(300))
    );
    let second = scan(&["--files", "--pad=16"]);
    assert_eq!(
        (second["files_cached"].as_u64(), second["fingerprint"].clone()),
        (Some(3), first["fingerprint"].clone())
    );
    assert_eq!(second["file_list"].as_array().unwrap().len(), 3);
    assert!(second["sequences"].as_u64().unwrap() > 300);
    let by_glob = shardfeed(dir.path(), &["data", "scan", "data/*.parquet", "--no-cache", "--json"]);
    let by_glob: Value = serde_json::from_slice(&by_glob.stdout).unwrap();
    assert_eq!(by_glob["fingerprint"], first["fingerprint"]);
    let table = succeed(dir.path(), &["data", "scan", "data", "--files"]);
    assert!(
        table.contains("3 unchanged since the last scan") && table.contains("part-00002.parquet"),
        "{table}"
    );
}

#[test]
fn scan_records_checksums_which_later_commands_use() {
    let dir = world();
    let scan = |more: &[&str]| {
        let args: Vec<&str> = ["data", "scan", "data"].iter().chain(more).copied().collect();
        succeed(dir.path(), &args)
    };
    let json =
        |more: &[&str]| -> Value { serde_json::from_str(&scan(&[&["--json"], more].concat())).unwrap() };
    assert!(scan(&[]).contains("checksums    none recorded; --checksum does it"));
    let plain = json(&[]);
    let row_groups = plain["row_groups"].as_u64();
    assert_eq!(plain["row_groups_with_checksums"], 0);
    let recorded = json(&["--checksum"]);
    assert_eq!(recorded["row_groups_with_checksums"].as_u64(), row_groups);
    assert_eq!(recorded["row_groups_recorded"].as_u64(), row_groups);
    assert_eq!(recorded["fingerprint"], plain["fingerprint"]);
    let again = json(&["--checksum"]);
    assert_eq!((again["row_groups_recorded"].as_u64(), &again["cache_written"]), (Some(0), &Value::Null));
    assert!(scan(&[]).contains("checksums    of all row groups"));
    let verified = succeed(dir.path(), &["data", "verify", "data"]);
    assert!(verified.contains("compared in all row groups"), "{verified}");
    assert!(verified.contains("as it was when its checksums were recorded"), "{verified}");
    // One bit of a dictionary, behind the back of the file's time.
    let path = dir.path().join("data/part-00001.parquet");
    let time = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[60] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let (code, message) = fail(dir.path(), &stream(&[]));
    assert!(
        code == 3
            && ["part-00001.parquet", "row group 0", "dictionary page"]
                .iter()
                .all(|part| message.contains(part)),
        "{code}: {message}"
    );
    let output = shardfeed(dir.path(), &["data", "verify", "data", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), report["damages"].as_array().unwrap().len()), (Some(1), 1));
    assert_eq!(report["row_groups_with_checksums"].as_u64(), row_groups);
    let help = scan(&["--help"]);
    assert!(help.contains("--checksum") && help.contains("data verify"), "{help}");
    let (code, message) = fail(dir.path(), &["data", "scan", "data", "--checksum", "--no-cache"]);
    assert!(code == 2 && message.contains("--no-cache"), "{code}: {message}");
}

#[test]
fn explain_names_every_sequence_of_a_step() {
    let dir = world();
    let args = ["data", "explain", "data", "--seq-len=32", "--global-batch=8", "--seed=3", "--world-size=3"];
    let step = |more: &[&str]| succeed(dir.path(), &args.iter().chain(more).copied().collect::<Vec<_>>());
    let json: Value = serde_json::from_str(&step(&["--step=4", "--json"])).unwrap();
    let sequences = json["sequences"].as_array().unwrap();
    assert_eq!(sequences.len(), 8);
    let tokens: u64 = sequences
        .iter()
        .flat_map(|sequence| sequence["parts"].as_array().unwrap())
        .map(|part| part["tokens"][1].as_u64().unwrap() - part["tokens"][0].as_u64().unwrap())
        .sum();
    assert_eq!(tokens, 8 * 32);
    let one_rank = step(&["--step=4", "--only-rank=2"]);
    assert_eq!(one_rank.lines().filter(|line| line.starts_with('2')).count(), 2, "{one_rank}");
}

#[test]
fn exit_codes_and_messages_say_what_is_wrong() {
    let dir = world();
    let (code, message) = fail(dir.path(), &["data", "scan", "nowhere"]);
    assert!(code == 3 && message.contains("nowhere"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &stream(&["--rank=5", "--world-size=2"]));
    assert!(code == 2 && message.contains("rank 5"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &stream(&["--packing=zip"]));
    assert!(code == 2 && message.contains("concat"), "{code}: {message}");
    for threads in ["--threads=0", "--threads=200000", "--threads=18446744073709551615"] {
        let (code, message) = fail(dir.path(), &stream(&[threads]));
        assert!(code == 2 && message.contains("1 to 1024"), "{code}: {message}");
    }
    let (code, message) = fail(dir.path(), &["data", "stream", "data", "--seq-len=4294967295"]);
    assert!(code == 2 && message.contains("memory budget"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &["data", "explain", "data", "--step=100000"]);
    assert!(code == 2 && message.contains("step 100000"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &stream(&["--memory-budget=1K"]));
    assert!(code == 2 && message.contains("need at least"), "{code}: {message}");
    std::fs::write(dir.path().join("s.json"), "{}").unwrap();
    let (code, message) = fail(dir.path(), &stream(&["--state=s.json"]));
    assert!(code == 4 && message.contains("s.json"), "{code}: {message}");
    std::fs::write(dir.path().join("data/part-00001.parquet"), "garbage").unwrap();
    let (code, message) = fail(dir.path(), &stream(&[]));
    assert!(code == 3 && message.contains("part-00001.parquet"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &["data", "explain", "data", "--step"]);
    assert!(code == 2 && message.contains("--step"), "{code}: {message}");
}

#[test]
fn a_state_that_cannot_be_written_is_an_error_not_a_silence() {
    let dir = world();
    let (code, message) = fail(dir.path(), &stream(&["--steps=1", "--state=/proc/shardfeed/s.json"]));
    assert!(code == 3 && message.contains("write the state"), "{code}: {message}");
}

#[test]
fn a_state_that_cannot_be_read_is_no_reason_to_start_over() {
    let dir = world();
    std::os::unix::fs::symlink("nowhere", dir.path().join("link.json")).unwrap();
    std::fs::create_dir(dir.path().join("dir.json")).unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for state in ["--state=link.json", "--state=dir.json", "--state=file/s.json"] {
        let (code, message) = fail(dir.path(), &stream(&["--steps=1", state]));
        assert!(code == 3 && message.contains("read the state"), "{code}: {message}");
    }
}

#[test]
fn the_same_command_continues_and_a_state_brings_its_settings() {
    let dir = world();
    let whole = lines_of(&succeed(dir.path(), &stream(&[])));
    let again = stream(&["--skip=1..3", "--epoch=0", "--steps=4", "--state=s.json"]);
    let first = lines_of(&succeed(dir.path(), &again));
    let second = lines_of(&succeed(dir.path(), &again));
    assert_eq!([first, second].concat(), [&whole[..1], &whole[3..10]].concat());
    // Nothing but the data and the state: sequence length, global batch and seed are the state's.
    let third =
        lines_of(&succeed(dir.path(), &["data", "stream", "data", "--json", "--state=s.json", "--steps=2"]));
    assert_eq!(third, whole[10..12]);
    let (code, message) = fail(dir.path(), &stream(&["--epoch=5", "--state=s.json"]));
    assert!(code == 4 && message.contains("epoch 5"), "{code}: {message}");
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let dir = world();
    for command in [
        "data stream data --seq-len 4 --global-batch 2",
        "data scan data --files",
        "data explain data --step 0",
    ] {
        let script = format!("{} {command} | true; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_shardfeed"));
        let output = Command::new("bash").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
        // The short ones may be done before anybody looks.
        assert!(matches!(output.status.code(), Some(0 | 141)), "{command}: {output:?}");
        assert!(!text(&output.stderr).contains("panicked"), "{output:?}");
    }
}

#[test]
fn padded_tokens_are_not_counted() {
    let dir = world();
    let args = ["data", "stream", "data", "--packing=pad", "--seq-len=500", "--global-batch=8", "--json"];
    let tokens: u64 =
        lines_of(&succeed(dir.path(), &args)).iter().map(|line| line["tokens"].as_u64().unwrap()).sum();
    let scan: Value =
        serde_json::from_str(&succeed(dir.path(), &["data", "scan", "data", "--json"])).unwrap();
    assert_eq!(Some(tokens), scan["tokens"].as_u64());
}
