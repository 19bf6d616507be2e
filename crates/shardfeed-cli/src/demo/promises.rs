use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::ProgressBar;
use shardfeed::sample::{SampleData, WriteOptions, write_sample};
use shardfeed::{
    Batch, DataSet, Packing, Rank, ScanOptions, ShardConfig, StreamState, StreamingParquetLoader,
    TokenLoader, TokenLoaderBuilder, read_state, scan,
};

use super::Check;
use super::job::{Job, Step};
use super::{checkpoint, takeover};
use crate::args::Failure;
use crate::digest::{batch_digest, input_tokens, label_tokens, token_digest};
use crate::output::thousands;

const SEQ_LEN: u32 = 128;
const GLOBAL_BATCH: u32 = 24;
const SEED: u64 = 7;

/// Makes the data set and checks every promise over it, in order.
pub fn check_all(dir: &Path, scratch: &Path, bar: &ProgressBar) -> Result<Vec<Check>, Failure> {
    let demo = Demo::make(dir, scratch)?;
    let promises: [Promise; 14] = [
        ("every token exactly once an epoch", Demo::every_token_once),
        ("every token but a row's first is a label once", Demo::every_label_once),
        ("packing \"pad\": every row exactly once", Demo::every_row_once),
        ("the same steps at every world size", Demo::same_steps_at_every_world_size),
        ("stop on 4 ranks, resume on 3: as if never stopped", Demo::stop_and_resume),
        ("the state is small and the same on every rank", Demo::state_is_small_and_equal),
        ("resuming is a seek, not a replay", Demo::resume_is_a_seek),
        ("another epoch, another order, the same tokens", Demo::another_epoch),
        ("skipped steps leave all others as they were", Demo::skip),
        ("a damaged state is refused", Demo::damaged_state),
        ("file by file: each file has one owner, a restart loses nothing", Demo::file_by_file),
        ("a worker is killed: the others take over, every row once", |demo| takeover::check(&demo.data)),
        ("a checkpoint of torch is read and converted, without torch", |demo| {
            checkpoint::check_reading(&demo.dir)
        }),
        ("a flipped byte in it is found and named", |demo| {
            checkpoint::check_damage(&demo.dir, &demo.scratch)
        }),
    ];
    bar.set_length(promises.len() as u64);
    let mut checks = Vec::new();
    for (promise, check) in promises {
        checks.push(Check { promise, seen: check(&demo).map_err(|wrong| wrong.0) });
        bar.inc(1);
    }
    Ok(checks)
}

