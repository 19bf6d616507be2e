//! The epoch's line: row groups by file, lanes by rank.

use std::ops::Range;

use shardfeed::PlanReport;

use super::Told;
use crate::output::thousands;
use crate::svg::{Anchor, FAINT, INK, Style, Svg, fit, width_of};

/// Lanes that are drawn; of more than [`LANES_WHOLE`], only as many as can be told apart.
const LANES_WHOLE: u32 = 64;
const LANES_ENLARGED: u32 = 24;
/// Cells of a strip, at most.
const CELLS_MAX: u64 = 560;
const STRIP: f64 = 26.0;
const THIN_STRIP: f64 = 10.0;

/// Draws it, and returns where it ends.
pub fn draw(svg: &mut Svg, told: &Told<'_>, shown: &PlanReport, (x, y): (f64, f64), width: f64) -> f64 {
    let order = told.plan.order();
    let lanes = told.plan.settings().lanes;
    let drawn = if lanes > LANES_WHOLE { LANES_ENLARGED } else { lanes };
    svg.text((x, y + 14.0), "The epoch as a line of row groups, cut into lanes", Style::HEAD);
    let note = if drawn < lanes {
        format!("lanes 0 to {} of {}, enlarged below", drawn - 1, thousands(lanes.into()))
    } else {
        format!("{} lanes", thousands(lanes.into()))
    };
    svg.text((x + width, y + 14.0), &note, Style::NOTE.at(Anchor::End));
    svg.line((x, y + 24.0), (x + width, y + 24.0), FAINT, 1.0);

    let whole = 0..order.line().units();
    let unit = |sequence: u64| (sequence * order.units_per_sequence()).min(whole.end);
    let seen = 0..unit(order.sequences_of(drawn - 1).end).max(1);
    let top = y + 38.0;
    strip_of_files(svg, told, (x, top), width, &whole);
    let mut below = top + STRIP;
    if drawn < lanes {
        strip_of_lanes(svg, told, shown, (x, below + 2.0), width);
        below += 2.0 + THIN_STRIP;
        let part = width * seen.end as f64 / whole.end as f64;
        svg.polygon(
            &[
                (x, below + 2.0),
                (x + part.max(1.0), below + 2.0),
                (x + width, below + 26.0),
                (x, below + 26.0),
            ],
            "#eef1f5",
        );
        below += 28.0;
        strip_of_files(svg, told, (x, below), width, &seen);
        below += STRIP;
    }
    below += 4.0;
    let across = |sequence: u64| x + width * unit(sequence) as f64 / seen.end as f64;
    let cells: Vec<LaneCell> = (0..drawn)
        .map(|lane| {
            let sequences = order.sequences_of(lane);
            let (from, to) = (across(sequences.start), across(sequences.end));
            LaneCell { from, width: to - from, ranks: told.plan.ranks_of_lane(lane, shown.world_size) }
        })
        .collect();
    // All or none: labels of only the narrow numbers would look as if the others had no rank.
    let has_labels = cells.iter().all(LaneCell::has_room);
    for cell in &cells {
        cell.draw(svg, below, shown.world_size, has_labels);
    }
    svg.text((x, below + 60.0), "lanes, by the rank that delivers them", Style::LABEL.at(Anchor::Start));
    legends(svg, told, shown, (x, below + 84.0), width);
    below + 84.0
}

/// All lanes in the colors of their ranks; where they are thinner than a cell, one stands for its neighbours.
fn strip_of_lanes(svg: &mut Svg, told: &Told<'_>, shown: &PlanReport, (x, y): (f64, f64), width: f64) {
    let lanes = u64::from(told.plan.settings().lanes);
    let cells = lanes.min(CELLS_MAX / 2);
    let cell = width / cells as f64;
    for number in 0..cells {
        let ranks = told.plan.ranks_of_lane((number * lanes / cells) as u32, shown.world_size);
        if let Some(&rank) = ranks.first() {
            let color = color_of(rank, shown.world_size);
            svg.rect((x + cell * number as f64, y), (cell, THIN_STRIP), &color);
        }
    }
}

