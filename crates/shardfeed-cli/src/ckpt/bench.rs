use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use shardfeed::checkpoint::{Checkpoint, DirectIo, ReadOptions, ReadPlan, StoredTensor};

use super::CheckpointArgs;
use crate::args::Failure;
use crate::output::{bytes_text, say, scan_bar, table};
use crate::svg::{Anchor, FAINT, GREY, INK, Style, Svg};

/// Bytes that a plain read asks for.
const BLOCK: usize = 8 << 20;

#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Numbers of threads to try. [default: 1, 2, 4, 8, … up to twice the cores]
    #[arg(long, value_delimiter = ',')]
    workers: Vec<usize>,
    /// Times that each way is tried, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Forget what the system has cached of the files before each try. "The disk alone" is then plain reads past that cache, one for each
    /// 8 MiB of a tensor, thrown away; file systems with a cache of their own may answer from it.
    #[arg(long)]
    cold: bool,
    /// Pass the system's cache by: for large ranges that are not in it, always, or never.
    #[arg(long, value_enum, default_value_t = Direct::Auto)]
    direct_io: Direct,
    /// Compare stored checksums while reading.
    #[arg(long)]
    verify: bool,
    /// Draw the result into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Direct {
    Auto,
    Always,
    Never,
}

/// A way to read.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Sequential,
    /// On as many threads as it takes by itself.
    Chosen,
    Parallel(usize),
    Plain(usize),
    /// Past the system's cache, into a block that is used again and again: what the disk gives.
    Disk(usize),
}

struct Score {
    way: Way,
    threads: usize,
    /// GiB a second, the fastest first.
    rates: Vec<f64>,
}

