use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use shardfeed::checkpoint::{Checkpoint, CheckpointDiff, Difference, DifferenceKind, diff_checkpoints};

use super::inspect::printable;
use super::{OpeningArgs, byte_bar};
use crate::args::Failure;
use crate::output::{say, table, thousands};

#[derive(Args, Debug)]
pub struct DiffArgs {
    /// A checkpoint.
    first: PathBuf,
    /// Another one.
    second: PathBuf,
    #[command(flatten)]
    opening: OpeningArgs,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let first = Checkpoint::open_with(&args.first, &args.opening.options())?;
    let second = Checkpoint::open_with(&args.second, &args.opening.options())?;
    let (bar, tell) = byte_bar("comparing, MiB");
    let diff = diff_checkpoints(&first, &second, Some(&tell));
    bar.finish_and_clear();
    let diff = diff?;
    say(&if args.json { format!("{}\n", as_json(&diff)) } else { as_text(&diff) })?;
    Ok(if diff.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(diff: &CheckpointDiff) -> Value {
    let difference = |difference: &Difference| {
        let name = &difference.name;
        match &difference.what {
            DifferenceKind::OnlyInFirst => json!({ "name": name, "kind": "only_in_first" }),
            DifferenceKind::OnlyInSecond => json!({ "name": name, "kind": "only_in_second" }),
            DifferenceKind::Form(first, second) => {
                json!({ "name": name, "kind": "form", "first": first, "second": second })
            }
            DifferenceKind::Bytes => json!({ "name": name, "kind": "bytes" }),
            DifferenceKind::Elements { different, of, without_distance, largest, largest_relative } => {
                json!({ "name": name, "kind": "elements", "different": different, "of": of, "without_distance": without_distance, "largest": largest, "largest_relative": largest_relative })
            }
        }
    };
    json!({
        "same": diff.same,
        "same_by_checksum": diff.same_by_checksum,
        "differences": diff.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}

fn as_text(diff: &CheckpointDiff) -> String {
    let mut rows = vec![["name", "what", "elements", "largest", "relative"].map(str::to_owned).to_vec()];
    for Difference { name, what } in &diff.differences {
        let mut row = vec![printable(name)];
        match what {
            DifferenceKind::OnlyInFirst => row.push("only in the first".to_owned()),
            DifferenceKind::OnlyInSecond => row.push("only in the second".to_owned()),
            DifferenceKind::Form(first, second) => row.push(format!("{first} and {second}")),
            DifferenceKind::Bytes => row.push("another object".to_owned()),
            DifferenceKind::Elements { different, of, without_distance, largest, largest_relative } => row
                .extend([
                    match without_distance {
                        0 => "other numbers".to_owned(),
                        some => format!("other numbers, {} not finite", thousands(*some)),
                    },
                    format!("{} of {}", thousands(*different), thousands(*of)),
                    format!("{largest:.3e}"),
                    format!("{largest_relative:.3e}"),
                ]),
        }
        rows.push(row);
    }
    let same = format!(
        "{} the same ({} seen by their checksums alone)",
        thousands(diff.same as u64),
        thousands(diff.same_by_checksum as u64)
    );
    match diff.differences.len() {
        0 => format!("no difference: {same}\n"),
        count => format!("{}{} different, {same}\n", table(&rows), thousands(count as u64)),
    }
}