/// Bands of a lane that ranks share, at most.
const BANDS_MAX: usize = 6;

const LANE_HEIGHT: f64 = 44.0;

/// A lane as it is drawn.
struct LaneCell {
    from: f64,
    width: f64,
    ranks: Vec<u32>,
}

impl LaneCell {
    const LABEL: Style = Style::LABEL.color(INK);

    fn label(&self) -> String {
        match self.ranks.as_slice() {
            [] => String::new(),
            [one] => one.to_string(),
            // Sorted, so that these are neighbours.
            [first, .., last] if (last - first) as usize + 1 == self.ranks.len() => format!("{first}–{last}"),
            several => format!("{} ranks", several.len()),
        }
    }

    /// Without the gap to the next lane.
    fn inner_width(&self) -> f64 {
        (self.width - if self.width > 4.0 { 1.2 } else { 0.0 }).max(0.0)
    }

    fn has_room(&self) -> bool {
        width_of(&self.label(), Self::LABEL.size) + 2.0 <= self.inner_width()
    }

    fn draw(&self, svg: &mut Svg, y: f64, world_size: u32, has_label: bool) {
        let (inner, count) = (self.inner_width(), self.ranks.len());
        let bands = count.clamp(1, BANDS_MAX);
        let thick = LANE_HEIGHT / bands as f64;
        for band in 0..bands {
            let rank = self.ranks.get(band * count / bands);
            let color = rank.map_or_else(|| FAINT.to_owned(), |&rank| color_of(rank, world_size));
            svg.rect((self.from, y + thick * band as f64), (inner, thick), &color);
        }
        let label = self.label();
        if has_label && !label.is_empty() {
            let middle = (self.from + inner / 2.0, y + LANE_HEIGHT / 2.0);
            let plate = (width_of(&label, Self::LABEL.size) + 4.0).min(inner);
            svg.rect((middle.0 - plate / 2.0, middle.1 - 8.0), (plate, 16.0), "#ffffff");
            svg.text((middle.0, middle.1 + 4.0), &label, Self::LABEL);
        }
    }
}

/// Row groups under a part of the line, each in the color of its file; neighbours of one color are one shape.
fn strip_of_files(svg: &mut Svg, told: &Told<'_>, (x, y): (f64, f64), width: f64, units: &Range<u64>) {
    let (line, manifest) = (told.plan.order().line(), told.plan.manifest());
    let files = manifest.files().len() as u32;
    let file_of = |row_group: u32| manifest.row_groups()[row_group as usize].file;
    let across = |unit: u64| x + width * (unit - units.start) as f64 / (units.end - units.start) as f64;
    let mut at = units.start;
    let mut cells = Vec::new();
    while let Some((row_group, whole)) = line.row_group_at(at).filter(|_| at < units.end) {
        // Where row groups are thinner than a cell, one of them stands for its neighbours.
        let thinnest = ((units.end - units.start) / CELLS_MAX).max(1);
        let end = whole.end.max(at + thinnest).min(units.end);
        cells.push((at..end, file_of(row_group)));
        at = end;
    }
    let gap = if cells.len() <= 200 { 0.8 } else { 0.0 };
    for (cell, file) in cells {
        let (from, to) = (across(cell.start), across(cell.end));
        svg.rect((from, y), ((to - from - gap).max(0.3), STRIP), &file_color(file, files));
    }
}

