//! A virtual environment with torch in it, made once under `target`, for the tests of the Python package; and what torch writes, for our
//! reader to be compared with: the checkpoints that `testdata/checkpoints/matrix.py` makes there.

use std::path::{Path, PathBuf};

use crate::command::Command;
use crate::failure::Failure;

/// Where the environment is, from the repository's root. Those who have torch elsewhere can put a link there.
const ENVIRONMENT: &str = "target/torch/venv";

/// Its Python.
pub(crate) const PYTHON: &str = "target/torch/venv/bin/python";

/// Where the checkpoints are, from the root.
pub(crate) const MATRIX: &str = "target/torch/matrix";

/// The same from the folder of a crate, where its tests run.
pub(crate) const MATRIX_FROM_A_CRATE: &str = "../../target/torch/matrix";

/// The scripts and what they need.
const SCRIPTS: &str = "testdata/checkpoints";

/// What goes into the environment.
const NEEDED: [&str; 2] = ["testdata/checkpoints/requirements.txt", "python/requirements.txt"];

/// Pythons that this torch and the package run on, the likeliest first.
const PYTHONS: [&str; 4] = ["python3", "python3.12", "python3.13", "python3.11"];

/// Makes sure that the environment is there, with everything in it; its Python.
pub(crate) fn environment(root: &Path) -> Result<Command, Failure> {
    let needed = NEEDED.iter().map(|name| read(&root.join(name))).collect::<Result<String, _>>()?;
    let python = Command::inside(root, Path::new(PYTHON));
    let noted = root.join(ENVIRONMENT).join("requirements.txt");
    if std::fs::read_to_string(&noted).is_ok_and(|noted| noted == needed) {
        println!("torch is in {ENVIRONMENT}");
    } else {
        println!("torch is not in {ENVIRONMENT}: installing it, once (some 5 GB)");
        install(root, &python)?;
        write(&noted, &needed)?;
    }
    Ok(python)
}

/// Makes sure that the checkpoints are there, as today's scripts make them.
pub(crate) fn ready(root: &Path) -> Result<(), Failure> {
    let python = environment(root)?;
    let scripts = scripts(root)?;
    let noted = root.join(MATRIX).join("scripts.txt");
    if std::fs::read_to_string(&noted).is_ok_and(|noted| noted == scripts) {
        println!("its checkpoints are in {MATRIX}");
        return Ok(());
    }
    if root.join(MATRIX).exists() {
        std::fs::remove_dir_all(root.join(MATRIX))
            .map_err(|error| Failure::new(format!("{MATRIX}: {error}")))?;
    }
    python.with(&[&format!("{SCRIPTS}/matrix.py"), MATRIX]).stream(root)?;
    write(&noted, &scripts)
}

/// Makes sure that what the command line converts opens with the safetensors package and is what torch reads. The program is the
/// one that the tests before this were run with.
pub(crate) fn check_conversion(root: &Path, is_long: bool) -> Result<(), Failure> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let program = format!("{target}/{}/shardfeed", if is_long { "release" } else { "debug" });
    let python = Command::inside(root, Path::new(PYTHON));
    python.with(&[&format!("{SCRIPTS}/converted.py"), &program, MATRIX]).stream(root)
}

fn install(root: &Path, python: &Command) -> Result<(), Failure> {
    // Somebody's own environment is used as it is, and never emptied.
    if root.join(ENVIRONMENT).is_symlink() {
        let has_all = python
            .clone()
            .with(&["-c", "import torch, safetensors, zstandard, pyzstd, accelerate, lightning, matplotlib, mypy, pyarrow, pyright, pytest, torchdata, transformers"])
            .probe(root)
            .is_some();
        let missing = || {
            Failure::new(format!(
                "{ENVIRONMENT} is a link to an environment without what {} name",
                NEEDED.join(" and ")
            ))
        };
        return has_all.then_some(()).ok_or_else(missing);
    }
    let can = |name: &&&str| {
        Command::program(name, &["-c", "import venv, ensurepip, sys; sys.exit(sys.version_info < (3, 11))"])
            .probe(root)
            .is_some()
    };
    let Some(base) = PYTHONS.iter().find(can) else {
        return Err(Failure::new("no Python from 3.11 on that can make virtual environments; on Debian: apt-get install python3-venv".to_owned()));
    };
    Command::program(base, &["-m", "venv", "--clear", ENVIRONMENT]).stream(root)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    python.clone().with(&pip).with(&NEEDED.map(|name| ["-r", name]).concat()).stream(root)
}

/// All scripts, one after another.
fn scripts(root: &Path) -> Result<String, Failure> {
    let folder = root.join(SCRIPTS);
    let listed = std::fs::read_dir(&folder).map_err(|error| Failure::new(format!("{SCRIPTS}: {error}")))?;
    let mut paths: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "py"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}
