use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;
use shardfeed::checkpoint::{self, ConvertOptions, Dtype, convert_checkpoint};

use super::{CheckpointArgs, byte_bar};
use crate::args::{Failure, bytes};
use crate::output::{bytes_text, say, thousands};
use crate::stop::Stop;

#[derive(Args, Debug)]
pub struct ConvertArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// The directory to write, which must be new. It appears when it is complete.
    out: PathBuf,
    /// What to write.
    #[arg(long, value_enum, default_value_t = Format::Safetensors)]
    to: Format,
    /// Take only tensors whose names match, for example 'model.*'. May be given several times.
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Leave out tensors whose names match, for example '*.exp_avg*'. May be given several times.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Leave this off the beginning of names, for example 'model.'.
    #[arg(long, default_value = "", value_name = "PREFIX")]
    strip_prefix: String,
    /// Cast tensors of 16, 32 and 64 bit floating-point numbers; integers, booleans, complex and 8-bit numbers stay what they are.
    #[arg(long, value_enum)]
    dtype: Option<Cast>,
    /// Bytes of a file at most, for example 2G; a larger tensor has a file of its own. [default: 5 GB]
    #[arg(long, value_parser = bytes)]
    file_size: Option<u64>,
    /// Compare stored checksums with those of what is read. Damaged bytes are an error, and nothing is written.
    #[arg(long)]
    verify: bool,
    /// Bytes to hold, for example 256M; more threads work where more is allowed. [default: 64M]
    #[arg(long, value_parser = bytes)]
    memory_budget: Option<u64>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Safetensors,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Cast {
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl From<Cast> for Dtype {
    fn from(cast: Cast) -> Self {
        match cast {
            Cast::Float16 => Self::Float16,
            Cast::Bfloat16 => Self::Bfloat16,
            Cast::Float32 => Self::Float32,
            Cast::Float64 => Self::Float64,
        }
    }
}

pub fn run(args: &ConvertArgs) -> Result<ExitCode, Failure> {
    let Format::Safetensors = args.to;
    let checkpoint = args.checkpoint.open()?;
    let reads = checkpoint::Stop::new();
    let told = reads.clone();
    let stop = Stop::on_ctrl_c_do(move || told.stop())?;
    let (bar, tell) = byte_bar("converting, MiB");
    let default = ConvertOptions::default();
    let options = ConvertOptions {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        strip_prefix: args.strip_prefix.clone(),
        dtype: args.dtype.map(Dtype::from),
        file_bytes_max: args.file_size.unwrap_or(default.file_bytes_max),
        verify: args.verify,
        memory_budget: args.memory_budget,
        progress: Some(tell),
        stop: Some(reads),
    };
    let converted = convert_checkpoint(&checkpoint, &args.out, &options);
    bar.finish_and_clear();
    if converted.is_err() {
        stop.check()?;
    }
    let converted = converted?;
    if args.json {
        let object = json!({
            "out": args.out.to_string_lossy(),
            "files": converted.files,
            "tensors": converted.tensors,
            "bytes": converted.bytes,
            "tensors_left_out": converted.tensors_left_out,
            "objects_left_out": converted.objects_left_out,
        });
        say(&format!("{object}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![format!(
        "{} tensors, {}, in {}:",
        thousands(converted.tensors as u64),
        bytes_text(converted.bytes),
        args.out.display()
    )];
    lines.extend(converted.files.iter().map(|file| format!("  {file}")));
    if converted.tensors_left_out + converted.objects_left_out > 0 {
        lines.push(format!(
            "left out: {} tensors that were not chosen, {} objects that are no tensors",
            thousands(converted.tensors_left_out as u64),
            thousands(converted.objects_left_out as u64)
        ));
    }
    say(&(lines.join("\n") + "\n"))?;
    Ok(ExitCode::SUCCESS)
}