pub fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let begin = Instant::now();
    let mut checkpoint = args.checkpoint.open()?;
    let open_s = begin.elapsed().as_secs_f64();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers: Vec<usize> = match args.workers.as_slice() {
        [] => (0..10).map(|power| 1 << power).filter(|&count| count <= (2 * cores).max(8)).collect(),
        given => given.iter().map(|&count| count.max(1)).collect(),
    };
    let mut ways = vec![Way::Sequential];
    let has_disk = args.cold && accepts_direct(&checkpoint);
    for count in workers {
        if has_disk {
            ways.push(Way::Disk(count));
        }
        ways.extend([Way::Plain(count), Way::Parallel(count)]);
    }
    ways.push(Way::Chosen);
    let mut scores: Vec<Score> = ways.iter().map(|&way| Score::of(way)).collect();
    let bytes = checkpoint.tensors().iter().map(StoredTensor::bytes).fold(0, u64::saturating_add);
    let room = ReadOptions::default().memory_bytes();
    if bytes > room {
        let path = checkpoint.path().display();
        return Err(Failure::Shardfeed(shardfeed::Error::Invalid(format!(
            "{path}: all tensors are read into memory at once, which takes {}, and {} may be used (four fifths of what is available); measure a smaller checkpoint",
            bytes_text(bytes),
            bytes_text(room)
        ))));
    }
    // Touched once, so that nobody pays for memory that is new.
    let mut memory: Vec<Vec<u8>> =
        checkpoint.tensors().iter().map(|tensor| vec![1; tensor.bytes() as usize]).collect();
    let bar = scan_bar("measuring");
    bar.set_length((args.rounds * ways.len()) as u64);
    for _ in 0..args.rounds.max(1) {
        for score in &mut scores {
            if args.cold {
                forget(&checkpoint)?;
            }
            let begin = Instant::now();
            match score.way {
                Way::Plain(threads) => plain(&checkpoint, &mut memory, threads, false)?,
                Way::Disk(threads) => plain(&checkpoint, &mut memory, threads, true)?,
                way => {
                    checkpoint = checkpoint.with_options(options(args, way));
                    let mut plan = ReadPlan::new();
                    let names: Vec<String> =
                        checkpoint.tensors().iter().map(|tensor| tensor.name.clone()).collect();
                    for (name, memory) in names.iter().zip(&mut memory) {
                        plan.read(name, memory);
                    }
                    let stats = checkpoint.read_into(plan)?;
                    if way == Way::Chosen {
                        score.threads = stats.workers;
                    }
                }
            }
            score.rates.push(bytes as f64 / f64::from(1 << 30) / begin.elapsed().as_secs_f64());
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    for score in &mut scores {
        score.rates.sort_by(|one, other| other.total_cmp(one));
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, picture(&scores, bytes, args.cold))
            .map_err(|error| Failure::Other(format!("{}: cannot write it: {error}", path.display())))?;
    }
    say(&if args.json {
        format!("{}\n", as_json(&scores, bytes, args.cold, open_s))
    } else {
        as_text(&scores, bytes, args.cold)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &BenchArgs, way: Way) -> ReadOptions {
    let direct_io = match args.direct_io {
        Direct::Auto => DirectIo::Auto,
        Direct::Always => DirectIo::Always,
        Direct::Never => DirectIo::Never,
    };
    let num_workers = match way {
        Way::Parallel(count) => Some(count),
        _ => None,
    };
    ReadOptions {
        use_parallel: way != Way::Sequential,
        num_workers,
        direct_io,
        verify: args.verify,
        ..ReadOptions::default()
    }
}

/// Tells the system that nobody needs the files' bytes in memory.
fn forget(checkpoint: &Checkpoint) -> Result<(), Failure> {
    for (path, _) in checkpoint.files() {
        let file = File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(std::io::Error::from)?;
    }
    Ok(())
}

/// What memory, places and lengths must be multiples of where the system's cache is passed by.
const ALIGNMENT: usize = 4096;

fn open(path: &Path, is_direct: bool) -> std::io::Result<File> {
    #[cfg(target_os = "linux")]
    let flags = if is_direct { rustix::fs::OFlags::DIRECT.bits() } else { 0 };
    #[cfg(not(target_os = "linux"))]
    let flags = if is_direct { return Err(std::io::ErrorKind::Unsupported.into()) } else { 0 };
    File::options().read(true).custom_flags(flags as i32).open(path)
}

/// Whether the files can be read past the cache.
fn accepts_direct(checkpoint: &Checkpoint) -> bool {
    let mut block = vec![0; 2 * ALIGNMENT];
    let start = block.as_ptr().align_offset(ALIGNMENT);
    checkpoint.files().all(|(path, _)| {
        open(path, true).is_ok_and(|file| file.read_at(&mut block[start..start + ALIGNMENT], 0).is_ok())
    })
}

/// At least `needed` bytes of a block; the last one of a file may be shorter than the block.
fn read_direct(file: &File, block: &mut [u8], at: u64, needed: usize) -> std::io::Result<()> {
    let mut done = 0;
    while done < needed {
        // What came short of a whole unit is asked for again.
        let from = done - done % ALIGNMENT;
        match file.read_at(&mut block[from..], at + from as u64) {
            Ok(got) if from + got > done => done = from + got,
            Ok(_) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// As many bytes, from the same places, by nothing but `pread`, into the same memory; or past the cache, into a block for each thread.
fn plain(
    checkpoint: &Checkpoint,
    memory: &mut [Vec<u8>],
    threads: usize,
    is_direct: bool,
) -> Result<(), Failure> {
    let paths: Vec<PathBuf> = checkpoint.files().map(|(path, _)| path.to_owned()).collect();
    let mut reads: Vec<(u32, u64, &mut [u8])> = Vec::new();
    for (tensor, memory) in checkpoint.tensors().iter().zip(memory) {
        let mut rest = memory.as_mut_slice();
        for chunk in &tensor.chunks {
            let bytes = (chunk.part.volume() * tensor.dtype.bytes()) as usize;
            // Chunks that lie over each other bring more than there is room for.
            let bytes = bytes.min(chunk.item.length as usize).min(rest.len());
            let (mut own, others) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = others;
            let mut at = chunk.item.offset;
            while !own.is_empty() {
                let (block, more) = own.split_at_mut(own.len().min(BLOCK));
                let len = block.len() as u64;
                reads.push((chunk.item.file, at, block));
                at += len;
                own = more;
            }
        }
    }
    reads.sort_by_key(|(file, at, _)| (*file, *at));
    let longest = reads.iter().map(|(_, _, into)| into.len()).max().unwrap_or(0);
    let reads: Vec<Mutex<(u32, u64, &mut [u8])>> = reads.into_iter().map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let work = || -> std::io::Result<()> {
        let mut opened: Option<(u32, File)> = None;
        let mut block = if is_direct { vec![1; longest + 3 * ALIGNMENT] } else { Vec::new() };
        let block_start = block.as_ptr().align_offset(ALIGNMENT);
        while let Some(read) = reads.get(next.fetch_add(1, Relaxed)) {
            let (number, at, into) = &mut *read.lock().unwrap_or_else(PoisonError::into_inner);
            if opened.as_ref().is_none_or(|(open, _)| open != number) {
                opened = Some((*number, open(&paths[*number as usize], is_direct)?));
            }
            let Some((_, file)) = &opened else { continue };
            if is_direct {
                let before = (*at % ALIGNMENT as u64) as usize;
                let len = (before + into.len()).next_multiple_of(ALIGNMENT);
                let block = &mut block[block_start..block_start + len];
                read_direct(file, block, *at - before as u64, before + into.len())?;
            } else {
                file.read_exact_at(into, *at)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    Ok(())
}

impl Score {
    fn of(way: Way) -> Self {
        let threads = match way {
            Way::Parallel(count) | Way::Plain(count) | Way::Disk(count) => count,
            Way::Sequential | Way::Chosen => 1,
        };
        Self { way, threads, rates: Vec::new() }
    }

    fn best(&self) -> f64 {
        self.rates.first().copied().unwrap_or(0.0)
    }

    fn median(&self) -> f64 {
        self.rates.get(self.rates.len() / 2).copied().unwrap_or(0.0)
    }

    fn name(&self) -> &'static str {
        match self.way {
            Way::Sequential => "shardfeed, sequential",
            Way::Chosen => "shardfeed, by itself",
            Way::Parallel(_) => "shardfeed",
            Way::Plain(_) => "plain pread",
            Way::Disk(_) => "the disk alone",
        }
    }
}

/// In relation to plain reads on as many threads.
fn ratio(scores: &[Score], score: &Score) -> Option<f64> {
    let plain = scores.iter().find(|other| other.way == Way::Plain(score.threads))?;
    // Nothing takes no time to read.
    Some(score.best() / plain.best()).filter(|ratio| ratio.is_finite())
}

fn as_text(scores: &[Score], bytes: u64, is_cold: bool) -> String {
    let mut rows = vec![["reader", "threads", "GiB/s", "median", "× pread"].map(str::to_owned).to_vec()];
    for score in scores {
        let ratio = ratio(scores, score).map_or(String::new(), |ratio| format!("{ratio:>7.2}"));
        rows.push(vec![
            score.name().to_owned(),
            format!("{:>7}", score.threads),
            format!("{:>5.2}", score.best()),
            format!("{:>6.2}", score.median()),
            ratio,
        ]);
    }
    let cache = if is_cold { "nothing of it cached" } else { "cached, if it fits" };
    format!(
        "{} of tensors, {cache}, best and median of {} tries\n{}",
        bytes_text(bytes),
        scores[0].rates.len(),
        table(&rows)
    )
}

fn as_json(scores: &[Score], bytes: u64, is_cold: bool, open_s: f64) -> Value {
    let rows: Vec<Value> = scores
        .iter()
        .map(|score| {
            json!({ "reader": score.name(), "threads": score.threads, "gib_per_s": score.best(), "median": score.median(), "of_pread": ratio(scores, score) })
        })
        .collect();
    json!({ "bytes": bytes, "cold": is_cold, "open_s": open_s, "scores": rows })
}

/// A name, a colour, and which ways belong to it.
type Curve = (&'static str, &'static str, fn(Way) -> bool);

/// Both readers over the number of threads.
fn picture(scores: &[Score], bytes: u64, is_cold: bool) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 400.0;
    let (left, right, top, bottom) = (70.0, WIDTH - 150.0, 80.0, HEIGHT - 50.0);
    let mut svg = Svg::new(WIDTH);
    svg.text((24.0, 36.0), "Reading a checkpoint", Style::TITLE);
    let cache = if is_cold { "nothing cached" } else { "cached" };
    svg.text(
        (24.0, 56.0),
        &format!("{}, {cache}; GiB a second over threads", bytes_text(bytes)),
        Style::NOTE,
    );
    let highest = scores.iter().map(Score::best).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
        .into_iter()
        .find(|step| highest / step <= 6.0)
        .unwrap_or(100.0);
    let ceiling = (highest / step).ceil() * step;
    let y = |rate: f64| bottom - (bottom - top) * rate / ceiling;
    let mut counts: Vec<usize> = scores.iter().map(|score| score.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    let x = |count: usize| {
        let index = counts.iter().position(|&other| other == count).unwrap_or(0);
        left + (right - left) * if counts.len() > 1 { index as f64 / (counts.len() - 1) as f64 } else { 0.5 }
    };
    let mut mark = 0.0;
    while mark <= ceiling + step / 2.0 {
        svg.line((left, y(mark)), (right, y(mark)), FAINT, 1.0);
        svg.text((left - 8.0, y(mark) + 4.0), &format!("{mark:.1}"), Style::LABEL.at(Anchor::End));
        mark += step;
    }
    for &count in &counts {
        svg.text((x(count), bottom + 20.0), &count.to_string(), Style::LABEL);
    }
    let lines: [Curve; 4] = [
        ("the disk alone", "#e8590c", |way| matches!(way, Way::Disk(_))),
        ("plain pread", GREY, |way| matches!(way, Way::Plain(_))),
        ("shardfeed", "#0b7285", |way| matches!(way, Way::Parallel(_))),
        ("sequential", INK, |way| way == Way::Sequential),
    ];
    let mut labels: Vec<(f64, &str, &'static str)> = Vec::new();
    for (name, color, is_mine) in lines {
        let mut points: Vec<(usize, f64)> = scores
            .iter()
            .filter(|score| is_mine(score.way))
            .map(|score| (score.threads, score.best()))
            .collect();
        points.sort_by_key(|point| point.0);
        let points: Vec<(f64, f64)> = points.into_iter().map(|(count, rate)| (x(count), y(rate))).collect();
        if points.len() > 1 {
            svg.path(&points, color);
        }
        for &point in &points {
            svg.dot(point, 4.0, color);
        }
        if let Some(&(at, height)) = points.last() {
            if points.len() > 1 {
                labels.push((height, name, color));
            } else {
                svg.text((at + 10.0, height + 4.0), name, Style::NOTE.color(color));
            }
        }
    }
    // Names beside the ends of their lines, apart from each other.
    labels.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut lowest = f64::MIN;
    for (height, name, color) in labels {
        let height = height.max(lowest + 16.0);
        svg.text((right + 12.0, height + 4.0), name, Style::NOTE.color(color).bold());
        lowest = height;
    }
    svg.finish(HEIGHT)
}
