//! `cargo-deny`: the machine's own where there is one, else a fixed version under `target/tools`.

use std::path::{Path, PathBuf};

use crate::command::Command;
use crate::failure::Failure;

/// The version that is installed where cargo-deny is missing. `deny.toml` is written for it.
const VERSION: &str = "0.20.2";

/// Where it is installed, from the repository's root.
const TOOLS: &str = "target/tools";

/// cargo-deny, ready for its arguments.
pub(crate) fn ready(root: &Path) -> Result<Command, Failure> {
    let own = Command::cargo(&["deny"]);
    if let Some(version) = own.clone().with(&["--version"]).probe(root) {
        println!("using this machine's {}", version.trim());
        return Ok(own);
    }
    let program: PathBuf =
        [TOOLS, "bin", &format!("cargo-deny{}", std::env::consts::EXE_SUFFIX)].iter().collect();
    let kept = Command::inside(root, &program);
    let kept_version = kept.clone().with(&["--version"]).probe(root);
    if !kept_version.is_some_and(|printed| is_version(&printed, VERSION)) {
        println!("cargo-deny is not here: installing {VERSION} into {TOOLS}, once");
        install().stream(root)?;
    }
    Ok(kept)
}

/// The installation. Its own release profile optimises for speed at run time at a great cost in build
/// time; a check that runs for a second wants the opposite.
fn install() -> Command {
    Command::cargo(&["install", "cargo-deny", "--version", VERSION, "--locked", "--force", "--root", TOOLS])
        .set("CARGO_PROFILE_RELEASE_LTO", "off")
        .set("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .set("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
}

/// Whether what `--version` printed is this version.
fn is_version(printed: &str, version: &str) -> bool {
    printed.split_whitespace().nth(1) == Some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fixed_version_is_kept() {
        assert!(is_version("cargo-deny 0.20.2\n", "0.20.2"));
        assert!(!is_version("cargo-deny 0.20.20\n", "0.20.2"));
        assert!(!is_version("cargo-deny 0.19.0\n", "0.20.2"));
        assert!(!is_version("", "0.20.2"));
    }

    #[test]
    fn the_installation_names_its_version_and_its_place() {
        let shown = install().to_string();
        assert!(shown.contains("install cargo-deny --version 0.20.2 --locked"));
        assert!(shown.ends_with("--root target/tools"));
    }
}
