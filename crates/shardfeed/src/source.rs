use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Where the data is: a directory (every `*.parquet` in it, not below it), a glob, or a list of files.
///
/// ```
/// use shardfeed::Source;
/// assert_eq!(Source::from("data/"), Source::Directory("data/".into()));
/// assert_eq!(Source::from("data/**/*.parquet"), Source::Glob("data/**/*.parquet".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Every `*.parquet` of a directory, not recursive.
    Directory(PathBuf),
    /// Every file that matches.
    Glob(String),
    /// These files.
    Files(Vec<PathBuf>),
}

/// Files of a source, with the names by which every rank knows them.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    /// Names are relative to this directory.
    pub base: PathBuf,
    /// Sorted by name, as bytes.
    pub files: Vec<ListedFile>,
}

#[derive(Clone, Debug)]
pub(crate) struct ListedFile {
    pub name: String,
    pub path: PathBuf,
}

impl Source {
    /// Lists the files. Nothing is opened.
    pub(crate) fn list(&self) -> Result<Listing> {
        self.refuse_what_is_elsewhere()?;
        let (base, paths) = match self {
            Self::Directory(dir) => (dir.clone(), list_directory(dir)?),
            Self::Glob(pattern) => (glob_base(pattern), list_glob(pattern)?),
            Self::Files(paths) => (common_parent(paths), paths.clone()),
        };
        if paths.is_empty() {
            return Err(Error::NoFiles { what: self.to_string() });
        }
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            files.push(ListedFile { name: name_within(&base, &path)?, path });
        }
        files.sort_unstable_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
        Ok(Listing { base, files })
    }
}

impl Source {
    /// What other programs take for a place, and the file system for the name of something that is not there.
    fn refuse_what_is_elsewhere(&self) -> Result<()> {
        let elsewhere = |path: &Path, place: &Path| {
            let text = path.to_string_lossy();
            let advice = if text.contains("://") {
                "URLs are not read yet; copy the files to a disk, or mount them, and give their path"
            } else if text == "~" || text.starts_with("~/") {
                "~ does not stand for the home directory here; write that out"
            } else if matches!(self, Self::Files(_)) && text.contains('*') {
                "a glob in a list of files; give the glob by itself"
            } else {
                return None;
            };
            (!place.exists()).then(|| Error::Invalid(format!("{text}: {advice}")))
        };
        let found = match self {
            Self::Directory(dir) => elsewhere(dir, dir),
            // A place of this directory, if that is where its wildcards begin.
            Self::Glob(pattern) => elsewhere(Path::new(pattern), &Path::new(".").join(glob_base(pattern))),
            Self::Files(paths) => paths.iter().find_map(|path| elsewhere(path, path)),
        };
        found.map_or(Ok(()), Err)
    }
}

