use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use shardfeed::checkpoint::{CheckpointReport, Problem, verify_checkpoint};

use super::inspect::printable;
use super::{CheckpointArgs, byte_bar};
use crate::args::Failure;
use crate::output::{bytes_text, say, thousands};

#[derive(Args, Debug)]
pub struct VerifyArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &VerifyArgs) -> Result<ExitCode, Failure> {
    let (bar, tell) = byte_bar("verifying, MiB");
    let report = verify_checkpoint(&args.checkpoint.path, &args.checkpoint.opening.options(), Some(&tell));
    bar.finish_and_clear();
    let report = report?;
    say(&if args.json { format!("{}\n", as_json(&report)) } else { as_text(&report) })?;
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(report: &CheckpointReport) -> serde_json::Value {
    let problem = |problem: &Problem| json!({ "path": problem.path.to_string_lossy(), "offset": problem.offset, "item": problem.item, "kind": problem.kind.name(), "reason": problem.reason });
    json!({
        "tensors": report.tensors,
        "objects": report.objects,
        "files": report.files,
        "bytes": report.bytes,
        "items_with_checksums": report.items_with_checksums,
        "items_without": report.items_without,
        "folders_not_listed": report.folders_not_listed.iter().map(|folder| folder.to_string_lossy()).collect::<Vec<_>>(),
        "ranks_not_noted": report.ranks_not_noted,
        "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}

fn as_text(report: &CheckpointReport) -> String {
    let mut lines = vec![
        format!("tensors    {}", thousands(report.tensors as u64)),
        format!("objects    {}", thousands(report.objects as u64)),
        format!("files      {}, {}", thousands(report.files as u64), bytes_text(report.bytes)),
    ];
    lines.push(match (report.items_with_checksums, report.items_without) {
        (0, 0) => "checksums  none were compared: nothing that is stored could be looked at".to_owned(),
        (with, 0) => format!("checksums  compared in all {} items", thousands(with as u64)),
        (0, _) => "checksums  none were stored: that everything can be read is all that is known".to_owned(),
        (with, without) => {
            format!(
                "checksums  compared in {} items; {} were saved without",
                thousands(with as u64),
                thousands(without as u64)
            )
        }
    });
    lines.extend(report.folders_not_listed.iter().map(|folder| {
        format!(
            "folders    {} may not be listed: nobody looked whether files are left in it",
            printable(&folder.display().to_string())
        )
    }));
    if report.ranks_not_noted {
        let why = "of how many ranks nobody noted: if the last rank's files are missing, it looks whole; compare the shapes (ckpt inspect)";
        lines.push(format!("ranks      each saved a file of its own, {why}"));
    }
    lines.push(match report.problems.len() {
        0 => "nothing is wrong".to_owned(),
        1 => "1 thing is wrong:".to_owned(),
        count => format!("{} things are wrong:", thousands(count as u64)),
    });
    lines.extend(report.problems.iter().map(|problem| {
        let place = if problem.item.is_empty() {
            String::new()
        } else {
            format!("{} at byte {}: ", printable(&problem.item), problem.offset)
        };
        format!("  {}: {place}{}", printable(&problem.path.display().to_string()), printable(&problem.reason))
    }));
    lines.join("\n") + "\n"
}
