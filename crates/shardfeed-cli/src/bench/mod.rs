use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use shardfeed::Source;

use crate::args::Failure;
use crate::output::{say, scan_bar};
use crate::stop::Stop;

mod zipf; // a key                        -> token ids as frequent as words
mod recipe; // how files are written      -> a made-up data set
mod spread; // several measurements       -> best and median
mod subject; // a source                  -> what is measured
mod bare; // the parquet crate alone      -> a pass
mod raw; // a memory-mapped file          -> a pass
mod engine; // Shardfeed                  -> a pass
mod contest; // readers, in turn          -> rates
mod starts; // opening, first batches     -> milliseconds
mod report; // what was measured          -> a table, JSON

use contest::Contest;
use recipe::{Amount, Codec, Encoding, Lengths, Recipe};
use report::Report;
use starts::Starts;
use subject::Subject;
use zipf::Zipf;

#[derive(Args, Debug)]
pub struct BenchArgs {
    /// A directory, a file, a quoted glob, or several files. [default: data sets made for the purpose]
    source: Vec<String>,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    seq_len: u32,
    /// Sequences of a step, all of them on one rank.
    #[arg(long, visible_alias = "batch", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    global_batch: u32,
    /// Numbers of threads to measure with; the raw file always has one.
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = threads)]
    threads: Vec<usize>,
    /// Rounds in which each reader is measured once, after one that does not count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// About how many tokens to make up, or, of a source, how many the files must hold that are used.
    /// [default: 64,000,000; all files of a source]
    #[arg(long)]
    tokens: Option<u64>,
    /// Files of each made-up data set.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "source")]
    files: u32,
    /// Compressions of the made-up data sets.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["none", "snappy", "lz4_raw", "zstd"], conflicts_with = "source")]
    compression: Vec<Codec>,
    /// Encodings of the made-up data sets.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["dictionary", "plain"], conflicts_with = "source")]
    encoding: Vec<Encoding>,
    /// Rows of the made-up data sets: as long as a sequence, or of all lengths.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["fixed", "variable"], conflicts_with = "source")]
    lengths: Vec<Lengths>,
    /// One JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// Tokens of a made-up data set.
const TOKENS: u64 = 64_000_000;

pub fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let stop = Stop::on_ctrl_c()?;
    if cfg!(debug_assertions) {
        eprintln!("shardfeed: this build is not optimised; measure with cargo run --release");
    }
    let bar = scan_bar("measuring");
    let reports = match args.source.as_slice() {
        [] => made_up(args, &bar, &stop),
        source => given(args, source, &bar, &stop),
    };
    bar.finish_and_clear();
    let reports = reports?;
    if args.json {
        let sets: Vec<_> = reports.iter().map(Report::as_json).collect();
        let value = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "optimised": !cfg!(debug_assertions),
            "cores": std::thread::available_parallelism().map_or(1, usize::from),
            "seq_len": args.seq_len,
            "global_batch": args.global_batch,
            "rounds": args.rounds,
            "data_sets": sets,
        });
        say(&format!("{value}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One data set after the other, so that only one is on the disk.
fn made_up(args: &BenchArgs, bar: &ProgressBar, stop: &Stop) -> Result<Vec<Report>, Failure> {
    let recipes = Recipe::all(&args.compression, &args.encoding, &args.lengths);
    bar.set_length(recipes.len() as u64 * Contest::passes(&args.threads, args.rounds as usize));
    let zipf = Zipf::new();
    let amount = Amount { tokens: args.tokens.unwrap_or(TOKENS), files: args.files, seq_len: args.seq_len };
    let mut reports = Vec::new();
    for recipe in recipes {
        bar.set_message(format!("making {}", recipe.name()));
        let dir = tempfile::tempdir()?;
        recipe.write(dir.path(), amount, &zipf, stop)?;
        let subject = Subject::new(Source::from(dir.path()), args.seq_len, args.global_batch)?;
        reports.push(measure(args, recipe.name(), &subject, bar, stop)?);
    }
    Ok(reports)
}

fn given(
    args: &BenchArgs,
    source: &[String],
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<Vec<Report>, Failure> {
    bar.set_length(Contest::passes(&args.threads, args.rounds as usize));
    let name = source.join(" ");
    let source = match source {
        [one] => Source::from(one),
        several => Source::from(several.to_vec()),
    };
    let mut subject = Subject::new(source, args.seq_len, args.global_batch)?;
    if let Some(tokens) = args.tokens {
        subject = subject.cut(tokens)?;
    }
    Ok(vec![measure(args, name, &subject, bar, stop)?])
}

fn measure(
    args: &BenchArgs,
    name: String,
    subject: &Subject,
    bar: &ProgressBar,
    stop: &Stop,
) -> Result<Report, Failure> {
    if subject.tokens() == 0 {
        return Err(Failure::Other(format!("{name}: there is no token in it to measure with")));
    }
    bar.set_message(name.clone());
    let rounds = args.rounds as usize;
    let contest = Contest::hold(subject, &args.threads, rounds, bar, stop)?;
    let threads = args.threads.iter().copied().max().unwrap_or(1);
    let starts = Starts::measure(subject, threads, rounds, stop)?;
    let report = Report::new(name, subject, contest, starts);
    if !args.json {
        bar.suspend(|| say(&format!("{}\n", report.as_text())))?;
    }
    Ok(report)
}

/// A number of threads that a loader accepts.
fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|threads| (1..=1024).contains(threads));
    number.ok_or_else(|| format!("{text:?} is no number of threads from 1 to 1024"))
}
