use std::time::Duration;

use indicatif::ProgressBar;

use super::bare::Bare;
use super::engine::{Engine, VARIANTS};
use super::raw::Raw;
use super::spread::Spread;
use super::subject::Subject;
use crate::args::Failure;
use crate::stop::Stop;

/// Every reader's rates on one data set, measured in turn.
pub struct Contest {
    pub scores: Vec<Score>,
    /// Rows of the record batches that suited the bare decode best.
    pub bare_batch_rows: usize,
}

/// One reader's rates.
pub struct Score {
    pub reader: Reader,
    pub threads: usize,
    /// Tokens of one pass.
    pub tokens: u64,
    /// Million tokens per second.
    pub rates: Spread,
}

/// Who reads the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The `parquet` crate, into record batches.
    Bare,
    /// The `parquet` crate, pages read and decompressed and nothing more.
    Pages,
    /// A memory-mapped raw file, on one thread, into int64.
    Raw,
    /// The engine; the name says which arrays it makes.
    Engine(&'static str),
}

/// All tokens once.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub tokens: u64,
    pub took: Duration,
}

impl Pass {
    /// Million tokens per second.
    pub fn rate(self) -> f64 {
        self.tokens as f64 / self.took.as_secs_f64().max(1e-9) / 1e6
    }
}

struct Contender<'a> {
    reader: Reader,
    threads: usize,
    pass: Box<dyn FnMut() -> Result<Pass, Failure> + 'a>,
}

impl Contest {
    /// Passes of one data set, the warm-up included.
    pub fn passes(threads: &[usize], rounds: usize) -> u64 {
        let contenders = threads.len() * (2 + VARIANTS.len()) + 1;
        (contenders * (rounds + 1)) as u64
    }

    /// One pass of each that does not count, then round after round, so that what disturbs the machine disturbs all.
    pub fn hold(
        subject: &Subject,
        threads: &[usize],
        rounds: usize,
        bar: &ProgressBar,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let bare = Bare::new(subject, stop)?;
        let raw = Raw::new(subject, stop)?;
        let mut contenders = contenders(subject, &bare, &raw, threads, stop)?;
        let mut passes: Vec<Vec<Pass>> = contenders.iter().map(|_| Vec::with_capacity(rounds)).collect();
        for round in 0..=rounds {
            for (contender, passes) in contenders.iter_mut().zip(&mut passes) {
                let pass = (contender.pass)()?;
                bar.inc(1);
                if round > 0 {
                    passes.push(pass);
                }
            }
        }
        let scores = contenders.iter().zip(passes).map(|(contender, passes)| Score {
            reader: contender.reader,
            threads: contender.threads,
            tokens: passes.first().map_or(0, |pass| pass.tokens),
            rates: Spread::of_rates(passes.into_iter().map(Pass::rate).collect()),
        });
        Ok(Self { scores: scores.collect(), bare_batch_rows: bare.batch_rows })
    }

    /// The bare decode on so many threads.
    pub fn bare(&self, threads: usize) -> Option<&Score> {
        self.scores.iter().find(|score| score.reader == Reader::Bare && score.threads == threads)
    }

    /// The pages alone on so many threads.
    pub fn pages(&self, threads: usize) -> Option<&Score> {
        self.scores.iter().find(|score| score.reader == Reader::Pages && score.threads == threads)
    }

    /// The raw file.
    pub fn raw(&self) -> Option<&Score> {
        self.scores.iter().find(|score| score.reader == Reader::Raw)
    }
}

fn contenders<'a>(
    subject: &'a Subject,
    bare: &'a Bare<'a>,
    raw: &'a Raw,
    threads: &[usize],
    stop: &'a Stop,
) -> Result<Vec<Contender<'a>>, Failure> {
    let mut contenders = Vec::new();
    for &threads in threads {
        let pass = Box::new(move || bare.pass(threads, stop));
        contenders.push(Contender { reader: Reader::Bare, threads, pass });
    }
    for &threads in threads {
        let pass = Box::new(move || bare.pages_pass(threads, stop));
        contenders.push(Contender { reader: Reader::Pages, threads, pass });
    }
    contenders.push(Contender { reader: Reader::Raw, threads: 1, pass: Box::new(move || raw.pass(stop)) });
    for variant in VARIANTS {
        for &threads in threads {
            let mut engine = Engine::new(subject, variant, threads)?;
            let pass = Box::new(move || engine.pass(stop));
            contenders.push(Contender { reader: Reader::Engine(variant.name), threads, pass });
        }
    }
    Ok(contenders)
}
