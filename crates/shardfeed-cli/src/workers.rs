use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use serde_json::json;
use shardfeed::{StreamCoordinator, StreamingConfig, WorkerRow, WorkerStatus};

use crate::args::Failure;
use crate::output::{say, table, thousands};
use crate::stop::Stop;

/// Looks at a job from outside: changes nothing, and may come and go.
#[derive(Args, Debug)]
pub struct WorkersArgs {
    /// The job: etcd://[user:password@]host:2379[,host2:2379]/job[?ca=FILE&cert=FILE&key=FILE]
    #[arg(value_name = "URL")]
    url: String,
    /// Show the table once. Without it the table stays and is kept up to date, until Ctrl-C, where the output is a terminal.
    #[arg(long)]
    once: bool,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    every: f64,
    /// One look, as one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &WorkersArgs) -> Result<ExitCode, Failure> {
    if !(0.1..=3600.0).contains(&args.every) {
        return Err(Failure::Other(format!("--every is {}; give 0.1 to 3600 seconds", args.every)));
    }
    // Who only looks has no rank; any will do.
    let coordinator = StreamCoordinator::connect(&args.url, StreamingConfig::new(1, 0)?)?;
    let is_live = !args.once && !args.json && std::io::stdout().is_terminal();
    if !is_live {
        let rows = coordinator.workers()?;
        say(&if args.json { format!("{}\n", as_json(&rows)) } else { as_text(&rows, SystemTime::now()) })?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Stop::on_ctrl_c()?;
    while !stop.is_asked() {
        let text = match coordinator.workers() {
            Ok(rows) => as_text(&rows, SystemTime::now()),
            // It may come back.
            Err(error) => format!("{error}\n"),
        };
        // From the top of an empty screen.
        say(&format!("\x1b[2J\x1b[H{text}\nEvery {} s; Ctrl-C ends.\n", args.every))?;
        let next = Instant::now() + Duration::from_secs_f64(args.every);
        while Instant::now() < next && !stop.is_asked() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn status(row: &WorkerRow) -> &'static str {
    match row.health.status {
        WorkerStatus::Failed if row.has_left => "left",
        WorkerStatus::Active => "active",
        WorkerStatus::Idle => "idle",
        WorkerStatus::Slow => "slow",
        WorkerStatus::Failed => "failed",
        WorkerStatus::Unknown => "unknown",
    }
}

fn as_json(rows: &[WorkerRow]) -> serde_json::Value {
    let row = |row: &WorkerRow| {
        let heartbeat = row.health.last_heartbeat.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        json!({
            "rank": row.health.rank,
            "status": status(row),
            "epoch": row.epoch,
            "position": row.position,
            "samples": row.health.samples_processed,
            "samples_per_s": row.health.average_throughput,
            "last_heartbeat_unix_s": heartbeat.as_secs_f64(),
            "lease_granted_ms": row.lease_ms.map(|(granted, _)| granted),
            "lease_left_ms": row.lease_ms.map(|(_, left)| left),
            "took_over": row.took_over,
            "name": row.name,
        })
    };
    json!({ "workers": rows.iter().map(row).collect::<Vec<_>>() })
}

fn as_text(rows: &[WorkerRow], now: SystemTime) -> String {
    let head = [
        "rank",
        "status",
        "epoch",
        "position",
        "samples/s",
        "heartbeat",
        "lease",
        "took over",
        "host and process",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let is_known = row.health.status != WorkerStatus::Unknown;
        let known = |text: String| if is_known { text } else { "–".to_owned() };
        let ago = now.duration_since(row.health.last_heartbeat).unwrap_or_default();
        let lease = row.lease_ms.map(|(granted, left)| {
            format!("{:.0} of {:.0} s", left as f64 / 1000.0, granted as f64 / 1000.0)
        });
        let took_over: Vec<String> = row.took_over.iter().map(usize::to_string).collect();
        lines.push(vec![
            row.health.rank.to_string(),
            status(row).to_owned(),
            known(row.epoch.to_string()),
            known(thousands(row.position)),
            known(format!("{:.1}", row.health.average_throughput)),
            known(format!("{:.1} s ago", ago.as_secs_f64())),
            lease.unwrap_or_else(|| "–".to_owned()),
            took_over.join(" "),
            // Whatever somebody wrote there, it moves no cursor.
            row.name.chars().filter(|letter| !letter.is_control()).collect(),
        ]);
    }
    if rows.is_empty() {
        return "Nobody has joined this job yet.\n".to_owned();
    }
    table(&lines)
}
