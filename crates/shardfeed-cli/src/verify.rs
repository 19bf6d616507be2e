use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use shardfeed::{
    CachePolicy, EpochOrder, Packing, ScanOptions, StreamSettings, VerifyOptions, VerifyReport,
    is_exactly_once, scan, verify,
};

use crate::args::{DataArgs, Failure};
use crate::output::{bytes_text, say, scan_bar, thousands};

#[derive(Args, Debug)]
pub struct VerifyArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Tokens of a sequence, for the check that an epoch delivers each exactly once.
    #[arg(long, default_value_t = 2048)]
    seq_len: u32,
    /// Sequences of a step, for the same.
    #[arg(long, default_value_t = 64)]
    global_batch: u32,
    /// The seed, for the same.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads that read. [default: the cores]
    #[arg(long)]
    threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &VerifyArgs) -> Result<ExitCode, Failure> {
    let settings = StreamSettings::auto(args.seq_len, Packing::Concat, None, args.seed, args.global_batch);
    settings.check().map_err(shardfeed::Error::from)?;
    let bar = scan_bar("verifying, MiB");
    let progress = bar.clone();
    let options = VerifyOptions {
        threads: args.threads,
        cache: args.data.cache(),
        progress: Some(Arc::new(move |done, total| {
            progress.set_length(total >> 20);
            progress.set_position(done >> 20);
        })),
    };
    let source = args.data.source();
    let verified = verify(&source, &options);
    bar.finish_and_clear();
    let report = verified?;
    // The order is made from the manifest, which only whole files have.
    let exactly_once = if report.damages.is_empty() {
        let options =
            ScanOptions { threads: args.threads, cache: CachePolicy::Off, ..ScanOptions::default() };
        let (data, _) = scan(&source, &options)?;
        let sizes = data.manifest().sizes(&settings).unwrap_or_default();
        Some(is_exactly_once(&EpochOrder::new(&sizes, &settings, 0), &sizes))
    } else {
        None
    };
    if args.json {
        say(&format!("{}\n", as_json(&report, exactly_once)))?;
    } else {
        say(&as_text(&report, exactly_once))?;
    }
    let holds = report.damages.is_empty() && exactly_once == Some(true);
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(report: &VerifyReport, exactly_once: Option<bool>) -> serde_json::Value {
    let damages: Vec<_> = report
        .damages
        .iter()
        .map(|damage| {
            json!({ "path": damage.path, "row_group": damage.row_group, "page": damage.page,
                    "reason": damage.reason })
        })
        .collect();
    json!({
        "files": report.files,
        "row_groups": report.row_groups,
        "row_groups_with_checksums": report.row_groups_with_checksums,
        "rows": report.rows,
        "tokens": report.tokens,
        "bytes": report.bytes,
        "exactly_once": exactly_once,
        "damages": damages,
    })
}

fn as_text(report: &VerifyReport, exactly_once: Option<bool>) -> String {
    let mut lines = vec![
        format!("files         {}", thousands(report.files as u64)),
        format!("row groups    {}", thousands(report.row_groups as u64)),
        format!("rows          {}", thousands(report.rows)),
        format!("tokens        {}", thousands(report.tokens)),
        format!("pages         {}", bytes_text(report.bytes)),
    ];
    let recorded = match report.row_groups_with_checksums {
        0 => "none recorded; `data scan --checksum` does it".to_owned(),
        all if all == report.row_groups => "compared in all row groups".to_owned(),
        some => format!("compared in {} row groups", thousands(some as u64)),
    };
    lines.push(format!("checksums     {recorded}"));
    let once = match exactly_once {
        Some(true) => "every sequence of an epoch",
        Some(false) => "NO: please report this",
        None => "not looked at, since something is damaged",
    };
    lines.push(format!("exactly once  {once}"));
    lines.push(match report.damages.len() {
        0 if report.row_groups > 0 && report.row_groups_with_checksums == report.row_groups => {
            "everything is as it was when its checksums were recorded".to_owned()
        }
        0 => "everything is as it was written, as far as the files themselves can tell".to_owned(),
        1 => "1 place is damaged:".to_owned(),
        count => format!("{} places are damaged:", thousands(count as u64)),
    });
    lines.extend(report.damages.iter().map(|damage| format!("  {}", damage.reason)));
    lines.join("\n") + "\n"
}
