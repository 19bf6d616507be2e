//! Real processes, killed, stopped and woken, on real etcd servers that are killed, stopped and cut off: every sample is
//! committed exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parquet::data_type::Int64Type;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rustix::process::{Pid, Signal, kill_process};
use shardfeed::{
    Error, ParquetDataset, PartitionStrategy, StreamCoordinator, StreamingConfig, StreamingShardLoader, mix,
};

use super::etcd::Etcd;

const WORKERS: usize = 4;
const SAMPLES: i64 = 4_000;
const LEASE: Duration = Duration::from_secs(2);
/// A round without faults takes about so long.
const PACE: Duration = Duration::from_millis(4);
const COMMIT_EVERY: usize = 20;

const CHILD: &str = "SHARDFEED_TEST_WORKER";

fn config(rank: usize) -> StreamingConfig {
    StreamingConfig::new(WORKERS, rank)
        .unwrap()
        .with_partition_strategy(PartitionStrategy::Adaptive {
            base_strategy: Box::new(PartitionStrategy::Contiguous),
            rebalance_threshold: 0.3,
        })
        .with_shuffle_seed(5)
        .with_fault_tolerance(2)
        .with_dynamic_balancing(true)
        .with_lease(LEASE)
}

/// A file of numbers, in row groups.
fn write_numbers(dir: &Path) {
    let schema = Arc::new(parse_message_type("message rows { required int64 id; }").unwrap());
    let file = std::fs::File::create(dir.join("numbers.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::default())).unwrap();
    for first in (0..SAMPLES).step_by(500) {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let ids: Vec<i64> = (first..(first + 500).min(SAMPLES)).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Run by the test below as another process. Writes what it was handed (`d`), what it was told is committed (`c`), and why it
/// had to join again (`f`); ends when the epoch does.
#[test]
fn worker() {
    let Ok(given) = std::env::var(CHILD) else { return };
    let [url, rank, data, log] = given.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let rank: usize = rank.parse().unwrap();
    let mut log = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
    let mut note = |line: &str| log.write_all(line.as_bytes()).unwrap();
    loop {
        match work(url, rank, Path::new(data), &mut note) {
            Ok(()) => return,
            Err(error) => note(&format!("f {}\n", error.to_string().replace('\n', " "))),
        }
        // Nothing it was handed counts but what is committed: it joins again.
    }
}

fn work(url: &str, rank: usize, data: &Path, note: &mut impl FnMut(&str)) -> Result<(), Error> {
    let coordinator = Arc::new(StreamCoordinator::connect(url, config(rank))?);
    let loader =
        StreamingShardLoader::new(ParquetDataset::open(data)?, config(rank))?.with_coordinator(coordinator);
    let mut fresh: Vec<i64> = Vec::new();
    loop {
        let next = loader.next()?;
        let is_end = next.is_none();
        if let Some(record) = next {
            let id = record.get("id").and_then(shardfeed::Value::as_int).unwrap();
            note(&format!("d {id}\n"));
            fresh.push(id);
            std::thread::sleep(PACE);
        }
        if fresh.len() >= COMMIT_EVERY || is_end && !fresh.is_empty() {
            loader.commit()?;
            let mut line = "c".to_owned();
            fresh.drain(..).for_each(|id| write!(line, " {id}").unwrap());
            note(&format!("{line}\n"));
        } else if is_end {
            return Ok(());
        }
    }
}

/// The workers of a round.
struct Workers {
    url: String,
    dir: PathBuf,
    data: PathBuf,
    children: Vec<Option<Child>>,
    done: Vec<bool>,
}

impl Workers {
    fn log(&self, rank: usize) -> PathBuf {
        self.dir.join(format!("worker{rank}.log"))
    }

    fn start(&mut self, rank: usize) {
        let given = [
            &self.url,
            &rank.to_string(),
            &self.data.display().to_string(),
            &self.log(rank).display().to_string(),
        ]
        .map(String::as_str)
        .join("\n");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::worker", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, given)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.dir.join(format!("worker{rank}.err"))).unwrap())
            .spawn()
            .unwrap();
        self.children[rank] = Some(child);
    }

    fn signal(&self, rank: usize, signal: Signal) {
        if let Some(child) = &self.children[rank] {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn kill(&mut self, rank: usize) {
        if let Some(mut child) = self.children[rank].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Whether all came to the end of the epoch.
    fn are_done(&mut self) -> bool {
        for rank in 0..WORKERS {
            if let Some(child) = &mut self.children[rank]
                && let Some(status) = child.try_wait().unwrap()
            {
                let said =
                    std::fs::read_to_string(self.dir.join(format!("worker{rank}.err"))).unwrap_or_default();
                assert!(status.success(), "worker {rank}: {status} {said}");
                self.done[rank] = true;
                self.children[rank] = None;
            }
        }
        self.done.iter().all(|&done| done)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for rank in 0..WORKERS {
            self.kill(rank);
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    faults: BTreeMap<&'static str, usize>,
    takeovers: Vec<Duration>,
    repeated: usize,
    rejoined: usize,
}

/// Something that ends at its time.
enum Ending {
    Worker(usize),
    Wake(usize),
    Server(usize),
    WakeServer(usize),
    Join(usize),
}

fn round(number: u64, etcd: &mut Etcd, has_networks: bool, tally: &mut Tally) {
    let mut dice = 0_u64;
    let mut roll = |below: u64| {
        dice += 1;
        mix(number * 1_000_003 + dice) % below
    };
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    write_numbers(&data);
    let mut workers = Workers {
        url: etcd.url(&format!("round{number}")),
        dir: dir.path().to_owned(),
        data: data.clone(),
        children: (0..WORKERS).map(|_| None).collect(),
        done: vec![false; WORKERS],
    };
    for rank in 0..WORKERS {
        workers.start(rank);
    }
    // All were there before the first fault: from then on each has heirs.
    let watch = connect(&workers.url);
    watch.wait_for_workers(Duration::from_mins(1)).unwrap();
    let mut endings: Vec<(Instant, Ending)> = Vec::new();
    let mut next_fault = Instant::now() + Duration::from_millis(roll(1_000));
    let mut faults_left = 3 + roll(3);
    let mut killed: BTreeMap<usize, Instant> = BTreeMap::new();
    let until = Instant::now() + Duration::from_secs(150);
    loop {
        let now = Instant::now();
        assert!(now < until, "round {number} does not come to its end: {:?}", logs(&workers));
        let due: Vec<Ending> = {
            let (due, later) = endings.into_iter().partition(|(at, _)| *at <= now);
            endings = later;
            due.into_iter().map(|(_, ending): (Instant, Ending)| ending).collect()
        };
        for ending in due {
            match ending {
                Ending::Worker(rank) => workers.start(rank),
                Ending::Wake(rank) => workers.signal(rank, Signal::CONT),
                Ending::Server(node) => etcd.run(node),
                Ending::WakeServer(node) => signal_server(etcd, node, Signal::CONT),
                Ending::Join(node) => drop(etcd.cut_off(node, false)),
            }
        }
        if workers.are_done() {
            break;
        }
        // One server at a time, so that the others agree; one worker more than once.
        let is_server_out =
            endings.iter().any(|(_, ending)| !matches!(ending, Ending::Worker(_) | Ending::Wake(_)));
        if faults_left > 0 && now >= next_fault {
            let rank = roll(WORKERS as u64) as usize;
            let is_free = workers.children[rank].is_some()
                && !endings.iter().any(|(_, ending)| matches!(ending, Ending::Wake(r) if *r == rank));
            let (kind, ending) =
                strike(rank, is_free, !is_server_out, &mut workers, etcd, has_networks, &mut roll);
            if kind == "workers killed" {
                killed.insert(rank, now);
            }
            if let Some((after, ending)) = ending {
                *tally.faults.entry(kind).or_default() += 1;
                endings.push((now + Duration::from_millis(after), ending));
                faults_left -= 1;
                next_fault = now + Duration::from_millis(roll(2_500));
            }
        }
        if !killed.is_empty()
            && let Ok(rows) = watch.workers()
        {
            for row in &rows {
                for rank in &row.took_over {
                    if let Some(since) = killed.remove(rank) {
                        tally.takeovers.push(since.elapsed());
                    }
                }
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for (_, ending) in endings {
        match ending {
            Ending::Server(node) => etcd.run(node),
            Ending::WakeServer(node) => signal_server(etcd, node, Signal::CONT),
            Ending::Join(node) => drop(etcd.cut_off(node, false)),
            Ending::Worker(_) | Ending::Wake(_) => {}
        }
    }
    judge(number, &workers, &connect(&workers.url), &data, tally);
}

/// Does something to a worker or a server. Returns what, how long it lasts and how it ends.
fn strike(
    rank: usize,
    is_free: bool,
    are_servers_whole: bool,
    workers: &mut Workers,
    etcd: &mut Etcd,
    has_networks: bool,
    roll: &mut impl FnMut(u64) -> u64,
) -> (&'static str, Option<(u64, Ending)>) {
    match roll(8) {
        0..=2 if is_free => {
            workers.kill(rank);
            ("workers killed", Some((roll(6_000), Ending::Worker(rank))))
        }
        3 | 4 if is_free => {
            workers.signal(rank, Signal::STOP);
            ("workers stopped", Some((roll(3 * LEASE.as_millis() as u64), Ending::Wake(rank))))
        }
        5 if are_servers_whole => match etcd.leader() {
            Some(leader) => {
                etcd.kill(leader);
                ("leaders killed", Some((500 + roll(2_000), Ending::Server(leader))))
            }
            None => ("", None),
        },
        6 if are_servers_whole => {
            let node = roll(3) as usize;
            signal_server(etcd, node, Signal::STOP);
            ("servers stopped", Some((roll(3_000), Ending::WakeServer(node))))
        }
        7 if are_servers_whole && has_networks => {
            let node = etcd.leader().unwrap_or(0);
            etcd.cut_off(node, true);
            ("networks cut", Some((500 + roll(3_000), Ending::Join(node))))
        }
        _ => ("", None),
    }
}

fn connect(url: &str) -> StreamCoordinator {
    let until = Instant::now() + Duration::from_mins(1);
    loop {
        match StreamCoordinator::connect(url, config(0)) {
            Ok(coordinator) => return coordinator,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    }
}

fn signal_server(etcd: &Etcd, node: usize, signal: Signal) {
    if let Some(pid) = etcd.pid(node) {
        let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
    }
}

fn logs(workers: &Workers) -> Vec<String> {
    let last = |rank: usize| {
        let log = std::fs::read_to_string(workers.log(rank)).unwrap_or_default();
        log.lines().rev().take(3).collect::<Vec<_>>().join(" | ")
    };
    (0..WORKERS).map(last).collect()
}

/// What the coordinator has, against what the workers wrote down.
fn judge(number: u64, workers: &Workers, coordinator: &StreamCoordinator, data: &Path, tally: &mut Tally) {
    let mut committed: BTreeMap<i64, usize> = BTreeMap::new();
    for rank in 0..WORKERS {
        // What a worker did, done again from what is kept.
        let loader = StreamingShardLoader::new(ParquetDataset::open(data).unwrap(), config(rank)).unwrap();
        loader.adopt(0, &coordinator.assignment(0, rank).unwrap()).unwrap();
        let log = std::fs::read_to_string(workers.log(rank)).unwrap_or_default();
        let handed: BTreeSet<i64> =
            log.lines().filter_map(|line| line.strip_prefix("d ")?.parse().ok()).collect();
        while let Some(record) = loader.next().unwrap() {
            let id = record.get("id").and_then(shardfeed::Value::as_int).unwrap();
            assert!(handed.contains(&id), "round {number}: {id} was committed by {rank}, who never had it");
            let other = committed.insert(id, rank);
            assert_eq!(other, None, "round {number}: {id} was committed twice, by {rank} too");
        }
    }
    assert_eq!(committed.len() as i64, SAMPLES, "round {number}: some were lost");
    let mut all_handed = 0;
    for rank in 0..WORKERS {
        let log = std::fs::read_to_string(workers.log(rank)).unwrap_or_default();
        for line in log.lines() {
            if let Some(ids) = line.strip_prefix("c ") {
                for id in ids.split(' ').map(|id| id.parse::<i64>().unwrap()) {
                    assert_eq!(
                        committed.get(&id),
                        Some(&rank),
                        "round {number}: {rank} was told that {id} is its own"
                    );
                }
            }
            all_handed += usize::from(line.starts_with("d "));
            tally.rejoined += usize::from(line.starts_with("f "));
        }
    }
    tally.repeated += all_handed - committed.len();
}

#[test]
fn every_sample_is_committed_exactly_once() {
    let long = std::env::var_os("SHARDFEED_LONG").is_some();
    let given = std::env::var("SHARDFEED_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let rounds = given.unwrap_or(if long { 200 } else { 10 });
    let first = std::env::var("SHARDFEED_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let (mut etcd, has_networks) = match Etcd::start_in_networks(3) {
        Some(etcd) => (etcd, true),
        None => (Etcd::start(3), false),
    };
    let mut tally = Tally::default();
    let since = Instant::now();
    for number in first..first + rounds {
        round(number, &mut etcd, has_networks, &mut tally);
    }
    tally.takeovers.sort_unstable();
    let at = |part: usize| tally.takeovers.get(tally.takeovers.len().saturating_sub(1) * part / 100);
    println!(
        "{rounds} rounds in {:.0} s: each of {SAMPLES} samples committed once",
        since.elapsed().as_secs_f64()
    );
    println!("networks that can be cut: {has_networks}; faults: {:?}", tally.faults);
    println!("samples handed out again: {}; workers that joined again: {}", tally.repeated, tally.rejoined);
    println!(
        "takeover after a kill, leases of {LEASE:?}: median {:?}, 99 % {:?} of {}",
        at(50),
        at(99),
        tally.takeovers.len()
    );
}
