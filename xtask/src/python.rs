//! The Python package: built by pip, as users build it, and tested in the environment that has torch in it.

use std::path::Path;

use crate::command::Command;
use crate::failure::Failure;
use crate::{files, torch};

/// Where pip puts it, from the root: not into the environment, which may be somebody's own.
const PACKAGE: &str = "target/torch/package";

/// As the tests are built, so that less is built again.
const BUILD: &str = "--config-settings=build-args=--profile=dev --features=etcd";

/// What took longest, and what was left out and why.
const SHOWN: [&str; 2] = ["--durations=10", "-rs"];

/// What is tested with the oldest torch, too: where the package and torch meet.
const WITH_THE_OLDEST: [&str; 12] = [
    "python/tests/test_batch.py",
    "python/tests/test_checkpoint_api.py",
    "python/tests/test_checkpoint_arguments.py",
    "python/tests/test_checkpoint_devices.py",
    "python/tests/test_checkpoint_equality.py",
    "python/tests/test_checkpoint_errors.py",
    "python/tests/test_checkpoint_metadata.py",
    "python/tests/test_checkpoint_ranks.py",
    "python/tests/test_interrupts.py",
    "python/tests/test_memory.py",
    "python/tests/test_processes.py",
    "python/tests/test_workers.py",
];

/// What is left out where no Python for the oldest torch is there.
const WITHOUT_THE_OLDEST: &str = "the tests with the oldest torch that the package is for, which take Python 3.11 or 3.12, with venv and ensurepip";

/// Builds it, and runs everything that is said about it; what of that could not be run here.
pub(crate) fn check(root: &Path) -> Result<Option<&'static str>, Failure> {
    let python = torch::environment(root)?;
    let package = root.join(PACKAGE);
    if package.exists() {
        std::fs::remove_dir_all(&package).map_err(|error| Failure::new(format!("{PACKAGE}: {error}")))?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
    python.clone().with(&pip).with(&["--target", PACKAGE, BUILD, "."]).stream(root)?;
    let python = python.set("PYTHONPATH", PACKAGE);
    let run = |arguments: &[&str]| python.clone().with(arguments).stream(root);
    run(&["-m", "mypy", "python/shardfeed"])?;
    run(&["-m", "mypy.stubtest", "shardfeed"])?;
    run(&["-m", "pyright", "--pythonpath", torch::PYTHON])?;
    // A bench compares with the command line; with the features of the tests, by which it is built already.
    Command::cargo(&["build", "--workspace", "--all-features", "--bin", "shardfeed", "--locked"])
        .stream(root)?;
    let program = format!("{}/debug/shardfeed", files::target());
    let tests = python.clone().set("SHARDFEED_MATRIX", torch::MATRIX).set("SHARDFEED_PROGRAM", program);
    tests.with(&["-m", "pytest", "python/tests"]).with(&SHOWN).stream(root)?;
    let Some(oldest) = torch::oldest(root)? else {
        return Ok(Some(WITHOUT_THE_OLDEST));
    };
    let pytest = oldest.set("PYTHONPATH", PACKAGE).with(&["-m", "pytest", "-W", "ignore"]);
    pytest.with(&SHOWN).with(&WITH_THE_OLDEST).stream(root)?;
    Ok(None)
}
