use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use shardfeed::{Manifest, ScanOptions, ScanReport, scan};

use crate::args::{DataArgs, Failure};
use crate::output::{say, scan_bar, table, thousands};

#[derive(Args, Debug)]
pub struct ScanArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Also count the sequences that rows make when cut at this length, as packing "pad" needs.
    #[arg(long, value_name = "SEQ_LEN")]
    pad: Option<u32>,
    /// Also read every page once and record its checksum in the manifest, so that reading notices every damaged byte.
    ///
    /// Parquet itself notices damage only where its writer put checksums into the pages, and never in their headers.
    /// Recorded once, checksums are kept, used by every later command, and compared by `data verify`. Files that have
    /// them are not read again; a file that changes loses them until the next scan with this option.
    #[arg(long, conflicts_with = "no_cache")]
    checksum: bool,
    /// Threads that read. [default: the cores]
    #[arg(long)]
    threads: Option<usize>,
    /// List every file.
    #[arg(long)]
    files: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ScanArgs) -> Result<ExitCode, Failure> {
    let bar = scan_bar("scanning");
    let progress = bar.clone();
    let options = ScanOptions {
        threads: args.threads,
        cache: args.data.cache(),
        pieces_of: args.pad,
        checksum: args.checksum,
        progress: Some(Arc::new(move |done, total| {
            progress.set_length(total);
            progress.set_position(done);
        })),
        ..ScanOptions::default()
    };
    if args.pad == Some(0) {
        return Err(Failure::Shardfeed(shardfeed::SettingsError::NoTokens.into()));
    }
    let scanned = scan(&args.data.source(), &options);
    bar.finish_and_clear();
    let (data, report) = scanned?;
    let manifest = data.manifest();
    let sequences: Option<u64> = args.pad.map(|seq_len| {
        let pieces = manifest.files().iter().flat_map(|file| &file.pieces);
        pieces.filter(|pieces| pieces.seq_len == seq_len).flat_map(|pieces| &pieces.counts).sum()
    });
    if args.json {
        say(&format!("{}\n", as_json(manifest, &report, sequences, args.files)))?;
    } else {
        say(&as_text(manifest, &report, sequences, args.files))?;
        report.cache_notes.iter().for_each(|note| eprintln!("shardfeed: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(
    manifest: &Manifest,
    report: &ScanReport,
    sequences: Option<u64>,
    files: bool,
) -> serde_json::Value {
    let mut value = json!({
        "fingerprint": manifest.fingerprint().to_string(),
        "files": manifest.files().len(),
        "row_groups": manifest.row_groups().len(),
        "row_groups_with_checksums": manifest.row_groups_with_checksums(),
        "rows": manifest.rows(),
        "documents": manifest.documents(),
        "tokens": manifest.tokens(),
        "bytes": manifest.files().iter().map(|file| file.size).sum::<u64>(),
        "sequences": sequences,
        "files_read": report.files_read,
        "files_cached": report.files_cached,
        "row_groups_recorded": report.row_groups_recorded,
        "cache_read": report.cache_read,
        "cache_written": report.cache_written,
        "cache_notes": report.cache_notes,
    });
    if files {
        value["file_list"] = per_file(manifest)
            .map(|file| {
                json!({ "name": file.name, "column": file.column, "type": file.ids, "row_groups": file.row_groups,
                        "rows": file.rows, "tokens": file.tokens, "bytes": file.bytes })
            })
            .collect();
    }
    value
}

fn as_text(manifest: &Manifest, report: &ScanReport, sequences: Option<u64>, files: bool) -> String {
    let (tokens, documents) = (manifest.tokens(), manifest.documents());
    let cached = match report.files_cached {
        0 => String::new(),
        cached => format!(" ({} unchanged since the last scan)", thousands(cached as u64)),
    };
    let gaps = match manifest.rows() - documents {
        0 => String::new(),
        gaps => format!(" ({} null or empty)", thousands(gaps)),
    };
    let checksums = match manifest.row_groups_with_checksums() {
        0 => "none recorded; --checksum does it".to_owned(),
        all if all == manifest.row_groups().len() => "of all row groups".to_owned(),
        some => format!("of {} row groups; --checksum adds the others", thousands(some as u64)),
    };
    let mean = tokens.checked_div(documents).unwrap_or(0);
    let mut lines = vec![
        format!("fingerprint  {}", manifest.fingerprint()),
        format!("files        {}{cached}", thousands(manifest.files().len() as u64)),
        format!("row groups   {}", thousands(manifest.row_groups().len() as u64)),
        format!("rows         {}{gaps}", thousands(manifest.rows())),
        format!("tokens       {} ({} a row)", thousands(tokens), thousands(mean)),
        format!("checksums    {checksums}"),
    ];
    lines.extend(sequences.map(|sequences| format!("sequences    {}", thousands(sequences))));
    lines.extend(report.cache_written.as_ref().map(|path| format!("kept in      {}", path.display())));
    let mut text = lines.join("\n") + "\n";
    if files {
        let head =
            ["file", "column", "type", "row groups", "rows", "tokens", "bytes"].map(str::to_owned).to_vec();
        let rows = per_file(manifest).map(|file| {
            vec![
                file.name.to_owned(),
                file.column.to_owned(),
                file.ids.to_owned(),
                thousands(file.row_groups),
                thousands(file.rows),
                thousands(file.tokens),
                thousands(file.bytes),
            ]
        });
        text = text + "\n" + &table(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
    }
    text
}

struct FileLine<'a> {
    name: &'a str,
    column: &'a str,
    ids: &'static str,
    row_groups: u64,
    rows: u64,
    tokens: u64,
    bytes: u64,
}

fn per_file(manifest: &Manifest) -> impl Iterator<Item = FileLine<'_>> {
    (0_u32..).zip(manifest.files()).map(|(index, file)| {
        let groups = &manifest.row_groups()[manifest.row_groups_of(index)];
        FileLine {
            name: &file.name,
            column: &file.column.name,
            ids: file.column.ids.name(),
            row_groups: groups.len() as u64,
            rows: groups.iter().map(|group| group.rows).sum(),
            tokens: groups.iter().map(|group| group.tokens).sum(),
            bytes: file.size,
        }
    })
}
