use shardfeed::{PlanError, PlanReport, StreamSettings};

use super::Told;
use super::panels::{self, Bars, COLUMN, Curve, Gauge, Stack};
use super::text::{basis_text, measured_text, ranks_text, tail_text};
use crate::output::{bytes_text, thousands};
use crate::svg::{Anchor, GREY, Style, Svg, fit};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 40.0;
const RIGHT: f64 = WIDTH - MARGIN - COLUMN;

/// The plan as one picture; of several world sizes, the last one's ranks.
pub fn draw(told: &Told<'_>) -> Result<String, PlanError> {
    let mut svg = Svg::new(WIDTH);
    let Some(shown) = told.reports.last() else { return Ok(svg.finish(0.0)) };
    heading(&mut svg, told, shown);
    let first = super::line::draw(&mut svg, told, shown, (MARGIN, 120.0), WIDTH - 2.0 * MARGIN) + 40.0;
    bytes_of_ranks(&mut svg, shown, (MARGIN, first));
    amplification(&mut svg, told, shown, (RIGHT, first))?;
    let second = first + 305.0;
    memory(&mut svg, told, shown, (MARGIN, second))?;
    quality(&mut svg, told, (RIGHT, second));
    let foot = second + 285.0;
    let basis = format!("What ranks read is {}. Memory is an estimate.", basis_text(shown.basis));
    svg.text((MARGIN, foot), &basis, Style::NOTE);
    let version = concat!("shardfeed ", env!("CARGO_PKG_VERSION"));
    svg.text((WIDTH - MARGIN, foot), version, Style::NOTE.at(Anchor::End));
    Ok(svg.finish(foot + 20.0))
}

fn heading(svg: &mut Svg, told: &Told<'_>, shown: &PlanReport) {
    let (plan, settings) = (&told.plan, told.plan.settings());
    let ranks = ranks_text(shown.world_size);
    let source = fit(&told.source, Style::TITLE.size, 620.0);
    svg.text((MARGIN, 46.0), &format!("Epoch {} of {source} on {ranks}", told.epoch), Style::TITLE);
    let order = format!(
        "{} sequences of {} tokens; {} steps of {}{}",
        thousands(plan.order().sequences()),
        thousands(settings.seq_len.into()),
        thousands(plan.steps()),
        thousands(plan.global_batch().into()),
        tail_text(told),
    );
    svg.text((MARGIN, 70.0), &order, Style { size: 13.0, ..Style::NOTE });
    let data = format!(
        "{} files, {} row groups, {} of column data; {}, seed {}",
        thousands(plan.manifest().files().len() as u64),
        thousands(plan.manifest().row_groups().len() as u64),
        bytes_text(plan.bytes()),
        lanes_text(settings),
        settings.seed,
    );
    svg.text((MARGIN, 89.0), &data, Style { size: 13.0, ..Style::NOTE });
}

fn lanes_text(settings: &StreamSettings) -> String {
    if settings.shuffle {
        let (lanes, window) = (thousands(settings.lanes.into()), thousands(settings.window.into()));
        format!("{lanes} lanes, shuffled within windows of {window} sequences")
    } else {
        "one lane in file order".to_owned()
    }
}

fn bytes_of_ranks(svg: &mut Svg, shown: &PlanReport, at: (f64, f64)) {
    let spread = shown.spread(|rank| rank.bytes);
    let note = if spread.min == spread.max {
        format!("each {}", bytes_text(spread.max))
    } else {
        format!(
            "{} to {}, {} on average",
            bytes_text(spread.min),
            bytes_text(spread.max),
            bytes_text(spread.mean as u64)
        )
    };
    panels::head(svg, at, "Bytes a rank reads", &note);
    let bytes: Vec<u64> = shown.ranks.iter().map(|rank| rank.bytes).collect();
    Bars { values: &bytes, color: "#4c78a8", x_title: "rank" }.draw(
        svg,
        (at.0, at.1 + 45.0),
        (COLUMN, 220.0),
    );
}

