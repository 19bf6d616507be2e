//! What the command line asks for, and the help text.

use std::fmt::Write as _;

use crate::steps::Step;

/// One run of this program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Help,
    Test { long: bool },
}

/// Reads the arguments after the program's name. No argument at all asks for help.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Request, String> {
    let mut arguments = arguments.into_iter();
    let Some(verb) = arguments.next() else { return Ok(Request::Help) };
    match verb.as_str() {
        "help" | "--help" | "-h" => Ok(Request::Help),
        "test" => {
            let mut long = false;
            for argument in arguments {
                match argument.as_str() {
                    "--long" => long = true,
                    "--help" | "-h" => return Ok(Request::Help),
                    other => {
                        return Err(format!(
                            "`cargo xtask test` takes --long and nothing else, not `{other}`"
                        ));
                    }
                }
            }
            Ok(Request::Test { long })
        }
        other => Err(format!("there is no `cargo xtask {other}`; there are `test` and `help`")),
    }
}

/// The help text. The steps in it come from the table that runs, so that the two cannot differ.
pub(crate) fn help(steps: &[Step]) -> String {
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
    let mut list = String::new();
    for (at, step) in steps.iter().enumerate() {
        let _ = writeln!(list, "  {}. {:width$}  {}", at + 1, step.name, step.about);
    }
    format!(
        "\
cargo xtask: the checks of Shardfeed

  cargo xtask test          run every check; this is what CI runs
  cargo xtask test --long   the same, with the tests in release mode and SHARDFEED_LONG=1
  cargo xtask help          this text

Run `cargo xtask test` before you hand in a change. The checks run in this order and
the run stops at the first that fails:

{list}
Each command is printed after a `$` before it starts. To work on one failure, copy
that line and run it alone: a failed run ends by naming it again.

What fails, and what to do about it:

  - format:        run `cargo fmt --all`.
  - a test:        run `cargo test -p <crate> <part of its name>`.
  - dependencies:  shardfeed-plan decides and does nothing else: it reads no file, clock
                   or socket and starts no thread, so that a plan is the same everywhere.
                   The message names the crate that breaks this; `cargo tree -i` on it
                   says who brought it in. Take it out, or move the code that needs it
                   to crates/shardfeed.
  - sources:       the same rule for the standard library, and the rule that every crate
                   root denies unsafe code. The message gives the file and the line.
  - deny:          a licence, a banned crate or a source that deny.toml does not allow.

With --long, tests that draw random cases draw many times more of them: a test reads
SHARDFEED_LONG and multiplies its number of cases when it is set. Use it before a
release and after a change to planning or to resuming.

On a bare machine: cargo with rustfmt and clippy, and a C compiler, are enough. The
tests run real etcd servers, and building their client needs protoc: both are installed
as Debian's packages where they are missing.
Python from 3.11 on makes an environment under target/torch, once, with torch in it
(some 5 GB), in which what torch saves and the Python package are tested.
cargo-nextest runs the tests where it is installed, cargo test does elsewhere.
cargo-deny is installed once into target/tools where it is missing; that takes a few
minutes and the network.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn test_and_help_are_understood() {
        assert_eq!(parsed("test"), Ok(Request::Test { long: false }));
        assert_eq!(parsed("test --long"), Ok(Request::Test { long: true }));
        for line in ["", "help", "--help", "-h", "test --help"] {
            assert_eq!(parsed(line), Ok(Request::Help), "{line:?}");
        }
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        assert!(parsed("tset").is_err_and(|text| text.contains("`cargo xtask tset`")));
        assert!(parsed("test --fast").is_err_and(|text| text.contains("`--fast`")));
    }

    #[test]
    fn the_help_names_every_step() {
        let text = help(&steps::ALL);
        for step in &steps::ALL {
            assert!(text.contains(step.name) && text.contains(step.about), "{}", step.name);
        }
    }
}
