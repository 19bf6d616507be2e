//! The checks, in the order they run.

use std::path::{Path, PathBuf};

use crate::command::Command;
use crate::deny;
use crate::failure::Failure;
use crate::files;
use crate::python;
use crate::source;
use crate::system;
use crate::torch;
use crate::tree;

/// One check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// What it makes sure of, in a line.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Setting) -> Result<Outcome, Failure>,
}

/// Where the steps run, and how much.
pub(crate) struct Setting {
    pub(crate) root: PathBuf,
    pub(crate) long: bool,
}

/// How a step that did not fail ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Held,
    Skipped(String),
}

/// All of them.
pub(crate) const ALL: [Step; 14] = [
    Step { name: "tools", about: "etcd and protoc are here, or are installed", run: tools },
    Step { name: "format", about: "every file is as rustfmt leaves it", run: format },
    Step { name: "clippy", about: "no lint has anything to say", run: clippy },
    Step { name: "tests", about: "unit and integration tests", run: tests },
    Step { name: "torch", about: "what torch saves is read as torch reads it", run: torch },
    Step { name: "python", about: "the Python package builds, its types and its tests hold", run: python },
    Step { name: "doctests", about: "the examples in the documentation run", run: doctests },
    Step { name: "benches", about: "each benchmark still runs, once and unmeasured", run: benches },
    Step { name: "examples", about: "every example runs, and what it promises holds", run: examples },
    Step { name: "fuzz", about: "the fuzz targets fit the library", run: fuzz },
    Step { name: "rustdoc", about: "the documentation builds without a warning", run: rustdoc },
    Step { name: "dependencies", about: "no crate depends on what it must not", run: dependencies },
    Step {
        name: "sources",
        about: "the plan is pure, and every crate root refuses unsafe code",
        run: sources,
    },
    Step { name: "deny", about: "licences, bans and origins of the dependencies", run: licences_and_bans },
];

/// The crate that decides and does nothing else.
const PLAN: &str = "shardfeed-plan";

/// The crate that acts, for those who write a trainer in Rust.
const LIBRARY: &str = "shardfeed";

/// The platform whose dependencies of the plan are judged, so that every machine gives one verdict.
/// (On some others a hash function asks libc which instructions the processor has.)
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

fn tools(setting: &Setting) -> Result<Outcome, Failure> {
    system::ready(&setting.root)?;
    Ok(Outcome::Held)
}

fn format(setting: &Setting) -> Result<Outcome, Failure> {
    held(setting, &Command::cargo(&["fmt", "--all", "--check"]))
}

fn clippy(setting: &Setting) -> Result<Outcome, Failure> {
    let lints =
        |what: &[&str]| Command::cargo(&["clippy"]).with(what).with(&["--locked", "--", "-D", "warnings"]);
    held(setting, &lints(&["--workspace", "--all-targets", "--all-features"]))?;
    // As those build it who have no protoc.
    held(
        setting,
        &lints(&["--package", LIBRARY, "--package", "shardfeed-cli", "--package", "shardfeed-python"]),
    )
}

fn tests(setting: &Setting) -> Result<Outcome, Failure> {
    let nextest = Command::cargo(&["nextest", "--version"]).probe(&setting.root).is_some();
    held(setting, &test_command(nextest, setting.long))
}

fn torch(setting: &Setting) -> Result<Outcome, Failure> {
    torch::ready(&setting.root, setting.long)?;
    // As the tests were built: with other features everything would be built again.
    let command =
        Command::cargo(&["test", "--workspace", "--test", "checkpoint", "--all-features", "--locked"])
            .set("SHARDFEED_MATRIX", torch::MATRIX_FROM_A_CRATE);
    let command = if setting.long { command.with(&["--release"]) } else { command };
    held(setting, &command.with(&["--", "--ignored", "--nocapture"]))?;
    torch::check_conversion(&setting.root, setting.long)?;
    Ok(Outcome::Held)
}

fn python(setting: &Setting) -> Result<Outcome, Failure> {
    let left_out = python::check(&setting.root)?;
    Ok(left_out.map_or(Outcome::Held, |what| Outcome::Skipped(what.to_owned())))
}

