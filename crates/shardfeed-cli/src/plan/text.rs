use serde_json::{Value, json};
use shardfeed::{Basis, PlanReport, RankLoad, ShuffleQuality, Spread, Tail};

use super::Told;
use crate::output::{bytes_text, table, thousands};

pub fn as_text(told: &Told<'_>, list_ranks: bool) -> String {
    let plan = &told.plan;
    let (manifest, settings) = (plan.manifest(), plan.settings());
    let lines = [
        format!(
            "data         {}: {} files, {} row groups, {} tokens, {} of column data",
            told.source,
            thousands(manifest.files().len() as u64),
            thousands(manifest.row_groups().len() as u64),
            thousands(manifest.tokens()),
            bytes_text(plan.bytes())
        ),
        format!(
            "epoch        {}: {} sequences of {} tokens, packing {}, seed {}",
            told.epoch,
            thousands(plan.order().sequences()),
            thousands(settings.seq_len.into()),
            settings.packing.name(),
            settings.seed
        ),
        format!(
            "steps        {} of {} sequences{}",
            thousands(plan.steps()),
            thousands(plan.global_batch().into()),
            tail_text(told)
        ),
        format!(
            "lanes        {} of about {} sequences{}",
            thousands(settings.lanes.into()),
            thousands(plan.order().sequences().div_ceil(settings.lanes.into())),
            if settings.shuffle {
                format!(", shuffled within windows of {}", thousands(settings.window.into()))
            } else {
                ", in file order".to_owned()
            }
        ),
    ];
    let mut text = lines.join("\n") + "\n\n" + &quality_table(plan.quality()) + "\n" + &ranks_table(told);
    for note in notes(told) {
        text = text + "\n" + &note + "\n";
    }
    if list_ranks {
        for report in &told.reports {
            text = text + "\n" + &every_rank(report);
        }
    }
    text
}

/// What becomes of sequences that fill no step.
pub fn tail_text(told: &Told<'_>) -> String {
    let (left, batch) = (told.plan.tail_sequences(), u64::from(told.plan.global_batch()));
    match told.plan.tail() {
        _ if left == 0 => String::new(),
        Tail::Drop => format!("; {} sequences at the end are dropped", thousands(left)),
        Tail::Wrap => format!("; the last takes {} from the epoch's beginning", thousands(batch - left)),
        Tail::Pad | Tail::Error => format!("; the last has {}, the rest is padding", thousands(left)),
    }
}

/// "1 rank", "8 ranks".
pub fn ranks_text(world_size: u32) -> String {
    match world_size {
        1 => "1 rank".to_owned(),
        many => format!("{} ranks", thousands(many.into())),
    }
}

/// How the figures of reading were found, in words.
pub fn basis_text(basis: Basis) -> String {
    match basis {
        Basis::Exact => "exact, every step counted".to_owned(),
        Basis::Sampled { steps, of } => {
            format!("measured over {} of {} steps", thousands(steps), thousands(of))
        }
        Basis::WholeLanes { steps, of } => format!(
            "estimated: ranks are taken to read all of each lane they visit in {} of {} steps",
            thousands(steps),
            thousands(of)
        ),
    }
}

fn quality_table(quality: Option<&ShuffleQuality>) -> String {
    let Some(quality) = quality else {
        return "shuffle quality is not measured: there is no whole step, or windows are too long\n"
            .to_owned();
    };
    let mark = |holds: bool| if holds { "✓" } else { "✗" };
    let row = |name: &str, value: String, bar: String, holds| {
        vec![name.to_owned(), value, bar, mark(holds).to_owned()]
    };
    let (distinct, variance) = (quality.distinct_ratio(), quality.variance_ratio);
    let rows = [
        ["shuffle quality", "here", "promised", ""].map(str::to_owned).to_vec(),
        row(
            &format!(
                "row groups of a batch: {:.1}, at random {:.1}",
                quality.distinct_row_groups, quality.distinct_row_groups_at_random
            ),
            format!("{distinct:.3}"),
            format!("at least {}", ShuffleQuality::DISTINCT_MIN),
            distinct >= ShuffleQuality::DISTINCT_MIN,
        ),
        row(
            "variance of batch means, at random 1",
            format!("{variance:.3}"),
            format!("at most {}", ShuffleQuality::VARIANCE_MAX),
            variance <= ShuffleQuality::VARIANCE_MAX,
        ),
        row(
            "rank correlation with file order",
            format!("{:.4}", quality.correlation),
            format!("at most {:.4}", quality.correlation_max()),
            quality.correlation <= quality.correlation_max(),
        ),
    ];
    table(&rows) + &measured_text(quality) + "\n"
}

pub fn measured_text(quality: &ShuffleQuality) -> String {
    format!(
        "measured over {} of {} whole steps",
        thousands(quality.steps_measured),
        thousands(quality.whole_steps)
    )
}