type Promise = (&'static str, fn(&Demo) -> Result<String, Wrong>);

/// What did not hold.
pub(super) struct Wrong(pub String);

impl From<shardfeed::Error> for Wrong {
    fn from(error: shardfeed::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Self {
        Self(failure.to_string())
    }
}

pub(super) fn ensure(holds: bool, otherwise: &str) -> Result<(), Wrong> {
    if holds { Ok(()) } else { Err(Wrong(otherwise.to_owned())) }
}

struct Demo {
    /// What may be kept goes here.
    dir: PathBuf,
    /// States of jobs go here.
    scratch: PathBuf,
    data: PathBuf,
    rows: Arc<DataSet>,
    /// One uninterrupted epoch on one rank.
    reference: Vec<Step>,
}

impl Demo {
    fn make(dir: &Path, scratch: &Path) -> Result<Self, Failure> {
        let data = dir.join("data");
        std::fs::create_dir(&data)?;
        let options = WriteOptions { rows_per_group: 100, page_bytes: 4096, ..WriteOptions::default() };
        let sample = SampleData { files: 12, rows_per_file: 500, row_tokens_max: 300, seed: 1, options };
        write_sample(&data, &sample)?;
        let (rows, _) = scan(&(&data).into(), &ScanOptions::default())?;
        let mut demo =
            Self { dir: dir.to_owned(), scratch: scratch.to_owned(), data, rows, reference: Vec::new() };
        demo.reference = steps_of(&mut demo.loader().build()?)?;
        Ok(demo)
    }

    fn loader(&self) -> TokenLoaderBuilder {
        TokenLoader::builder(&self.data, SEQ_LEN, GLOBAL_BATCH).seed(SEED)
    }

    fn job(&self, name: &str, world_size: u32) -> Job<'_> {
        Job {
            data: &self.data,
            seq_len: SEQ_LEN,
            global_batch: GLOBAL_BATCH,
            seed: SEED,
            world_size,
            steps: None,
            resume_from: None,
            states: self.scratch.join(name),
        }
    }

    /// All rows, straight from the files.
    fn all_rows(&self) -> Result<Vec<Vec<u32>>, Wrong> {
        let mut rows = Vec::new();
        for group in 0..self.rows.manifest().row_groups().len() {
            let mut cursor = self.rows.open_row_group(group as u32)?;
            while let Some(segment) = cursor.segment(usize::MAX)? {
                if segment.starts_row {
                    rows.push(Vec::new());
                }
                let row = rows.last_mut().expect("a row group begins with a row");
                cursor.read(segment.tokens, row)?;
            }
        }
        Ok(rows)
    }

    fn every_token_once(&self) -> Result<String, Wrong> {
        let stored = token_digest(self.all_rows()?.into_iter().flatten());
        let batches = self.loader().build()?.batches().collect::<Result<Vec<Batch>, _>>()?;
        let delivered = token_digest(batches.iter().flat_map(input_tokens));
        ensure(stored == delivered, "the tokens delivered are not those stored")?;
        Ok(format!("{} tokens in {} steps", thousands(stored.0), thousands(batches.len() as u64)))
    }

    fn every_label_once(&self) -> Result<String, Wrong> {
        let rows = self.all_rows()?;
        let expected = token_digest(rows.iter().flat_map(|row| row[1..].iter().copied()));
        let batches = self.loader().build()?.batches().collect::<Result<Vec<Batch>, _>>()?;
        let labels = token_digest(batches.iter().flat_map(label_tokens));
        ensure(labels == expected, "the labels are not each row's tokens but its first")?;
        let claimed: u64 = batches.iter().map(|batch| batch.valid_labels).sum();
        ensure(claimed == labels.0, "batches count their labels wrong")?;
        Ok(format!("{} labels", thousands(labels.0)))
    }

    fn every_row_once(&self) -> Result<String, Wrong> {
        let rows = self.all_rows()?;
        let mut loader = self.loader().packing(Packing::Pad).build()?;
        let batches = loader.batches().collect::<Result<Vec<Batch>, _>>()?;
        let stored = token_digest(rows.iter().flatten().copied());
        ensure(
            token_digest(batches.iter().flat_map(input_tokens)) == stored,
            "tokens were lost or repeated",
        )?;
        let pieces: usize = rows.iter().map(|row| row.len().div_ceil(SEQ_LEN as usize)).sum();
        let delivered: usize = batches.iter().map(|batch| batch.real_rows).sum();
        ensure(pieces == delivered, "rows were not cut as they should be")?;
        Ok(format!("{} rows as {} sequences", thousands(rows.len() as u64), thousands(pieces as u64)))
    }

    fn same_steps_at_every_world_size(&self) -> Result<String, Wrong> {
        for world_size in [2, 5, 24] {
            let mut steps: Vec<Step> = Vec::new();
            for rank in 0..world_size {
                let rank = Rank::new(rank, world_size).map_err(shardfeed::Error::from)?;
                let own = steps_of(&mut self.loader().rank(rank).build()?)?;
                if steps.is_empty() {
                    steps = own;
                    continue;
                }
                ensure(steps.len() == own.len(), "ranks see unequally many steps")?;
                for (all, one) in steps.iter_mut().zip(own) {
                    all.digest = all.digest.wrapping_add(one.digest);
                    all.sequences += one.sequences;
                }
            }
            ensure(steps == self.reference, &format!("world size {world_size} sees other steps"))?;
        }
        Ok(format!("1, 2, 5 and 24 ranks: {} equal steps", thousands(self.reference.len() as u64)))
    }

    /// Ranks as processes: stop them, start others.
    fn stop_and_resume(&self) -> Result<String, Wrong> {
        let stop_after = self.reference.len() as u64 * 2 / 5;
        let four = Job { steps: Some(stop_after), ..self.job("four", 4) };
        let before = four.run()?;
        let saved = four.state_of(2);
        let three = Job { resume_from: Some(&saved), ..self.job("three", 3) };
        let after = three.run()?;
        let together: Vec<Step> = before.into_iter().chain(after).collect();
        ensure(
            together == self.reference,
            "the steps before and after differ from those of an uninterrupted run",
        )?;
        Ok(format!("7 processes, stopped at step {stop_after} of {}", self.reference.len()))
    }

    fn state_is_small_and_equal(&self) -> Result<String, Wrong> {
        let job = Job { steps: Some(5), ..self.job("equal", 4) };
        job.run()?;
        let states =
            (0..4).map(|rank| read_state(&job.state_of(rank))).collect::<Result<Vec<StreamState>, _>>()?;
        ensure(states.windows(2).all(|pair| pair[0] == pair[1]), "ranks saved different states")?;
        let bytes = states[0].to_json().len();
        ensure(bytes < 1024, "a state is over 1 KiB")?;
        Ok(format!("{bytes} bytes of JSON"))
    }

    fn resume_is_a_seek(&self) -> Result<String, Wrong> {
        let mut loader = self.loader().build()?;
        let middle = self.reference.len() as u64 / 2;
        // Only one step is left in the epoch, so what is opened is opened for it.
        loader.skip(0..middle)?;
        loader.skip(middle + 1..u64::MAX)?;
        let before = loader.read_counts();
        let batch = loader.next_batch()?.ok_or_else(|| Wrong("no batch".to_owned()))?;
        ensure(batch_digest(&batch) == self.reference[middle as usize].digest, "the wrong step came")?;
        let opened = loader.read_counts().row_groups - before.row_groups;
        let most = 2 * u64::from(GLOBAL_BATCH);
        ensure(opened <= most, &format!("{opened} row groups were opened for {GLOBAL_BATCH} sequences"))?;
        Ok(format!("step {middle}: {opened} row groups opened for {GLOBAL_BATCH} sequences"))
    }

    fn another_epoch(&self) -> Result<String, Wrong> {
        let mut loader = self.loader().epoch(1).build()?;
        let batches = loader.batches().collect::<Result<Vec<Batch>, _>>()?;
        let stored = token_digest(self.all_rows()?.into_iter().flatten());
        ensure(
            token_digest(batches.iter().flat_map(input_tokens)) == stored,
            "tokens were lost or repeated",
        )?;
        let same =
            batches.iter().zip(&self.reference).filter(|(batch, step)| batch_digest(batch) == step.digest);
        let same = same.count();
        ensure(same == 0, &format!("{same} steps are the same in both epochs"))?;
        Ok(format!("none of {} steps alike", thousands(batches.len() as u64)))
    }

    fn skip(&self) -> Result<String, Wrong> {
        let mut loader = self.loader().build()?;
        loader.skip(10..20)?;
        let steps = steps_of(&mut loader)?;
        let expected: Vec<Step> =
            self.reference.iter().filter(|step| !(10..20).contains(&step.number)).cloned().collect();
        ensure(steps == expected, "other steps changed")?;
        Ok("steps 10 to 19 left out".to_owned())
    }

    fn damaged_state(&self) -> Result<String, Wrong> {
        let loader = self.loader().build()?;
        let json = loader.state().to_json().replace("\"position\":0", "\"position\":24");
        match StreamState::from_json(&json) {
            Err(error) => Ok(error.to_string().split(';').next().unwrap_or_default().to_owned()),
            Ok(_) => Err(Wrong("a state with a changed position was taken".to_owned())),
        }
    }

    fn file_by_file(&self) -> Result<String, Wrong> {
        let mut delivered = (0, 0);
        let mut files = 0;
        for rank in 0..5 {
            let config = ShardConfig { rank, world_size: 5, seed: SEED };
            let new = || StreamingParquetLoader::new(&self.data, config, 8, 10_000);
            let mut loader = new()?;
            files += loader.num_files();
            let mut file = 0;
            while let Some(batches) = loader.next_batches()? {
                let mut restarted = new()?;
                restarted.resume_from(file);
                ensure(restarted.next_batches()?.as_ref() == Some(&batches), "a restart begins elsewhere")?;
                file += 1;
                let inputs = batches
                    .iter()
                    .flat_map(|batch| (0..batch.batch_size).filter_map(|row| batch.get_input(row)));
                let (count, sum) = token_digest(inputs.flatten().copied().filter(|&token| token != 0));
                delivered = (delivered.0 + count, sum.wrapping_add(delivered.1));
            }
        }
        ensure(files == self.rows.manifest().files().len(), "some file has no owner, or two")?;
        let rows = self.all_rows()?;
        let stored = token_digest(rows.iter().flatten().copied().filter(|&token| token != 0));
        ensure(delivered == stored, "tokens were lost or repeated")?;
        Ok(format!("{files} files on 5 workers"))
    }
}

fn steps_of(loader: &mut TokenLoader) -> Result<Vec<Step>, shardfeed::Error> {
    loader
        .batches()
        .map(|batch| {
            let batch = batch?;
            Ok(Step { number: batch.step, sequences: batch.real_rows as u64, digest: batch_digest(&batch) })
        })
        .collect()
}
