//! The command line of Shardfeed. One file per verb.
#![deny(unsafe_code)]

mod args; // what people type          -> a loader
mod svg; // shapes                     -> XML
mod output; // rows of a table, JSON   -> the terminal
mod stop; // Ctrl-C                    -> a flag
mod digest; // a batch                 -> a number that tells it from others
mod scan; // shardfeed data scan
mod plan; // shardfeed data plan
mod stream; // shardfeed data stream
mod explain; // shardfeed data explain
mod verify; // shardfeed data verify
mod bench; // shardfeed data bench
mod workers; // shardfeed workers
mod ckpt; // shardfeed ckpt
mod demo; // shardfeed demo

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Feeds distributed training from pre-tokenized Parquet: the same steps at any world size, resumed from one number.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // There is one, once.
enum Verb {
    /// Show what Shardfeed promises, and check it: makes a small data set, streams it on several ranks, stops,
    /// resumes at another world size. Needs nothing, leaves nothing behind.
    Demo(demo::DemoArgs),
    /// Show the workers of a job that is coordinated on etcd: rank, status, position, samples a second, last heartbeat,
    /// lease, what they took over. Kept up to date until Ctrl-C.
    Workers(workers::WorkersArgs),
    /// Look at a distributed checkpoint, check, compare and convert it: PyTorch's .distcp files, or safetensors. Needs no torch,
    /// and executes nothing that is in it.
    #[command(subcommand)]
    Ckpt(CkptVerb),
    /// Look at a data set and stream it.
    #[command(subcommand)]
    Data(DataVerb),
}

#[derive(Subcommand)]
enum DataVerb {
    /// Read what is in a data set: files, row groups, rows, tokens. Keeps it for the next start.
    Scan(scan::ScanArgs),
    /// Tell, without running it, what a job of any world size reads and holds: lanes, ranks, bytes, memory, shuffle
    /// quality. As text, as JSON, as a picture.
    Plan(plan::PlanArgs),
    /// Stream one rank's batches and print counts and a digest for each step. Stop with Ctrl-C, continue with the
    /// same --state.
    Stream(stream::StreamArgs),
    /// Read everything once and name every damaged place: checksums, pages, types, ids, counts, and that an epoch
    /// delivers every sequence exactly once.
    Verify(verify::VerifyArgs),
    /// Tell which files, row groups, rows and tokens a step is made of.
    Explain(explain::ExplainArgs),
    /// Measure tokens per second into batches beside the bare `parquet` decode and a memory-mapped raw token file, and
    /// the time to a first batch. Without a source it makes its own data, and leaves nothing behind.
    Bench(bench::BenchArgs),
}

#[derive(Subcommand)]
enum CkptVerb {
    /// Show what is in a checkpoint: a tree of names with dtypes, shapes, bytes and files.
    Inspect(ckpt::inspect::InspectArgs),
    /// Read every byte and list every problem: sizes, coverage, overlaps, checksums, files that are missing or left over.
    Verify(ckpt::verify::VerifyArgs),
    /// Tell which tensors of two checkpoints differ, and by how much; by stored checksums where both have them.
    Diff(ckpt::diff::DiffArgs),
    /// Write tensors as safetensors files: some of them, under shorter names, cast, several files with an index. Holds little
    /// memory, however large the checkpoint.
    Convert(ckpt::convert::ConvertArgs),
    /// Measure this reader, in sequence and on several threads, beside plain parallel reads of as many bytes in the same run.
    Bench(ckpt::bench::BenchArgs),
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 a promise or the data does not hold; 2 the command is wrong; \
                          3 the data, or the coordinator, cannot be read; 4 the state is refused; 130 stopped by Ctrl-C or SIGTERM (`stream`, which saves its \
                          state, `convert`, which leaves nothing behind, `data bench`); `workers` ends with 0 then, the others by the signal.";

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Workers(args) => workers::run(&args),
        Verb::Ckpt(CkptVerb::Inspect(args)) => ckpt::inspect::run(&args),
        Verb::Ckpt(CkptVerb::Verify(args)) => ckpt::verify::run(&args),
        Verb::Ckpt(CkptVerb::Diff(args)) => ckpt::diff::run(&args),
        Verb::Ckpt(CkptVerb::Convert(args)) => ckpt::convert::run(&args),
        Verb::Ckpt(CkptVerb::Bench(args)) => ckpt::bench::run(&args),
        Verb::Data(DataVerb::Scan(args)) => scan::run(&args),
        Verb::Data(DataVerb::Plan(args)) => plan::run(&args),
        Verb::Data(DataVerb::Stream(args)) => stream::run(&args),
        Verb::Data(DataVerb::Explain(args)) => explain::run(&args),
        Verb::Data(DataVerb::Verify(args)) => verify::run(&args),
        Verb::Data(DataVerb::Bench(args)) => bench::run(&args),
    };
    done.unwrap_or_else(|failure| {
        if !matches!(failure, args::Failure::Closed) {
            // Names come from foreign files: nothing in them moves the cursor.
            let text = failure.to_string();
            let shown: String =
                text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect();
            eprintln!("shardfeed: {shown}");
        }
        failure.exit_code()
    })
}
