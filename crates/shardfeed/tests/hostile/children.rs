use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tempfile::TempDir;

/// Set in children alone: the cases to run, and where.
const FROM: &str = "SHARDFEED_HOSTILE_FROM";
const TO: &str = "SHARDFEED_HOSTILE_TO";
const DIR: &str = "SHARDFEED_HOSTILE_DIR";
/// Set by whoever repeats one case.
const ONLY: &str = "SHARDFEED_HOSTILE_CASE";

/// Cases of one child.
const BATCH: u64 = 5_000;
/// A child says that it lives after this many cases.
const PROGRESS: u64 = 100;
/// Complaints after which no more are looked for.
const COMPLAINTS_MAX: usize = 20;
/// What is ours in a child's output, of which the test harness has a part.
const MARK: &str = "hostile: ";

/// How often each outcome was met.
pub type Tally = BTreeMap<String, u64>;

/// Numbered cases of one test. Each has an outcome, or is a complaint.
pub struct Cases<'a> {
    /// The test that runs them, with its module.
    pub test: &'a str,
    pub count: u64,
    /// Bytes a child may take, besides what the program itself needs.
    pub memory_max: u64,
    /// A child that says nothing for so long hangs: far more than a hundred cases take on the slowest machine.
    pub silence_max: Duration,
}

impl Cases<'_> {
    /// In the parent: runs all cases in children, and returns the outcomes; fails with all complaints. In a child:
    /// runs its share, in the directory that `case` is given, and returns `None`.
    pub fn run(&self, case: impl Fn(u64, &Path) -> Result<String, String>) -> Option<Tally> {
        if let (Some(cases), Some(dir)) = (share(), std::env::var_os(DIR)) {
            self.run_share(cases, Path::new(&dir), case);
            return None;
        }
        let cases = match number(ONLY) {
            Some(only) => only..only + 1,
            None => 0..self.count,
        };
        let parent = Parent { cases: self, complaints: Mutex::default(), tally: Mutex::default() };
        let next = AtomicU64::new(cases.start);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let from = next.fetch_add(BATCH, Relaxed);
                        if from >= cases.end {
                            break;
                        }
                        parent.run_batch(from..cases.end.min(from + BATCH));
                    }
                });
            }
        });
        let tally = parent.tally.into_inner().unwrap();
        println!("{}: {tally:?}", self.test);
        let complaints = parent.complaints.into_inner().unwrap();
        assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
        Some(tally)
    }

    fn run_share(&self, cases: Range<u64>, dir: &Path, case: impl Fn(u64, &Path) -> Result<String, String>) {
        // Panics of decoders are caught and become errors; printing thousands of them takes most of the time.
        std::panic::set_hook(Box::new(|_| ()));
        let data = dir.join("data");
        let before = peak_bytes();
        let mut tally = Tally::new();
        for number in cases {
            std::fs::write(dir.join("case"), number.to_string()).unwrap();
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| case(number, &data)))
                .unwrap_or_else(|panic| Err(format!("panicked: {}", text_of(&*panic))));
            let grown = peak_bytes() - before;
            let outcome = outcome.and_then(|outcome| {
                let mib = grown >> 20;
                if grown > self.memory_max {
                    Err(format!("took {mib} MiB, then {outcome}"))
                } else {
                    Ok(outcome)
                }
            });
            match outcome {
                Ok(outcome) => *tally.entry(outcome).or_default() += 1,
                Err(complaint) => {
                    say(&format!("complaint {complaint}"));
                    std::process::exit(1);
                }
            }
            if number.is_multiple_of(PROGRESS) {
                say("progress");
            }
        }
        for (outcome, count) in tally {
            say(&format!("tally {count} {outcome}"));
        }
        say(&format!("peak {}", peak_bytes() - before));
        say("done");
    }
}

fn say(what: &str) {
    // A line of its own: the harness has begun one with the test's name.
    println!("\n{MARK}{}", what.replace('\n', " "));
    std::io::stdout().flush().unwrap();
}

fn share() -> Option<Range<u64>> {
    Some(number(FROM)?..number(TO)?)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
}

