use serde_json::{Value, json};

use super::contest::{Contest, Reader, Score};
use super::starts::Starts;
use super::subject::Subject;
use crate::output::{table, thousands};

/// What was measured on one data set.
pub struct Report {
    pub name: String,
    facts: Facts,
    contest: Contest,
    starts: Starts,
}

struct Facts {
    files: usize,
    row_groups: usize,
    rows: u64,
    tokens: u64,
    bytes: u64,
}

impl Report {
    pub fn new(name: String, subject: &Subject, contest: Contest, starts: Starts) -> Self {
        let manifest = subject.data.manifest();
        let facts = Facts {
            files: manifest.files().len(),
            row_groups: manifest.row_groups().len(),
            rows: manifest.rows(),
            tokens: manifest.tokens(),
            bytes: subject.bytes(),
        };
        Self { name, facts, contest, starts }
    }

    /// A heading, a table, and a line about starts.
    pub fn as_text(&self) -> String {
        let Facts { files, row_groups, tokens, bytes, .. } = self.facts;
        let heading = format!(
            "{}: {} tokens, {} files, {} row groups, {:.2} bytes a token\n",
            self.name,
            thousands(tokens),
            thousands(files as u64),
            thousands(row_groups as u64),
            bytes as f64 / tokens.max(1) as f64
        );
        let head = ["reader", "threads", "M tokens/s", "median", "× bare", "× pages", "× raw"]
            .map(str::to_owned)
            .to_vec();
        let rows = self.contest.scores.iter().map(|score| {
            vec![
                reader_name(score.reader),
                format!("{:>7}", score.threads),
                format!("{:>10.1}", score.rates.best),
                format!("{:>6.1}", score.rates.median),
                ratio(score, self.contest.bare(score.threads)),
                ratio(score, self.contest.pages(score.threads)),
                ratio(score, self.contest.raw()),
            ]
        });
        let table = table(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
        let resumed = self.starts.resumed.iter();
        let resumed: Vec<String> =
            resumed.map(|(percent, ms)| format!("at {percent} % {:.2} ms", ms.median)).collect();
        let starts = format!(
            "opened in {:.2} ms, first batch {:.2} ms, first batch after a resume {} (medians)\n",
            self.starts.open.median,
            self.starts.first_batch.median,
            resumed.join(", ")
        );
        heading + &table + &starts
    }

    /// Everything.
    pub fn as_json(&self) -> Value {
        let Facts { files, row_groups, rows, tokens, bytes } = self.facts;
        let scores: Vec<Value> = self.contest.scores.iter().map(|score| self.score(score)).collect();
        let resumed: Vec<Value> = self
            .starts
            .resumed
            .iter()
            .map(|(percent, ms)| json!({ "percent": percent, "first_batch_ms": ms.as_json() }))
            .collect();
        json!({
            "name": self.name,
            "files": files,
            "row_groups": row_groups,
            "rows": rows,
            "tokens": tokens,
            "bytes": bytes,
            "bare_batch_rows": self.contest.bare_batch_rows,
            "readers": scores,
            "open_ms": self.starts.open.as_json(),
            "first_batch_ms": self.starts.first_batch.as_json(),
            "resumed": resumed,
        })
    }

    fn score(&self, score: &Score) -> Value {
        let (reader, arrays) = match score.reader {
            Reader::Bare => ("bare", None),
            Reader::Pages => ("pages", None),
            Reader::Raw => ("raw", None),
            Reader::Engine(arrays) => ("shardfeed", Some(arrays)),
        };
        let over = |other: Option<&Score>| {
            other.map(|other| {
                json!({
                    "best": score.rates.best / other.rates.best,
                    "median": score.rates.median / other.rates.median,
                })
            })
        };
        json!({
            "reader": reader,
            "arrays": arrays,
            "threads": score.threads,
            "tokens": score.tokens,
            "million_tokens_per_second": score.rates.as_json(),
            "over_bare": over(self.contest.bare(score.threads)),
            "over_pages": over(self.contest.pages(score.threads)),
            "over_raw": over(self.contest.raw()),
        })
    }
}

fn reader_name(reader: Reader) -> String {
    match reader {
        Reader::Bare => "bare parquet, record batches".to_owned(),
        Reader::Pages => "pages, decompressed, no more".to_owned(),
        Reader::Raw => "raw file, memory-mapped, shuffled".to_owned(),
        Reader::Engine(arrays) => format!("shardfeed, {arrays}"),
    }
}

/// Of the best rounds.
fn ratio(score: &Score, other: Option<&Score>) -> String {
    other.map_or_else(String::new, |other| format!("{:>6.2}", score.rates.best / other.rates.best))
}