fn ranks_table(told: &Told<'_>) -> String {
    let head = [
        "world size",
        "sequences/rank",
        "lanes/rank",
        "row groups/rank",
        "bytes/rank",
        "amplification",
        "worst rank",
        "memory/rank",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for report in &told.reports {
        let range = |figure: fn(&RankLoad) -> u64, words: fn(u64) -> String| {
            let Spread { min, max, .. } = report.spread(figure);
            let (min, max) = (words(min), words(max));
            if min == max { min } else { format!("{min} to {max}") }
        };
        rows.push(vec![
            thousands(report.world_size.into()),
            range(|rank| rank.sequences, thousands),
            range(|rank| rank.lanes, thousands),
            range(|rank| rank.row_groups, thousands),
            range(|rank| rank.bytes, bytes_text),
            format!("{:.3}", report.amplification),
            format!("{:.3}", report.amplification_of_worst_rank),
            bytes_text(told.memory(report).total()),
        ]);
    }
    table(&rows)
}

fn notes(told: &Told<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let bases: Vec<Basis> = told.reports.iter().map(|report| report.basis).collect();
    if let Some(basis) = bases.first() {
        notes.push(format!("What ranks read is {}. Memory is an estimate.", basis_text(*basis)));
    }
    for report in &told.reports {
        let memory = told.memory(report).total();
        if memory > told.memory_budget {
            notes.push(format!(
                "On {} the memory budget of {} is too small: use more ranks, a smaller window or fewer lanes, \
                 or allow more with --memory-budget.",
                ranks_text(report.world_size),
                bytes_text(told.memory_budget)
            ));
        }
    }
    if told.reports.iter().any(|report| report.amplification > 1.05) {
        let batch = told.plan.global_batch();
        let (lanes, auto) = (told.plan.settings().lanes, shardfeed::StreamSettings::auto_lanes(batch));
        notes.push(if lanes.is_multiple_of(batch) {
            "The short last step is dealt anew, which weighs in an epoch of so few steps.".to_owned()
        } else {
            format!(
                "Ranks share lanes, and each reads them: with a multiple of the global batch, such as {auto} lanes, \
                 they would not."
            )
        });
    }
    notes
}

fn every_rank(report: &PlanReport) -> String {
    let head = [
        format!("rank of {}", thousands(report.world_size.into())),
        "sequences".to_owned(),
        "lanes".to_owned(),
        "row groups".to_owned(),
        "blocks".to_owned(),
        "bytes".to_owned(),
    ];
    let rows = (0_u64..).zip(&report.ranks).map(|(index, rank)| {
        [index, rank.sequences, rank.lanes, rank.row_groups, rank.blocks, rank.bytes].map(thousands).to_vec()
    });
    table(&std::iter::once(head.to_vec()).chain(rows).collect::<Vec<_>>())
}

pub fn as_json(told: &Told<'_>, list_ranks: bool) -> Value {
    let plan = &told.plan;
    let (manifest, settings) = (plan.manifest(), plan.settings());
    let quality = plan.quality().map(|quality| {
        json!({
            "steps_measured": quality.steps_measured,
            "whole_steps": quality.whole_steps,
            "distinct_row_groups": quality.distinct_row_groups,
            "distinct_row_groups_at_random": quality.distinct_row_groups_at_random,
            "distinct_ratio": quality.distinct_ratio(),
            "distinct_ratio_min": ShuffleQuality::DISTINCT_MIN,
            "variance_ratio": quality.variance_ratio,
            "variance_ratio_max": ShuffleQuality::VARIANCE_MAX,
            "correlation": quality.correlation,
            "correlation_max": quality.correlation_max(),
            "holds": quality.holds(),
        })
    });
    json!({
        "fingerprint": manifest.fingerprint().to_string(),
        "files": manifest.files().len(),
        "row_groups": manifest.row_groups().len(),
        "tokens": manifest.tokens(),
        "column_bytes": plan.bytes(),
        "epoch": told.epoch,
        "seed": settings.seed,
        "shuffle": settings.shuffle,
        "packing": settings.packing.name(),
        "eos_id": settings.eos_id,
        "seq_len": settings.seq_len,
        "global_batch": plan.global_batch(),
        "lanes": settings.lanes,
        "window": settings.window,
        "sequences": plan.order().sequences(),
        "steps": plan.steps(),
        "tail": plan.tail().name(),
        "tail_sequences": plan.tail_sequences(),
        "shuffle_quality": quality,
        "memory_budget": told.memory_budget,
        "world_sizes": told.reports.iter().map(|report| world_size(told, report, list_ranks)).collect::<Vec<_>>(),
    })
}

fn world_size(told: &Told<'_>, report: &PlanReport, list_ranks: bool) -> Value {
    let spread = |figure: fn(&RankLoad) -> u64| {
        let Spread { min, mean, max } = report.spread(figure);
        json!({ "min": min, "mean": mean, "max": max })
    };
    let basis = match report.basis {
        Basis::Exact => json!({ "kind": "exact" }),
        Basis::Sampled { steps, of } => json!({ "kind": "sampled", "steps": steps, "of": of }),
        Basis::WholeLanes { steps, of } => json!({ "kind": "whole_lanes", "steps": steps, "of": of }),
    };
    let memory = told.memory(report);
    let mut value = json!({
        "world_size": report.world_size,
        "sequences": spread(|rank| rank.sequences),
        "lanes": spread(|rank| rank.lanes),
        "row_groups": spread(|rank| rank.row_groups),
        "blocks": spread(|rank| rank.blocks),
        "bytes": spread(|rank| rank.bytes),
        "amplification": report.amplification,
        "amplification_of_blocks": report.amplification_of_blocks,
        "amplification_of_worst_rank": report.amplification_of_worst_rank,
        "basis": basis,
        "memory": { "windows": memory.windows, "pages": memory.pages, "batches": memory.batches,
                    "total": memory.total() },
    });
    if list_ranks {
        let rank = |rank: &RankLoad| {
            json!({ "sequences": rank.sequences, "lanes": rank.lanes, "row_groups": rank.row_groups,
                    "blocks": rank.blocks, "bytes": rank.bytes })
        };
        value["ranks"] = report.ranks.iter().map(rank).collect();
    }
    value
}
