//! `cargo xtask test`: every check of the project, in order, in one command.
//!
//! | file            | what it holds                                                      |
//! |-----------------|--------------------------------------------------------------------|
//! | `request.rs`    | what the command line asks for, and the help text                  |
//! | `steps.rs`      | the checks in the order they run                                   |
//! | `run.rs`        | running them: headings, stopping at the first failure, the seconds |
//! | `command.rs`    | a program with its arguments: shown, run, or read                  |
//! | `failure.rs`    | why a step stopped the run                                         |
//! | `tree.rs`       | which packages may not appear in what `cargo tree` prints          |
//! | `source.rs`     | which standard modules and which unsafe code a file may not use    |
//! | `tokens.rs`     | Rust source as identifiers and punctuation, without comments       |
//! | `files.rs`      | finding the repository, its manifests and its sources              |
//! | `deny.rs`       | `cargo-deny`: found, or installed at a fixed version               |
//! | `torch.rs`      | a virtual environment with torch, and what torch saves             |
//! | `python.rs`     | the Python package: built by pip, and its tests                    |
//! | `system.rs`     | etcd and protoc: found, or installed as Debian's packages          |

#![forbid(unsafe_code)]

mod command;
mod deny;
mod failure;
mod files;
mod python;
mod request;
mod run;
mod source;
mod steps;
mod system;
mod tokens;
mod torch;
mod tree;

use std::process::ExitCode;

use request::Request;

fn main() -> ExitCode {
    let asked = request::parse(std::env::args().skip(1));
    match asked {
        Ok(Request::Help) => {
            print!("{}", request::help(&steps::ALL));
            ExitCode::SUCCESS
        }
        Ok(Request::Test { long }) => match files::repository_root() {
            Ok(root) => run::all(&steps::ALL, &steps::Setting { root, long }),
            Err(failure) => {
                eprintln!("error: {failure}");
                ExitCode::FAILURE
            }
        },
        Err(complaint) => {
            eprintln!("error: {complaint}\n\n`cargo xtask help` explains what there is.");
            ExitCode::from(2)
        }
    }
}
