use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use shardfeed::{Batch, SkipsError, TokenLoader, write_state};

use crate::args::{Failure, LoaderArgs};
use crate::digest::{batch_digest, input_tokens};
use crate::output::{say, thousands};
use crate::stop::Stop;

#[derive(Args, Debug)]
pub struct StreamArgs {
    #[command(flatten)]
    loader: LoaderArgs,
    /// Stop after this many steps. [default: at the epoch's end]
    #[arg(long)]
    steps: Option<u64>,
    /// Leave out a range of steps of this epoch, such as 100..120; may be given several times, alike on every rank.
    #[arg(long, value_name = "A..B", value_parser = step_range)]
    skip: Vec<(u64, u64)>,
    /// One JSON object a line instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &StreamArgs) -> Result<ExitCode, Failure> {
    let (mut loader, is_resumed) = args.loader.loader()?;
    for &(start, end) in &args.skip {
        match loader.skip(start..end) {
            // The same command, run again: these steps are past.
            Err(shardfeed::Error::Skips(SkipsError::OutOfReach { .. })) if is_resumed => {}
            skipped => skipped?,
        }
    }
    let stop = Stop::on_ctrl_c()?;
    let state_file = args.loader.settings.state.as_deref();
    let streamed = stream(&mut loader, args, &stop);
    // Whatever happened, what was handed out is known.
    save(&loader, state_file)?;
    let (outcome, summary) = streamed?;
    if !args.json {
        say(&(summary + &where_it_stands(&loader, state_file)))?;
    }
    Ok(if outcome == Outcome::Stopped { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// Prints steps until there are enough, or no more, or somebody stops it. Also returns a summary.
fn stream(loader: &mut TokenLoader, args: &StreamArgs, stop: &Stop) -> Result<(Outcome, String), Failure> {
    if !args.json {
        say(&head(loader))?;
    }
    let started = Instant::now();
    let (mut steps, mut tokens) = (0, 0);
    let outcome = loop {
        if stop.is_asked() {
            break Outcome::Stopped;
        }
        if args.steps == Some(steps) {
            break Outcome::Steps;
        }
        let Some(batch) = loader.next_batch()? else { break Outcome::EpochEnd };
        steps += 1;
        let step_tokens = input_tokens(&batch).count() as u64;
        tokens += step_tokens;
        say(&step_line(&batch, step_tokens, args.json))?;
    };
    let seconds = started.elapsed().as_secs_f64();
    let what = match outcome {
        Outcome::EpochEnd => "the epoch is over",
        Outcome::Steps => "enough steps",
        Outcome::Stopped => "stopped",
    };
    let summary = format!(
        "{what}: {} steps, {} tokens in {seconds:.1} s ({:.1} M tokens/s)\n",
        thousands(steps),
        thousands(tokens),
        tokens as f64 / seconds.max(1e-9) / 1e6
    );
    Ok((outcome, summary))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    EpochEnd,
    Steps,
    Stopped,
}

fn save(loader: &TokenLoader, file: Option<&Path>) -> Result<(), Failure> {
    file.map_or(Ok(()), |file| write_state(file, loader.state()).map_err(Failure::from))
}

fn head(loader: &TokenLoader) -> String {
    let (settings, state) = (loader.settings(), loader.state());
    format!(
        "{}: epoch {} from position {} of {}, {} steps to go; {} lanes, windows of {}\n",
        loader.rank(),
        state.epoch,
        thousands(state.position),
        thousands(loader.sequences_per_epoch()),
        thousands(loader.steps_left()),
        settings.lanes,
        settings.window
    )
}

fn step_line(batch: &Batch, tokens: u64, json: bool) -> String {
    let digest = format!("{:016x}", batch_digest(batch));
    if json {
        let line = json!({
            "epoch": batch.epoch, "step": batch.step, "rows": batch.rows, "real_rows": batch.real_rows,
            "tokens": tokens, "valid_labels": batch.valid_labels, "digest": digest,
        });
        return format!("{line}\n");
    }
    let rows = format!("{}/{}", batch.real_rows, batch.rows);
    format!("step {:>7}  rows {rows:>7}  labels {:>9}  digest {digest}\n", batch.step, batch.valid_labels)
}

fn where_it_stands(loader: &TokenLoader, state: Option<&Path>) -> String {
    let position = format!("epoch {}, position {}", loader.state().epoch, thousands(loader.state().position));
    match state {
        Some(file) => format!("saved {position} in {}; the same command continues there\n", file.display()),
        None => format!("now at {position}; with --state FILE the next run would continue there\n"),
    }
}

/// "100..120" as two numbers.
fn step_range(text: &str) -> Result<(u64, u64), String> {
    let range = text.split_once("..").and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)));
    range.ok_or_else(|| format!("{text:?} is no range of steps, such as 100..120"))
}