fn examples(setting: &Setting) -> Result<Outcome, Failure> {
    // With the features of the tests, by which they are built already.
    held(setting, &Command::cargo(&["build", "--workspace", "--examples", "--all-features", "--locked"]))?;
    let target = files::target();
    for name in files::examples(&setting.root, LIBRARY)? {
        let program = format!("{target}/debug/examples/{name}");
        held(setting, &Command::inside(&setting.root, Path::new(&program)))?;
    }
    let manifest = "examples/into_candle/Cargo.toml";
    let target = "target/examples";
    held(setting, &Command::cargo(&["run", "--locked", "--manifest-path", manifest, "--target-dir", target]))
}

fn fuzz(setting: &Setting) -> Result<Outcome, Failure> {
    // Nothing is linked, so that it takes no fuzzer: any path stands for one, and spares compiling it.
    let manifest =
        ["check", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target/examples"];
    held(setting, &Command::cargo(&manifest).set("CUSTOM_LIBFUZZER_PATH", "target/none.a"))
}

fn doctests(setting: &Setting) -> Result<Outcome, Failure> {
    let command = Command::cargo(&["test", "--workspace", "--doc", "--all-features", "--locked"]);
    held(setting, &with_length(command, setting.long))
}

fn benches(setting: &Setting) -> Result<Outcome, Failure> {
    for member in files::crates(&setting.root)? {
        if has_bench(&files::manifest(&setting.root, &member)?) {
            // A pattern selects bench targets alone; `--benches` would take libraries and programs along.
            return held(
                setting,
                &Command::cargo(&["bench", "--workspace", "--bench", "*", "--all-features", "--locked"])
                    .with(&["--", "--test"]),
            );
        }
    }
    Ok(Outcome::Skipped("no manifest has a [[bench]]".to_owned()))
}

fn rustdoc(setting: &Setting) -> Result<Outcome, Failure> {
    let command = Command::cargo(&["doc", "--workspace", "--no-deps", "--all-features", "--locked"]);
    held(setting, &command.set("RUSTDOCFLAGS", "-D warnings"))
}

fn dependencies(setting: &Setting) -> Result<Outcome, Failure> {
    let plan = ["--package", PLAN, "--edges", "normal", "--target", PLATFORM];
    judge_tree(setting, &plan, &[PLAN], &tree::NOT_IN_THE_PLAN)?;

    let library = ["--package", LIBRARY, "--edges", "normal", "--target", "all"];
    judge_tree(setting, &library, &[LIBRARY], &tree::NOT_IN_THE_LIBRARY)?;

    let everything = ["--workspace", "--exclude", "shardfeed-python", "--all-features", "--target", "all"];
    judge_tree(setting, &everything, &[PLAN, "xtask"], &tree::NOWHERE)?;

    let by_default = ["--workspace", "--target", "all"];
    judge_tree(setting, &by_default, &[PLAN, "xtask"], &tree::NOT_BY_DEFAULT)?;
    Ok(Outcome::Held)
}

/// Asks for a tree and refuses what it may not hold.
fn judge_tree(setting: &Setting, which: &[&str], roots: &[&str], patterns: &[&str]) -> Result<(), Failure> {
    let shape = Command::cargo(&["tree", "--locked"]).with(which);
    let command = shape.clone().with(&["--prefix", "none"]);
    let found = tree::forbidden(&command.read(&setting.root)?, roots, patterns)
        .map_err(|complaint| Failure::new(format!("`{command}`: {complaint}")))?;
    if found.is_empty() {
        return Ok(());
    }
    let heading = format!(
        "`{command}` names what may not be there (see who brings it with `{shape} --invert <name>`):"
    );
    Err(Failure::findings(&heading, &found))
}

fn sources(setting: &Setting) -> Result<Outcome, Failure> {
    let mut looked_at = 0_usize;
    let mut findings = Vec::new();
    let members = files::crates(&setting.root)?;
    let plan = format!("crates/{PLAN}");
    if !members.iter().any(|member| member.folder == plan) {
        return Err(Failure::new(format!("{plan} is not there, and it is what this step is about")));
    }
    for member in &members {
        let sources = files::sources(&setting.root, member)?;
        looked_at += sources.len();
        findings.extend(source_findings(&member.folder, member.folder == plan, &sources));
    }
    if findings.is_empty() {
        println!("{looked_at} files of {} crates looked at", members.len());
        return Ok(Outcome::Held);
    }
    Err(Failure::findings("these files break a rule that `cargo xtask help` explains:", &findings))
}

/// What is wrong with one crate's sources, a line for each.
fn source_findings(folder: &str, pure: bool, sources: &[files::Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in sources {
        if pure {
            for found in source::forbidden_std(&file.text, &source::OUTSIDE_WORLD) {
                findings.push(format!("{folder}/src/{}:{}: uses {}", file.path, found.line, found.what));
            }
        }
        if source::is_crate_root(&file.path) && !source::refuses_unsafe(&file.text) {
            findings.push(format!("{folder}/src/{}: lacks #![deny(unsafe_code)]", file.path));
        }
    }
    if !sources.iter().any(|file| source::is_crate_root(&file.path)) {
        findings.push(format!("{folder}/src: holds neither lib.rs nor main.rs nor a program under bin"));
    }
    findings
}

fn licences_and_bans(setting: &Setting) -> Result<Outcome, Failure> {
    let command = deny::ready(&setting.root)?.with(&["--locked", "check", "bans", "licenses", "sources"]);
    held(setting, &command)
}

/// Runs a command that is the whole of a step.
fn held(setting: &Setting, command: &Command) -> Result<Outcome, Failure> {
    command.stream(&setting.root)?;
    Ok(Outcome::Held)
}

/// The command for the tests. A long run is optimised and tells the tests so.
fn test_command(nextest: bool, long: bool) -> Command {
    let command = if nextest {
        Command::cargo(&["nextest", "run", "--workspace", "--all-features", "--locked"])
    } else {
        Command::cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--all-features", "--locked"])
    };
    let command = if long && nextest { command.with(&["--profile", "long"]) } else { command };
    with_length(if long { command.with(&["--release"]) } else { command }, long)
}

fn with_length(command: Command, long: bool) -> Command {
    if long { command.set("SHARDFEED_LONG", "1") } else { command }
}

/// Whether a manifest declares a benchmark.
fn has_bench(manifest: &str) -> bool {
    manifest.lines().any(|line| line.split('#').next().is_some_and(|code| code.trim() == "[[bench]]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_run_under_nextest_or_under_cargo_test() {
        assert_eq!(
            test_command(true, false).to_string(),
            "cargo nextest run --workspace --all-features --locked"
        );
        assert_eq!(
            test_command(false, false).to_string(),
            "cargo test --workspace --lib --bins --tests --all-features --locked"
        );
    }

    #[test]
    fn a_long_run_is_optimised_and_says_so() {
        assert_eq!(
            test_command(true, true).to_string(),
            "SHARDFEED_LONG=1 cargo nextest run --workspace --all-features --locked --profile long --release"
        );
        assert_eq!(
            test_command(false, true).to_string(),
            "SHARDFEED_LONG=1 cargo test --workspace --lib --bins --tests --all-features --locked --release"
        );
    }

    #[test]
    fn a_bench_is_seen_in_a_manifest() {
        assert!(has_bench("[package]\nname = \"x\"\n\n[[bench]] # one\nname = \"y\"\n"));
        assert!(!has_bench("[package]\n# [[bench]]\n[lib]\nbench = false\n"));
    }

    #[test]
    fn sources_are_judged_by_where_they_are() {
        let file = |path: &str, text: &str| files::Source { path: path.to_owned(), text: text.to_owned() };
        let sources = [
            file("lib.rs", "#![deny(unsafe_code)]\nmod read;\n"),
            file("read.rs", "\nuse std::fs;\n"),
            file("bin/tool.rs", "fn main() {}\n"),
        ];
        let unsafe_root = "crates/x/src/bin/tool.rs: lacks #![deny(unsafe_code)]";
        let reads_files = "crates/x/src/read.rs:2: uses std::fs";
        assert_eq!(source_findings("crates/x", false, &sources), [unsafe_root]);
        assert_eq!(source_findings("crates/x", true, &sources), [reads_files, unsafe_root]);
        assert_eq!(source_findings("crates/x", false, &[file("a.rs", "")]).len(), 1);
    }

    #[test]
    fn the_steps_have_names_of_their_own() {
        let mut names: Vec<&str> = ALL.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
