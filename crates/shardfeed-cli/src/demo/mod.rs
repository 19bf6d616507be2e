use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::args::Failure;
use crate::output::{say, scan_bar, table};

mod job; // ranks as processes of their own -> steps, states
mod checkpoint; // a checkpoint of torch -> looked at, checked, converted, damaged
mod takeover; // workers in threads     -> one is killed, the others go on
mod promises; // what is checked

#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Leave the data set in DIR/data and a checkpoint in DIR/checkpoint, to try other commands on. DIR must be new.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// One promise, what was tried, and whether it held.
pub struct Check {
    pub promise: &'static str,
    /// What was seen, with its numbers, or what went wrong.
    pub seen: Result<String, String>,
}

pub fn run(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let scratch = tempfile::tempdir()?;
    let dir = args.keep.as_deref().unwrap_or(scratch.path());
    if args.keep.is_some() {
        std::fs::create_dir(dir)
            .map_err(|error| Failure::Other(format!("{}: cannot make it: {error}", dir.display())))?;
    }
    let bar = scan_bar("checking");
    let checks = promises::check_all(dir, scratch.path(), &bar)?;
    bar.finish_and_clear();
    let failed = checks.iter().filter(|check| check.seen.is_err()).count();
    if args.json {
        let rows: Vec<_> = checks
            .iter()
            .map(|check| {
                let (Ok(seen) | Err(seen)) = &check.seen;
                json!({ "promise": check.promise, "holds": check.seen.is_ok(), "seen": seen })
            })
            .collect();
        say(&format!("{}\n", json!({ "checks": rows, "failed": failed })))?;
    } else {
        let mut rows = vec![["", "promise", "seen"].map(str::to_owned).to_vec()];
        rows.extend(checks.iter().map(|check| match &check.seen {
            Ok(seen) => vec!["✓".to_owned(), check.promise.to_owned(), seen.clone()],
            Err(wrong) => vec!["✗".to_owned(), check.promise.to_owned(), wrong.clone()],
        }));
        say(&table(&rows))?;
        say(&match failed {
            0 => format!("\nAll {} promises hold.\n", checks.len()),
            _ => format!("\n{failed} of {} promises do not hold: please report this table.\n", checks.len()),
        })?;
    }
    if let (false, Some(dir)) = (args.json, &args.keep) {
        say(&format!(
            "The data set is in {}, the checkpoint in {}.\n",
            dir.join("data").display(),
            dir.join("checkpoint").display()
        ))?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
