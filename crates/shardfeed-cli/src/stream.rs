use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use shardfeed::{Batch, TokenLoader, write_state};

use crate::args::{Failure, LoaderArgs};
use crate::digest::batch_digest;
use crate::output::thousands;

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
    let mut loader = args.loader.loader()?;
    for &(start, end) in &args.skip {
        loader.skip(start..end)?;
    }
    let stopped = stop_on_ctrl_c()?;
    let state_file = args.loader.state.as_deref();
    if !args.json {
        print_head(&loader);
    }
    let started = Instant::now();
    let (mut steps, mut tokens) = (0, 0);
    let mut out = std::io::stdout().lock();
    let outcome = loop {
        if stopped.load(SeqCst) {
            break Outcome::Stopped;
        }
        if args.steps == Some(steps) {
            break Outcome::Steps;
        }
        match loader.next_batch() {
            Ok(Some(batch)) => {
                steps += 1;
                tokens += (batch.real_rows * batch.seq_len) as u64;
                let written = print_step(&mut out, &batch, args.json);
                if written.is_err() {
                    // The reader of a pipe went away: what it saw is what was delivered, but for this step.
                    break Outcome::Stopped;
                }
            }
            Ok(None) => break Outcome::EpochEnd,
            Err(error) => {
                save(&loader, state_file)?;
                return Err(error.into());
            }
        }
    };
    drop(out);
    save(&loader, state_file)?;
    if !args.json {
        print_tail(&loader, outcome, steps, tokens, started.elapsed().as_secs_f64(), state_file);
    }
    Ok(if outcome == Outcome::Stopped { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    EpochEnd,
    Steps,
    Stopped,
}

fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>, Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    ctrlc::set_handler(move || {
        // The second time, whoever types means it.
        if flag.swap(true, SeqCst) {
            std::process::exit(130);
        }
    })
    .map_err(|error| Failure::Other(format!("cannot watch for Ctrl-C: {error}")))?;
    Ok(stopped)
}

fn save(loader: &TokenLoader, file: Option<&Path>) -> Result<(), Failure> {
    file.map_or(Ok(()), |file| write_state(file, loader.state()).map_err(Failure::from))
}

fn print_head(loader: &TokenLoader) {
    let (settings, state) = (loader.settings(), loader.state());
    println!(
        "{}: epoch {} from position {} of {}, {} steps to go; {} lanes, windows of {}",
        loader.rank(),
        state.epoch,
        thousands(state.position),
        thousands(loader.sequences_per_epoch()),
        thousands(loader.steps_left()),
        settings.lanes,
        settings.window
    );
}

fn print_step(out: &mut impl Write, batch: &Batch, json: bool) -> std::io::Result<()> {
    let digest = format!("{:016x}", batch_digest(batch));
    if json {
        let line = json!({
            "epoch": batch.epoch, "step": batch.step, "rows": batch.rows, "real_rows": batch.real_rows,
            "tokens": batch.real_rows * batch.seq_len, "valid_labels": batch.valid_labels, "digest": digest,
        });
        writeln!(out, "{line}")?;
    } else {
        let rows = format!("{}/{}", batch.real_rows, batch.rows);
        writeln!(
            out,
            "step {:>7}  rows {rows:>7}  labels {:>9}  digest {digest}",
            batch.step, batch.valid_labels
        )?;
    }
    out.flush()
}

fn print_tail(
    loader: &TokenLoader,
    outcome: Outcome,
    steps: u64,
    tokens: u64,
    seconds: f64,
    state: Option<&Path>,
) {
    let what = match outcome {
        Outcome::EpochEnd => "the epoch is over",
        Outcome::Steps => "enough steps",
        Outcome::Stopped => "stopped",
    };
    println!(
        "{what}: {} steps, {} tokens in {seconds:.1} s ({:.1} M tokens/s)",
        thousands(steps),
        thousands(tokens),
        tokens as f64 / seconds.max(1e-9) / 1e6
    );
    let position = format!("epoch {}, position {}", loader.state().epoch, thousands(loader.state().position));
    match state {
        Some(file) => println!("saved {position} in {}; the same command continues there", file.display()),
        None => println!("now at {position}; with --state FILE the next run would continue there"),
    }
}

/// "100..120" as two numbers.
fn step_range(text: &str) -> Result<(u64, u64), String> {
    let range = text.split_once("..").and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)));
    range.ok_or_else(|| format!("{text:?} is no range of steps, such as 100..120"))
}
