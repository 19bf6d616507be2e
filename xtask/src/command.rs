//! A program with its arguments: shown so that it can be pasted, run with its output streaming, or run
//! for what it prints.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

use crate::failure::Failure;

/// What will be run, in the repository's root.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// As it is shown.
    shown: String,
    /// As it is started.
    program: OsString,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Command {
    /// The cargo that runs this program; shown as plain `cargo`.
    pub(crate) fn cargo(arguments: &[&str]) -> Self {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Self { shown: "cargo".to_owned(), program, arguments: Vec::new(), environment: Vec::new() }
            .with(arguments)
    }

    /// A program of the machine.
    pub(crate) fn program(name: &str, arguments: &[&str]) -> Self {
        Self { shown: name.to_owned(), program: name.into(), arguments: Vec::new(), environment: Vec::new() }
            .with(arguments)
    }

    /// A program inside the repository, named by its path from the root.
    pub(crate) fn inside(root: &Path, program: &Path) -> Self {
        let start: PathBuf = root.join(program);
        Self {
            shown: program.display().to_string(),
            program: start.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// The same with more arguments after the others.
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// The same with an environment variable.
    pub(crate) fn set(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Shows the command, then runs it with its output streaming to ours.
    pub(crate) fn stream(&self, root: &Path) -> Result<(), Failure> {
        println!("$ {self}");
        let status = self.start(root).status().map_err(|error| self.not_started(&error))?;
        if status.success() { Ok(()) } else { Err(self.ended(status)) }
    }

    /// Shows the command, then runs it and hands back what it wrote to stdout. Its stderr streams.
    pub(crate) fn read(&self, root: &Path) -> Result<String, Failure> {
        println!("$ {self}");
        let output =
            self.start(root).stderr(Stdio::inherit()).output().map_err(|error| self.not_started(&error))?;
        if !output.status.success() {
            return Err(self.ended(output.status));
        }
        String::from_utf8(output.stdout)
            .map_err(|_| Failure::new(format!("`{self}` printed something that is not UTF-8")))
    }

    /// What it prints, silently; `None` where it is missing or fails.
    pub(crate) fn probe(&self, root: &Path) -> Option<String> {
        let output = self.start(root).output().ok()?;
        if output.status.success() { String::from_utf8(output.stdout).ok() } else { None }
    }

    fn start(&self, root: &Path) -> process::Command {
        let mut command = process::Command::new(&self.program);
        command
            .args(&self.arguments)
            .current_dir(root)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    fn not_started(&self, error: &std::io::Error) -> Failure {
        Failure::new(format!("`{self}` could not be started: {error}"))
    }

    fn ended(&self, status: process::ExitStatus) -> Failure {
        Failure::new(format!("`{self}` failed ({status})"))
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&self.shown)?;
        for argument in &self.arguments {
            write!(f, " {}", quoted(argument))?;
        }
        Ok(())
    }
}

/// A word as a shell needs it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_pasted() {
        let command = Command::cargo(&["bench", "--bench", "*"]).set("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(command.to_string(), "RUSTDOCFLAGS='-D warnings' cargo bench --bench '*'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_failing_command_is_named_in_the_failure() {
        let command = Command::cargo(&["no-such-subcommand-of-cargo"]);
        assert_eq!(command.probe(Path::new(".")), None);
        let missing = Command::inside(Path::new("."), Path::new("no/such/program")).with(&["check"]);
        let failure = missing.stream(Path::new(".")).err().map(|failure| failure.to_string());
        assert!(failure.is_some_and(|text| text.starts_with("`no/such/program check` could not be started")));
    }

    #[test]
    fn what_a_command_prints_is_read() {
        let version = Command::cargo(&["--version"]);
        let text = version.read(Path::new("."));
        assert!(text.is_ok_and(|text| text.starts_with("cargo ")));
    }
}
