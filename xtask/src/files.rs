//! Finding the repository, the crates in it, and their manifests and sources.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// One crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crate {
    /// Its folder from the repository's root, with forward slashes: `crates/shardfeed`.
    pub(crate) folder: String,
}

/// One file of a crate's `src`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Its path from `src`, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Where cargo puts what it builds, from the root.
pub(crate) fn target() -> String {
    std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned())
}

/// The folder above this crate's. Cargo says where this crate is; a program started without cargo looks
/// upwards from where it was started.
pub(crate) fn repository_root() -> Result<PathBuf, Failure> {
    if let Some(here) = std::env::var_os("CARGO_MANIFEST_DIR")
        && let Some(root) = Path::new(&here).parent()
        && is_root(root)
    {
        return Ok(root.to_owned());
    }
    let here = std::env::current_dir()
        .map_err(|error| Failure::new(format!("the working directory cannot be read: {error}")))?;
    here.ancestors()
        .find(|folder| is_root(folder))
        .map(Path::to_owned)
        .ok_or_else(|| Failure::new(format!("{} is not inside the Shardfeed repository", here.display())))
}

fn is_root(folder: &Path) -> bool {
    folder.join("xtask/Cargo.toml").is_file() && folder.join("Cargo.toml").is_file()
}

/// Every crate under `crates/`, sorted, and then this one.
pub(crate) fn crates(root: &Path) -> Result<Vec<Crate>, Failure> {
    let mut found: Vec<Crate> = sorted_names(&root.join("crates"))?
        .into_iter()
        .filter(|name| root.join("crates").join(name).join("Cargo.toml").is_file())
        .map(|name| Crate { folder: format!("crates/{name}") })
        .collect();
    if found.is_empty() {
        return Err(Failure::new("there is no crate under crates/, so there is nothing to check"));
    }
    found.push(Crate { folder: "xtask".to_owned() });
    Ok(found)
}

/// The text of a crate's manifest.
pub(crate) fn manifest(root: &Path, member: &Crate) -> Result<String, Failure> {
    read(&root.join(&member.folder).join("Cargo.toml"))
}

/// Every Rust file under a crate's `src`, sorted by path. None at all is a failure: a rule over no file
/// would hold without having looked.
pub(crate) fn sources(root: &Path, member: &Crate) -> Result<Vec<Source>, Failure> {
    let mut found = Vec::new();
    collect(&root.join(&member.folder).join("src"), "", &mut found)?;
    if found.is_empty() {
        return Err(Failure::new(format!("there is no Rust file under {}/src", member.folder)));
    }
    Ok(found)
}

/// The names of a crate's examples, sorted. None at all is a failure, for the same reason.
pub(crate) fn examples(root: &Path, name: &str) -> Result<Vec<String>, Failure> {
    let folder = root.join("crates").join(name).join("examples");
    let names = sorted_names(&folder)?;
    let found: Vec<String> =
        names.iter().filter_map(|name| Some(name.strip_suffix(".rs")?.to_owned())).collect();
    if found.is_empty() {
        return Err(Failure::new(format!("there is no example in {}", folder.display())));
    }
    Ok(found)
}

fn collect(folder: &Path, prefix: &str, found: &mut Vec<Source>) -> Result<(), Failure> {
    for name in sorted_names(folder)? {
        let place = folder.join(&name);
        let path = format!("{prefix}{name}");
        if place.is_dir() {
            collect(&place, &format!("{path}/"), found)?;
        } else if place.extension().is_some_and(|extension| extension == "rs") {
            found.push(Source { path, text: read(&place)? });
        }
    }
    Ok(())
}

fn sorted_names(folder: &Path) -> Result<Vec<String>, Failure> {
    let failed =
        |error: std::io::Error| Failure::new(format!("{} cannot be read: {error}", folder.display()));
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map_err(|error| Failure::new(format!("{} cannot be read: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_found_and_holds_this_file() {
        let found = repository_root()
            .and_then(|root| sources(&root, &Crate { folder: "xtask".to_owned() }))
            .map(|sources| sources.into_iter().map(|source| source.path).collect::<Vec<_>>());
        assert!(found.is_ok_and(|paths| paths.contains(&"files.rs".to_owned()) && paths.is_sorted()));
    }

    #[test]
    fn a_folder_without_sources_is_a_failure() {
        let found =
            repository_root().and_then(|root| sources(&root, &Crate { folder: "no-such".to_owned() }));
        assert!(found.is_err_and(|failure| failure.to_string().contains("no-such")));
    }
}
