//! Virtual environments with torch in them, made once under `target`, for the tests of the Python package; and what torch writes, for our
//! reader to be compared with: the checkpoints that `testdata/checkpoints/matrix.py` makes there.

use std::path::{Path, PathBuf};

use crate::command::Command;
use crate::failure::Failure;

/// An environment of Python's.
struct Environment {
    /// Where it is, from the repository's root. Those who have one elsewhere can put a link there.
    folder: &'static str,
    /// What goes into it.
    needed: &'static [&'static str],
    /// What can be imported then, and the version of torch among it.
    modules: &'static str,
    torch: &'static str,
    /// Versions of Python that it runs on: from one on, and before another.
    versions: &'static str,
}

const NEWEST: Environment = Environment {
    folder: "target/torch/venv",
    needed: &["testdata/checkpoints/requirements.txt", "python/requirements.txt"],
    modules: "torch, safetensors, zstandard, pyzstd, accelerate, lightning, matplotlib, mypy, pyarrow, pyright, pytest, torchdata, transformers",
    torch: "2.15.0",
    versions: "(3, 11) <= sys.version_info",
};

const OLDEST: Environment = Environment {
    folder: "target/torch/oldest",
    needed: &["python/requirements-oldest.txt"],
    modules: "torch, safetensors, zstandard, pyzstd, pyarrow, pytest",
    torch: "2.4.0",
    versions: "(3, 11) <= sys.version_info < (3, 13)",
};

/// The newest one's Python.
pub(crate) const PYTHON: &str = "target/torch/venv/bin/python";

/// Where the checkpoints are, from the root.
pub(crate) const MATRIX: &str = "target/torch/matrix";

/// The same from the folder of a crate, where its tests run.
pub(crate) const MATRIX_FROM_A_CRATE: &str = "../../target/torch/matrix";

/// The scripts and what they need.
const SCRIPTS: &str = "testdata/checkpoints";

/// Pythons that torch and the package may run on, the likeliest first.
const PYTHONS: [&str; 4] = ["python3", "python3.12", "python3.13", "python3.11"];

/// The Python that has the newest torch.
pub(crate) fn environment(root: &Path) -> Result<Command, Failure> {
    let python = NEWEST.ready(root)?;
    python.ok_or_else(|| {
        Failure::new(
            "no Python from 3.11 on that can make virtual environments; on Debian: apt-get install python3-venv"
                .to_owned(),
        )
    })
}

/// The Python that has the oldest torch; `None` if that runs on none of those that are here.
pub(crate) fn oldest(root: &Path) -> Result<Option<Command>, Failure> {
    OLDEST.ready(root)
}

/// Makes sure that the checkpoints are there, as today's scripts make them; for a long run also those beyond 4 GiB, which take 13 GB of memory.
pub(crate) fn ready(root: &Path, is_long: bool) -> Result<(), Failure> {
    let python = environment(root)?;
    let more: &[&str] = if is_long { &["--big"] } else { &[] };
    let scripts = scripts(root)? + &more.concat();
    let noted = root.join(MATRIX).join("scripts.txt");
    if std::fs::read_to_string(&noted).is_ok_and(|noted| noted == scripts) {
        println!("its checkpoints are in {MATRIX}");
        return Ok(());
    }
    if root.join(MATRIX).exists() {
        std::fs::remove_dir_all(root.join(MATRIX))
            .map_err(|error| Failure::new(format!("{MATRIX}: {error}")))?;
    }
    python.with(&[&format!("{SCRIPTS}/matrix.py"), MATRIX]).with(more).stream(root)?;
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

impl Environment {
    /// Makes sure that it is there, with everything in it; its Python. `None` if there is no Python for it.
    fn ready(&self, root: &Path) -> Result<Option<Command>, Failure> {
        let folder = self.folder;
        let needed = self.needed.iter().map(|name| read(&root.join(name))).collect::<Result<String, _>>()?;
        let python = Command::inside(root, &Path::new(folder).join("bin/python"));
        let noted = root.join(folder).join("requirements.txt");
        if std::fs::read_to_string(&noted).is_ok_and(|noted| noted == needed) {
            println!("torch is in {folder}");
            return Ok(Some(python));
        }
        if !self.install(root, &python)? {
            return Ok(None);
        }
        write(&noted, &needed)?;
        Ok(Some(python))
    }

    fn install(&self, root: &Path, python: &Command) -> Result<bool, Failure> {
        let folder = self.folder;
        // Somebody's own environment is used as it is, and never emptied.
        if root.join(folder).is_symlink() {
            let import = format!(
                "import {}; assert torch.__version__.split('+')[0] == '{}'",
                self.modules, self.torch
            );
            let missing = || {
                let names = self.needed.join(" and ");
                Failure::new(format!("{folder} is a link to an environment without what {names} name"))
            };
            return python.clone().with(&["-c", &import]).probe(root).map(|_| true).ok_or_else(missing);
        }
        let fits = format!("import venv, ensurepip, sys; sys.exit(not ({}))", self.versions);
        let can = |name: &&&str| Command::program(name, &["-c", &fits]).probe(root).is_some();
        let Some(base) = PYTHONS.iter().find(can) else { return Ok(false) };
        println!("torch is not in {folder}: installing it, once (some 5 GB)");
        Command::program(base, &["-m", "venv", "--clear", folder]).stream(root)?;
        let pip = python.clone().with(&["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        self.needed.iter().fold(pip, |pip, name| pip.with(&["-r", name])).stream(root)?;
        Ok(true)
    }
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