/// The most this process has held at once.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("Linux has it");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// In memory where there is such a place: a hundred thousand files are written there, each over the one before.
fn quick_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

struct Parent<'a> {
    cases: &'a Cases<'a>,
    complaints: Mutex<Vec<String>>,
    tally: Mutex<Tally>,
}

impl Parent<'_> {
    /// A child that ends early ends with a complaint; the next one goes on after it.
    fn run_batch(&self, cases: Range<u64>) {
        let mut from = cases.start;
        while from < cases.end && self.complaints.lock().unwrap().len() < COMPLAINTS_MAX {
            let dir = quick_dir();
            std::fs::create_dir(dir.path().join("data")).unwrap();
            let Err(complaint) = self.run_child(from..cases.end, dir.path()) else { break };
            let case = std::fs::read_to_string(dir.path().join("case")).unwrap_or_default();
            let kept = self.keep(&case, dir.path());
            let complaint = format!(
                "case {case} ({}): {complaint}\n    repeat it with {ONLY}={case}; its file is {}",
                self.cases.test,
                kept.display()
            );
            eprintln!("{complaint}");
            self.complaints.lock().unwrap().push(complaint);
            let Ok(case) = case.parse::<u64>() else { break };
            from = case + 1;
        }
    }

    /// The file that did it, where it outlives the test.
    fn keep(&self, case: &str, dir: &Path) -> PathBuf {
        let name = format!("hostile-{}-{case}.parquet", self.cases.test.replace("::", "-"));
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::copy(dir.join("data/case.parquet"), &kept);
        kept
    }

    fn run_child(&self, cases: Range<u64>, dir: &Path) -> Result<(), String> {
        let mut child = self.spawn(&cases, dir);
        let lines = lines_of(&mut child);
        let end = self.listen(&lines);
        if end.is_err() {
            // One that hangs is ended; one that is dead already does not mind.
            let _ = child.kill();
        }
        let status = child.wait().unwrap();
        end.map_err(|complaint| match complaint {
            Some(complaint) => complaint,
            None => format!("the process ended with {status}: {}", tail_of(&dir.join("stderr"))),
        })
    }

    /// Until the child is done. `Err(None)`: it is gone without a word.
    fn listen(&self, lines: &Receiver<String>) -> Result<(), Option<String>> {
        loop {
            let line = match lines.recv_timeout(self.cases.silence_max) {
                Ok(line) => line,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return Err(Some("it hangs".to_owned())),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Err(None),
            };
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("complaint", complaint) => return Err(Some(complaint.to_owned())),
                ("tally", counted) => {
                    let (count, outcome) = counted.split_once(' ').expect("a count and an outcome");
                    let count: u64 = count.parse().unwrap();
                    *self.tally.lock().unwrap().entry(outcome.to_owned()).or_default() += count;
                }
                ("peak", bytes) => {
                    let mib = bytes.parse::<u64>().unwrap() >> 20;
                    let mut tally = self.tally.lock().unwrap();
                    let peak = tally.entry("MiB at most".to_owned()).or_default();
                    *peak = mib.max(*peak);
                }
                ("done", _) => return Ok(()),
                _ => {}
            }
        }
    }

    fn spawn(&self, cases: &Range<u64>, dir: &Path) -> Child {
        // What is far beyond the limit fails to be allocated, and does not harm the machine.
        let address_space_kib = (self.cases.memory_max >> 10) + (3 << 20);
        Command::new("sh")
            .args(["-c", &format!("ulimit -v {address_space_kib}; exec \"$0\" \"$@\"")])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", self.cases.test, "--nocapture", "--test-threads=1"])
            .env(FROM, cases.start.to_string())
            .env(TO, cases.end.to_string())
            .env(DIR, dir)
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.join("stderr")).unwrap())
            .spawn()
            .unwrap()
    }
}

/// The child's lines that are ours, as they come.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (send, receive) = channel();
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if let Some(ours) = line.strip_prefix(MARK)
                && send.send(ours.to_owned()).is_err()
            {
                break;
            }
        }
    });
    receive
}

fn tail_of(path: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<&str>>().join(" | ")
}