fn list_directory(dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::io(dir, "list the directory", source);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // The type comes with the listing; only links and unknown types need a look at the file itself.
        let is_file = match entry.file_type().map_err(failed)? {
            kind if kind.is_file() => true,
            kind if kind.is_dir() => false,
            // A link that leads nowhere is listed, so that it is named when it is opened: another rank may see it.
            _ => std::fs::metadata(entry.path()).map_or(true, |target| target.is_file()),
        };
        if is_file && Path::new(&entry.file_name()).extension().is_some_and(|ext| ext == "parquet") {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

fn list_glob(pattern: &str) -> Result<Vec<PathBuf>> {
    let invalid = |reason: String| Error::Glob { pattern: pattern.to_owned(), reason };
    let mut paths = Vec::new();
    for path in glob::glob(pattern).map_err(|error| invalid(error.to_string()))? {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            Error::io(path, "list the directory", error.into())
        })?;
        if path.is_file() {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The directories of a glob before its first wildcard.
fn glob_base(pattern: &str) -> PathBuf {
    let plain = pattern.find(is_wildcard).map_or(pattern, |at| &pattern[..at]);
    Path::new(&plain[..plain.rfind('/').map_or(0, |at| at + 1)]).to_path_buf()
}

fn is_wildcard(c: char) -> bool {
    matches!(c, '*' | '?' | '[')
}

/// The deepest directory that holds all paths, so that a data set's names do not depend on where it lies.
fn common_parent(paths: &[PathBuf]) -> PathBuf {
    let mut parents = paths.iter().map(|path| path.parent().unwrap_or(Path::new("")));
    let Some(mut common) = parents.next() else { return PathBuf::new() };
    for parent in parents {
        while !parent.starts_with(common) {
            common = common.parent().unwrap_or(Path::new(""));
        }
    }
    common.to_path_buf()
}

fn name_within(base: &Path, path: &Path) -> Result<String> {
    let relative = path.strip_prefix(base).unwrap_or(path);
    let parts: Option<Vec<&str>> = relative.iter().map(|part| part.to_str()).collect();
    let parts = parts.ok_or_else(|| {
        Error::Invalid(format!("{}: its name is not UTF-8; rename the file", path.display()))
    })?;
    Ok(parts.join("/"))
}

impl From<&str> for Source {
    fn from(text: &str) -> Self {
        // A directory may be called "run[1]": what exists is what is meant.
        if text.contains(is_wildcard) && !Path::new(text).exists() {
            Self::Glob(text.to_owned())
        } else if Path::new(text).is_file() {
            Self::Files(vec![text.into()])
        } else {
            Self::Directory(text.into())
        }
    }
}

impl From<&String> for Source {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::from(text),
            None if path.is_file() => Self::Files(vec![path.to_path_buf()]),
            None => Self::Directory(path.to_path_buf()),
        }
    }
}

impl From<&PathBuf> for Source {
    fn from(path: &PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

impl<P: Into<PathBuf>> From<Vec<P>> for Source {
    fn from(paths: Vec<P>) -> Self {
        Self::Files(paths.into_iter().map(Into::into).collect())
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(dir) => write!(f, "{}", dir.display()),
            Self::Glob(pattern) => f.write_str(pattern),
            Self::Files(paths) => match paths.as_slice() {
                [] => f.write_str("an empty list of files"),
                [only] => write!(f, "{}", only.display()),
                [first, rest @ ..] => write!(f, "{} and {} more files", first.display(), rest.len()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(source: impl Into<Source>) -> Vec<String> {
        source.into().list().unwrap().files.into_iter().map(|file| file.name).collect()
    }

    #[test]
    fn a_directory_a_glob_and_a_list_give_the_same_names() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.parquet", "a.parquet", "c.txt", "sub/d.parquet"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        std::fs::create_dir(dir.path().join("dir.parquet")).unwrap();
        let root = dir.path().to_str().unwrap();
        assert_eq!(names(dir.path()), ["a.parquet", "b.parquet"]);
        assert_eq!(names(&*format!("{root}/*.parquet")), ["a.parquet", "b.parquet"]);
        assert_eq!(names(&*format!("{root}/**/*.parquet")), ["a.parquet", "b.parquet", "sub/d.parquet"]);
        let list = vec![dir.path().join("sub/d.parquet"), dir.path().join("a.parquet")];
        assert_eq!(names(list), ["a.parquet", "sub/d.parquet"]);
        assert_eq!(names(dir.path().join("a.parquet")), ["a.parquet"]);
    }

    #[test]
    fn nothing_to_read_is_an_error_that_names_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap().to_owned();
        let message = |source: Source| source.list().unwrap_err().to_string();
        assert!(message(dir.path().into()).contains("no .parquet files"));
        assert!(message(dir.path().into()).contains(&root));
        assert!(message((&*format!("{root}/nowhere")).into()).contains("nowhere"));
        assert!(message((&*format!("{root}/*.parquet")).into()).contains("*.parquet"));
        assert!(message((&*format!("{root}/***/x")).into()).contains("not a glob"));
        assert!(message(Source::Files(vec![])).contains("empty list"));
        for (place, advice) in [
            ("s3://bucket/data", "URLs"),
            ("hf://x/*.parquet", "URLs"),
            ("~/data", "home"),
            ("~/*", "home"),
            ("~", "home"),
        ] {
            let said = message(place.into());
            assert!(said.starts_with(place) && said.contains(advice), "{said}");
        }
        let said = message(Source::Files(vec![dir.path().join("*.parquet")]));
        assert!(said.contains("*.parquet: a glob in a list"), "{said}");
        // What is called so and is there is what is meant.
        std::fs::create_dir(dir.path().join("~x*")).unwrap();
        std::fs::write(dir.path().join("~x*/[a].parquet"), "").unwrap();
        assert_eq!(names(dir.path().join("~x*")), ["[a].parquet"]);
        assert_eq!(names(vec![dir.path().join("~x*/[a].parquet")]), ["[a].parquet"]);
        std::fs::create_dir_all(dir.path().join("a:/b")).unwrap();
        std::fs::write(dir.path().join("a:/b/x.parquet"), "").unwrap();
        assert_eq!(names(&*format!("{root}/a://b/*.parquet")), ["x.parquet"]);
        let missing = Source::Files(vec![dir.path().join("x[1].parquet")]);
        assert!(missing.list().is_ok(), "whoever looks at it says that it is not there");
    }
}