fn amplification(
    svg: &mut Svg,
    told: &Told<'_>,
    shown: &PlanReport,
    at: (f64, f64),
) -> Result<(), PlanError> {
    let note = format!("{:.3} on {}", shown.amplification, ranks_text(shown.world_size));
    panels::head(svg, at, "Read amplification by world size", &note);
    let mut world_sizes: Vec<u32> = told.reports.iter().map(|report| report.world_size).collect();
    let batch = told.plan.global_batch();
    world_sizes.extend((0..32).map(|power| 1 << power).take_while(|&size| size < batch));
    world_sizes.push(batch.min(shardfeed::WORLD_SIZE_MAX));
    world_sizes.sort_unstable();
    world_sizes.dedup();
    let (mut all, mut worst) = (Vec::new(), Vec::new());
    for world_size in world_sizes {
        let report = told.plan.report(world_size)?;
        all.push((world_size, report.amplification));
        worst.push((world_size, report.amplification_of_worst_rank));
    }
    Curve {
        lines: &[("worst rank", "#e45756", worst), ("all ranks", "#4c78a8", all)],
        bar: (1.05, "1.05"),
        marked: shown.world_size,
    }
    .draw(svg, (at.0, at.1 + 45.0), (COLUMN, 220.0));
    Ok(())
}

/// World sizes whose memory is drawn: those asked for, else some around the one shown.
const STACKS_MAX: usize = 5;

fn memory(svg: &mut Svg, told: &Told<'_>, shown: &PlanReport, at: (f64, f64)) -> Result<(), PlanError> {
    let needed = bytes_text(told.memory(shown).total());
    let note = format!("about {needed}; the budget is {}", bytes_text(told.memory_budget));
    panels::head(svg, at, "Memory of a rank", &note);
    let mut world_sizes: Vec<u32> = told.reports.iter().rev().map(|report| report.world_size).collect();
    let around = [(1, 2), (2, 1), (1, 4), (4, 1), (1, 8), (8, 1), (1, 16), (16, 1)];
    world_sizes.extend(around.iter().filter_map(|(times, by)| {
        let size = u64::from(shown.world_size) * times / by;
        u32::try_from(size).ok().filter(|size| (1..=told.plan.global_batch()).contains(size))
    }));
    let mut chosen: Vec<u32> = Vec::new();
    for world_size in world_sizes {
        if chosen.len() < STACKS_MAX && !chosen.contains(&world_size) {
            chosen.push(world_size);
        }
    }
    chosen.sort_unstable();
    let mut stacks = Vec::new();
    for world_size in chosen {
        let memory = told.memory(&told.plan.report(world_size)?);
        let name = ranks_text(world_size);
        let parts = vec![memory.windows, memory.pages, memory.batches];
        stacks.push(Stack { name, parts, is_marked: world_size == shown.world_size });
    }
    let parts = [("windows", "#4c78a8"), ("pages", "#72b7b2"), ("batches", "#eeca3b")];
    panels::stacks(svg, (at.0, at.1 + 40.0), (COLUMN, 215.0), &parts, &stacks);
    Ok(())
}

fn quality(svg: &mut Svg, told: &Told<'_>, at: (f64, f64)) {
    let Some(quality) = told.plan.quality() else {
        panels::head(svg, at, "Shuffle quality", "");
        let why = "not measured: there is no whole step, or windows are too long";
        svg.text((at.0, at.1 + 60.0), why, Style::NOTE.color(GREY));
        return;
    };
    panels::head(svg, at, "Shuffle quality", &measured_text(quality));
    let gauges = [
        Gauge {
            name: format!(
                "Row groups of a batch: {:.1}; of a random permutation {:.1}",
                quality.distinct_row_groups, quality.distinct_row_groups_at_random
            ),
            value: quality.distinct_ratio(),
            bar: shardfeed::ShuffleQuality::DISTINCT_MIN,
            more_is_better: true,
            decimals: 3,
        },
        Gauge {
            name: "Variance of batch means; of a random permutation 1".to_owned(),
            value: quality.variance_ratio,
            bar: shardfeed::ShuffleQuality::VARIANCE_MAX,
            more_is_better: false,
            decimals: 3,
        },
        Gauge {
            name: "Rank correlation with file order; 4/√row groups is promised".to_owned(),
            value: quality.correlation,
            bar: quality.correlation_max(),
            more_is_better: false,
            decimals: 4,
        },
    ];
    for (index, gauge) in gauges.iter().enumerate() {
        gauge.draw(svg, (at.0, at.1 + 55.0 + 68.0 * index as f64), COLUMN);
    }
}
