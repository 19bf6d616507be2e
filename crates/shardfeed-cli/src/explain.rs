use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use shardfeed::{StepOrigin, TokenOrigin};

use crate::args::{Failure, LoaderArgs};
use crate::output::{say, table};

#[derive(Args, Debug)]
pub struct ExplainArgs {
    #[command(flatten)]
    loader: LoaderArgs,
    /// The step, as `data stream` numbers it.
    #[arg(long)]
    step: u64,
    /// Only what this rank delivers. [default: all ranks]
    #[arg(long)]
    only_rank: Option<u32>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let (loader, _) = args.loader.loader()?;
    let mut origin = loader.explain(args.step)?;
    if let Some(rank) = args.only_rank {
        origin.sequences.retain(|sequence| sequence.rank == rank);
    }
    if args.json {
        say(&format!("{}\n", as_json(&origin)))?;
    } else {
        say(&as_text(&origin))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(origin: &StepOrigin) -> serde_json::Value {
    let part = |part: &TokenOrigin| {
        json!({ "file": part.file, "row_group": part.row_group, "rows": [part.rows.start, part.rows.end],
                "first_token_of_row": part.first_token_of_row, "tokens": [part.tokens.start, part.tokens.end] })
    };
    let sequences: Vec<_> = origin
        .sequences
        .iter()
        .map(|sequence| {
            json!({ "rank": sequence.rank, "row": sequence.row, "position": sequence.position,
                    "parts": sequence.parts.iter().map(part).collect::<Vec<_>>() })
        })
        .collect();
    json!({ "epoch": origin.epoch, "step": origin.step, "sequences": sequences })
}

fn as_text(origin: &StepOrigin) -> String {
    let (epoch, step) = (origin.epoch, origin.step);
    let head = ["rank", "row", "position", "file", "row group", "rows", "tokens"].map(str::to_owned).to_vec();
    let mut rows = vec![head];
    for sequence in &origin.sequences {
        for (index, part) in sequence.parts.iter().enumerate() {
            let once = |number: String| if index == 0 { number } else { String::new() };
            rows.push(vec![
                once(sequence.rank.to_string()),
                once(sequence.row.to_string()),
                once(sequence.position.to_string()),
                part.file.clone(),
                part.row_group.to_string(),
                format!("{}..{}", part.rows.start, part.rows.end),
                format!("{}..{}", part.tokens.start, part.tokens.end),
            ]);
        }
    }
    let rows = table(&rows);
    format!("epoch {epoch}, step {step}: ranges are within the row group, their ends left out\n\n{rows}")
}