fn legends(svg: &mut Svg, told: &Told<'_>, shown: &PlanReport, (x, y): (f64, f64), width: f64) {
    let files = told.plan.manifest().files();
    let half = width / 2.0 - 20.0;
    if files.len() <= 4 {
        let room = half / files.len() as f64;
        for (index, file) in (0_u32..).zip(files) {
            let at = x + room * f64::from(index);
            svg.rect((at, y - 9.0), (10.0, 10.0), &file_color(index, files.len() as u32));
            let name = fit(&file.name, Style::LABEL.size, room - 24.0);
            svg.text((at + 15.0, y), &name, Style::LABEL.at(Anchor::Start));
        }
    } else {
        let count = format!("{} files", thousands(files.len() as u64));
        let (first, last) = (&files[0].name, &files[files.len() - 1].name);
        let colors: Vec<String> = (0..40).map(|n| gradient(WARM, f64::from(n) / 39.0)).collect();
        scale(svg, (x, y), half, &colors, [first, &count, last]);
    }
    let x = x + width / 2.0 + 20.0;
    if shown.world_size <= SOME {
        let room = half / f64::from(shown.world_size);
        for rank in 0..shown.world_size {
            let at = x + room * f64::from(rank);
            svg.rect((at, y - 9.0), (10.0, 10.0), &color_of(rank, shown.world_size));
            svg.text((at + 15.0, y), &format!("rank {rank}"), Style::LABEL.at(Anchor::Start));
        }
    } else {
        let colors: Vec<String> = (0..40).map(|n| gradient(COOL, f64::from(n) / 39.0)).collect();
        let last = format!("rank {}", thousands(u64::from(shown.world_size) - 1));
        scale(svg, (x, y), half, &colors, ["rank 0", "", &last]);
    }
}

/// A scale of colors between two words.
fn scale(svg: &mut Svg, (x, y): (f64, f64), width: f64, colors: &[String], [from, middle, to]: [&str; 3]) {
    let words = [from, to].map(|word| fit(word, Style::LABEL.size, 150.0));
    let [left, right] = words.each_ref().map(|word| width_of(word, Style::LABEL.size) + 6.0);
    let middle_room = if middle.is_empty() { 0.0 } else { width_of(middle, Style::LABEL.size) + 14.0 };
    svg.text((x, y), &words[0], Style::LABEL.at(Anchor::Start));
    let bar = (width - left - right - middle_room).clamp(40.0, 160.0);
    let cell = bar / colors.len() as f64;
    for (index, color) in colors.iter().enumerate() {
        svg.rect(
            (x + left + cell * index as f64, y - 9.0),
            (if index + 1 < colors.len() { cell + 1.0 } else { cell }, 10.0),
            color,
        );
    }
    svg.text((x + left + bar + 6.0, y), &words[1], Style::LABEL.at(Anchor::Start));
    if !middle.is_empty() {
        let at = x + left + bar + right + 10.0;
        svg.text((at, y), &format!("({middle})"), Style::LABEL.at(Anchor::Start));
    }
}

/// Up to so many things have colors of their own; more are on a scale.
const SOME: u32 = 8;
const OF_SOME: [&str; 8] =
    ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#eeca3b", "#b279a2", "#9d755d"];
const OF_SOME_FILES: [&str; 8] =
    ["#c9b8a3", "#a3b5c9", "#b9c9a3", "#c9a3b8", "#a3c9c1", "#c9c5a3", "#b3a3c9", "#b0b0b0"];
type Stops = [[f64; 3]; 4];
const COOL: Stops = [[68.0, 1.0, 84.0], [49.0, 104.0, 142.0], [53.0, 183.0, 121.0], [240.0, 220.0, 60.0]];
const WARM: Stops =
    [[239.0, 227.0, 208.0], [214.0, 178.0, 140.0], [170.0, 130.0, 120.0], [98.0, 84.0, 104.0]];

fn color_of(rank: u32, world_size: u32) -> String {
    if world_size <= SOME {
        OF_SOME[rank as usize % OF_SOME.len()].to_owned()
    } else {
        gradient(COOL, f64::from(rank) / f64::from(world_size - 1))
    }
}

fn file_color(file: u32, files: u32) -> String {
    if files <= SOME {
        OF_SOME_FILES[file as usize % OF_SOME_FILES.len()].to_owned()
    } else {
        gradient(WARM, f64::from(file) / f64::from(files - 1))
    }
}

fn gradient(stops: Stops, at: f64) -> String {
    let place = at.clamp(0.0, 1.0) * (stops.len() - 1) as f64;
    let from = (place as usize).min(stops.len() - 2);
    let part = place - from as f64;
    let [red, green, blue] =
        [0, 1, 2].map(|c| (stops[from][c] + (stops[from + 1][c] - stops[from][c]) * part) as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}
