//! Rules over what `cargo tree --prefix none` prints, as pure functions of its text.

/// What `shardfeed-plan` may not depend on: files, sockets, clocks, threads, randomness, and the crates
/// that bring them. A `*` at the end stands for any ending.
pub(crate) const NOT_IN_THE_PLAN: [&str; 25] = [
    "arrow",
    "arrow-*",
    "chrono",
    "crossbeam",
    "crossbeam-*",
    "getrandom",
    "glob",
    "hyper",
    "libc",
    "mio",
    "object_store",
    "parquet",
    "prost",
    "pyo3",
    "rand",
    "rayon",
    "reqwest",
    "rustix",
    "tempfile",
    "time",
    "tokio",
    "tokio-*",
    "tonic",
    "tonic-*",
    "walkdir",
];

/// What the library may not depend on: it decodes straight to tokens. The command line measures itself beside Arrow.
pub(crate) const NOT_IN_THE_LIBRARY: [&str; 2] = ["arrow", "arrow-*"];

/// What no crate of the workspace but Python's own module may depend on, not even to build or to test, with any feature: Python, a
/// protobuf compiler that is built along, and the system's OpenSSL. (For that module see `deny.toml`.)
pub(crate) const NOWHERE: [&str; 6] =
    ["openssl-sys", "protobuf-codegen", "protobuf-src", "protoc-*", "pyo3", "pyo3-*"];

/// What comes with a feature alone, since it needs a protobuf compiler on the machine.
pub(crate) const NOT_BY_DEFAULT: [&str; 3] = ["etcd-client", "prost-build", "tonic"];

/// The forbidden packages in a tree, as `name version`, sorted, each once.
///
/// A tree that cannot be read, or that lacks one of the packages it must start from, is an error: an empty
/// text would otherwise keep every rule.
pub(crate) fn forbidden(text: &str, roots: &[&str], patterns: &[&str]) -> Result<Vec<String>, String> {
    let packages = packages(text)?;
    for root in roots {
        if !packages.iter().any(|(name, _)| name == root) {
            return Err(format!("cargo tree did not print `{root}`, from where the tree should start"));
        }
    }
    let mut found: Vec<String> = packages
        .iter()
        .filter(|(name, _)| patterns.iter().any(|pattern| matches(pattern, name)))
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// The names and versions that the tree prints, in its order, as often as it prints them.
fn packages(text: &str) -> Result<Vec<(&str, &str)>, String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !is_section(line))
        .map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let version = words.next().and_then(|word| word.strip_prefix('v'));
            match version {
                Some(version) if version.starts_with(|c: char| c.is_ascii_digit()) => Ok((name, version)),
                _ => Err(format!("cargo tree printed a line that names no package: {line:?}")),
            }
        })
        .collect()
}

/// Whether the line is a heading such as `[dev-dependencies]`.
fn is_section(line: &str) -> bool {
    line.starts_with('[') && line.ends_with(']')
}

/// Whether a name is the pattern or, where that ends in `*`, starts with the rest of it.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: &str = "\
shardfeed-plan v0.1.0 (/somewhere/crates/shardfeed-plan)
serde v1.0.228
serde_core v1.0.228
serde_derive v1.0.228 (proc-macro)
syn v2.0.110
serde_core v1.0.228 (*)
";

    fn in_the_plan(text: &str) -> Result<Vec<String>, String> {
        forbidden(text, &["shardfeed-plan"], &NOT_IN_THE_PLAN)
    }

    #[test]
    fn a_clean_tree_holds() {
        assert_eq!(in_the_plan(CLEAN), Ok(vec![]));
    }

    #[test]
    fn a_forbidden_package_is_found_once_by_name_and_version() {
        let text = format!("{CLEAN}libc v0.2.177\ngetrandom v0.3.4\nlibc v0.2.177 (*)\n");
        assert_eq!(in_the_plan(&text), Ok(vec!["getrandom 0.3.4".to_owned(), "libc 0.2.177".to_owned()]));
    }

    #[test]
    fn every_name_on_the_lists_is_refused() {
        for pattern in NOT_IN_THE_PLAN {
            let name = pattern.replace('*', "anything");
            assert_eq!(in_the_plan(&format!("{CLEAN}{name} v1.2.3\n")), Ok(vec![format!("{name} 1.2.3")]));
        }
        for list in [&NOWHERE[..], &NOT_IN_THE_LIBRARY, &NOT_BY_DEFAULT] {
            for pattern in list {
                let name = pattern.replace('*', "anything");
                let found = forbidden(&format!("{CLEAN}{name} v1.2.3\n"), &["shardfeed-plan"], list);
                assert_eq!(found, Ok(vec![format!("{name} 1.2.3")]));
            }
        }
    }

    #[test]
    fn a_name_that_only_resembles_is_left_alone() {
        let text =
            format!("{CLEAN}timeline v1.0.0\nmy-tokio v1.0.0\nlibc-print v1.0.0\nprost-types v1.0.0\n");
        assert_eq!(in_the_plan(&text), Ok(vec![]));
    }

    #[test]
    fn headings_and_blank_lines_between_trees_are_passed_over() {
        let text = format!("{CLEAN}\nshardfeed v0.1.0 (/somewhere)\n[dev-dependencies]\npyo3 v0.27.0\n");
        let found = forbidden(&text, &["shardfeed-plan", "shardfeed"], &NOWHERE);
        assert_eq!(found, Ok(vec!["pyo3 0.27.0".to_owned()]));
    }

    #[test]
    fn a_tree_that_says_nothing_is_no_proof() {
        assert!(in_the_plan("").is_err_and(|text| text.contains("`shardfeed-plan`")));
        assert!(in_the_plan("serde v1.0.228\n").is_err());
        assert!(in_the_plan(&format!("{CLEAN}warning: something else\n")).is_err());
        assert!(in_the_plan(&format!("{CLEAN}├── libc v0.2.177\n")).is_err());
    }
}
