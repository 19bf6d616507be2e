use std::ops::Range;

use shardfeed_plan::{Packing, Rank, Span, StepPlan};

use crate::line_reader::LineSource;
use crate::{Error, Result};

/// Where every sequence of a step came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOrigin {
    /// The step.
    pub step: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Rank by rank, in the order of their batches.
    pub sequences: Vec<SequenceOrigin>,
}

/// Where one sequence came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceOrigin {
    /// The rank that delivers it.
    pub rank: u32,
    /// Its row in that rank's batch.
    pub row: usize,
    /// Its position in the epoch's order.
    pub position: u64,
    /// The parts of row groups that make it, in order.
    pub parts: Vec<TokenOrigin>,
}

/// A part of a row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOrigin {
    /// Name of the file, relative to the data set.
    pub file: String,
    /// Row group within the file.
    pub row_group: u32,
    /// Rows within the row group.
    pub rows: Range<u64>,
    /// The first token within the first row.
    pub first_token_of_row: u64,
    /// Tokens within the row group; end-of-document ids, which are not stored, do not count.
    pub tokens: Range<u64>,
}

pub(crate) fn explain_step(
    source: &LineSource,
    epoch: u64,
    step: u64,
    plan: &StepPlan,
    world_size: u32,
) -> Result<StepOrigin> {
    let mut sequences = Vec::with_capacity(plan.all_positions().len());
    for rank in 0..world_size {
        let positions = plan.positions(Rank::new(rank, world_size)?);
        for (row, &position) in positions.iter().enumerate() {
            let units = source.order.units(source.order.sequence(position));
            let parts =
                source.order.spans(units).map(|span| find_span(source, &span)).collect::<Result<_>>()?;
            sequences.push(SequenceOrigin { rank, row, position, parts });
        }
    }
    Ok(StepOrigin { step, epoch, sequences })
}

/// Rows and tokens under a span of units. Reads the row group's levels up to there.
fn find_span(source: &LineSource, span: &Span) -> Result<TokenOrigin> {
    let manifest = source.data.manifest();
    let facts = manifest.row_groups()[span.row_group as usize];
    let mut found: Option<TokenOrigin> = None;
    let mut look_at = |row: Row| {
        let from = span.units.start.max(row.units.start);
        let to = span.units.end.min(row.units.end);
        if from < to {
            let tokens = row.token_at(source, from)..row.token_at(source, to);
            let origin = found.get_or_insert_with(|| TokenOrigin {
                file: manifest.files()[facts.file as usize].name.clone(),
                row_group: facts.number,
                rows: row.index..row.index,
                first_token_of_row: tokens.start - row.tokens.start,
                tokens: tokens.clone(),
            });
            origin.rows.end = row.index + 1;
            origin.tokens.end = tokens.end;
        }
        row.units.end < span.units.end
    };
    let mut cursor = source.data.open_row_group(span.row_group)?.levels_only();
    let mut row = Row::default();
    loop {
        let segment = cursor.segment(usize::MAX)?;
        if segment.is_none_or(|segment| segment.starts_row) {
            let (units, tokens) = (row.close(source), row.tokens.end);
            if !look_at(row) || segment.is_none() {
                break;
            }
            row = Row { index: cursor.row(), tokens: tokens..tokens, units: units..units };
        }
        row.tokens.end += segment.map_or(0, |segment| segment.tokens as u64);
    }
    found.ok_or_else(|| Error::Damaged {
        path: source.data.path(facts.file).to_owned(),
        row_group: facts.number,
        reason: format!("it has no units {:?}", span.units),
    })
}

/// One row, in tokens and in units of its row group.
#[derive(Default)]
struct Row {
    index: u64,
    tokens: Range<u64>,
    units: Range<u64>,
}

impl Row {
    /// All tokens are known: so are the units.
    fn close(&mut self, source: &LineSource) -> u64 {
        let tokens = self.tokens.end - self.tokens.start;
        let units = match source.settings.packing {
            Packing::Concat => tokens + u64::from(source.settings.eos_id.is_some() && tokens > 0),
            Packing::Pad => tokens.div_ceil(u64::from(source.settings.seq_len)),
        };
        self.units.end = self.units.start + units;
        self.units.end
    }

    /// The first token of a unit of this row, or the row's end.
    fn token_at(&self, source: &LineSource, unit: u64) -> u64 {
        let unit_tokens = match source.settings.packing {
            Packing::Concat => 1,
            Packing::Pad => u64::from(source.settings.seq_len),
        };
        (self.tokens.start + (unit - self.units.start) * unit_tokens).min(self.tokens.end)
    }
}
