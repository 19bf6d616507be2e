//! Charts: figures in, shapes out.

use crate::output::{bytes_text, thousands};
use crate::svg::{Anchor, FAINT, GREY, INK, Style, Svg, fit, width_of};

pub const GOOD: &str = "#2e8b57";
pub const BAD: &str = "#d1495b";

/// Width of a panel: there are two beside each other.
pub const COLUMN: f64 = 535.0;

/// The title of a panel, with a note at its right.
pub fn head(svg: &mut Svg, (x, y): (f64, f64), title: &str, note: &str) {
    svg.text((x, y + 14.0), title, Style::HEAD);
    let room = COLUMN - width_of(title, Style::HEAD.size) - 10.0;
    svg.text((x + COLUMN, y + 14.0), &fit(note, Style::NOTE.size, room), Style::NOTE.at(Anchor::End));
    svg.line((x, y + 24.0), (x + COLUMN, y + 24.0), FAINT, 1.0);
}

/// Room left of a chart for the numbers of its axis.
const AXIS: f64 = 62.0;

/// One bar per value; where there are too many, one per group of neighbours: its mean, and a line from its least to
/// its most.
pub struct Bars<'a> {
    pub values: &'a [u64],
    pub color: &'a str,
    pub x_title: &'a str,
}

const BARS_MAX: usize = 100;

impl Bars<'_> {
    pub fn draw(&self, svg: &mut Svg, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let (left, plot) = (x + AXIS, width - AXIS);
        let bottom = y + height - 34.0;
        let max = self.values.iter().copied().max().unwrap_or(0).max(1) as f64;
        let step = nice_bytes_step(max / 4.0);
        let top = (max / step).ceil() * step;
        let up = |value: f64| bottom - (bottom - y) * value / top;
        for tick in 0..=(top / step).round() as u64 {
            let value = tick as f64 * step;
            svg.line((left, up(value)), (left + plot, up(value)), FAINT, 1.0);
            svg.text((left - 8.0, up(value) + 4.0), &bytes_text(value as u64), Style::LABEL.at(Anchor::End));
        }
        let count = self.values.len();
        let bars = count.min(BARS_MAX);
        let slot = plot / bars as f64;
        let bar = (slot * 0.78).min(60.0);
        for number in 0..bars {
            let group = &self.values[number * count / bars..(number + 1) * count / bars];
            let mean = group.iter().map(|&value| value as f64).sum::<f64>() / group.len().max(1) as f64;
            let middle = left + slot * (number as f64 + 0.5);
            svg.rect((middle - bar / 2.0, up(mean)), (bar, bottom - up(mean)), self.color);
            let (min, max) =
                (group.iter().min().copied().unwrap_or(0), group.iter().max().copied().unwrap_or(0));
            if max > min {
                svg.line((middle, up(min as f64)), (middle, up(max as f64)), INK, 1.0);
            }
        }
        svg.line((left, bottom), (left + plot, bottom), GREY, 1.0);
        for label in labels_among(count) {
            let at = left + plot * (label as f64 + 0.5) / count as f64;
            svg.text((at, bottom + 15.0), &thousands(label as u64), Style::LABEL);
        }
        let grouped = if count > BARS_MAX {
            format!(
                "{}; a bar is {} of them, its line their least and most",
                self.x_title,
                count.div_ceil(bars)
            )
        } else {
            self.x_title.to_owned()
        };
        svg.text((left + plot / 2.0, bottom + 31.0), &grouped, Style::LABEL);
    }
}

/// At most nine of `0..count`, evenly apart.
fn labels_among(count: usize) -> Vec<usize> {
    let nice = |power: u32| [1, 2, 5].map(|digit| digit * 10_usize.pow(power));
    let step = (0..9).flat_map(nice).find(|step| count.div_ceil(*step) <= 9).unwrap_or(count.max(1));
    (0..count).step_by(step).collect()
}

/// Lines over world sizes, on a scale where twice as many are always equally far.
pub struct Curve<'a> {
    /// Later ones are drawn over earlier ones.
    pub lines: &'a [CurveLine<'a>],
    /// A promise, and its words.
    pub bar: (f64, &'a str),
    /// The world size that is pictured.
    pub marked: u32,
}

/// Name, color, and a value for each world size.
pub type CurveLine<'a> = (&'a str, &'a str, Vec<(u32, f64)>);

impl Curve<'_> {
    pub fn draw(&self, svg: &mut Svg, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let (left, plot) = (x + 40.0, width - 52.0);
        let bottom = y + height - 34.0;
        let points = || self.lines.iter().flat_map(|(_, _, points)| points);
        let largest = f64::from(points().map(|point| point.0).max().unwrap_or(1));
        let high = points().map(|point| point.1).fold(1.0, f64::max);
        let low = points().map(|point| point.1).fold(1.0, f64::min);
        let span = (high - low).max(0.1);
        let step = nice_step(span / 4.0);
        let (floor, top) = ((low / step).floor() * step, ((high.max(1.08) / step).ceil()) * step);
        let across = |size: u32| left + plot * f64::from(size).log2() / largest.log2().max(1.0);
        let up = |value: f64| bottom - (bottom - y) * (value - floor) / (top - floor);
        let decimals = if step >= 1.0 {
            0
        } else if step >= 0.1 {
            1
        } else {
            2
        };
        for tick in 0..=((top - floor) / step).round() as u64 {
            let value = floor + tick as f64 * step;
            svg.line((left, up(value)), (left + plot, up(value)), FAINT, 1.0);
            let label = format!("{value:.decimals$}");
            svg.text((left - 8.0, up(value) + 4.0), &label, Style::LABEL.at(Anchor::End));
        }
        if self.bar.0 < top {
            svg.dashed((left, up(self.bar.0)), (left + plot, up(self.bar.0)), BAD);
            let label = Style::LABEL.at(Anchor::End).color(BAD);
            svg.text((left + plot - 6.0, up(self.bar.0) - 5.0), &format!("at most {}", self.bar.1), label);
        }
        svg.dashed((across(self.marked), y), (across(self.marked), bottom), "#b4bcc6");
        for (_, color, points) in self.lines {
            let places: Vec<(f64, f64)> =
                points.iter().map(|&(size, value)| (across(size), up(value))).collect();
            svg.path(&places, color);
            for (&(size, _), &place) in points.iter().zip(&places) {
                svg.dot(place, if size == self.marked { 5.5 } else { 3.5 }, color);
            }
        }
        svg.line((left, bottom), (left + plot, bottom), GREY, 1.0);
        let mut taken_until = f64::MIN;
        let sizes: Vec<u32> =
            self.lines.first().map_or(Vec::new(), |line| line.2.iter().map(|p| p.0).collect());
        let half = |size: u32| width_of(&thousands(size.into()), Style::LABEL.size) / 2.0 + 4.0;
        let marked_room = across(self.marked) - half(self.marked)..across(self.marked) + half(self.marked);
        for size in sizes {
            let (from, to) = (across(size) - half(size), across(size) + half(size));
            let is_marked = size == self.marked;
            let is_free = from >= taken_until && (to <= marked_room.start || from >= marked_room.end);
            if is_marked || is_free {
                let style = if is_marked { Style::LABEL.color(INK).bold() } else { Style::LABEL };
                svg.text((across(size), bottom + 15.0), &thousands(size.into()), style);
                taken_until = to;
            }
        }
        svg.text((left + plot / 2.0, bottom + 31.0), "world size", Style::LABEL);
        let mut at = left + 6.0;
        for (name, color, _) in self.lines {
            svg.rect((at, y - 13.0), (10.0, 10.0), color);
            svg.text((at + 15.0, y - 4.0), name, Style::LABEL.at(Anchor::Start));
            at += 30.0 + width_of(name, Style::LABEL.size);
        }
    }
}

/// Parts of a whole, one row of a chart.
pub struct Stack {
    pub name: String,
    pub parts: Vec<u64>,
    pub is_marked: bool,
}

/// Rows of parts, all on one scale.
pub fn stacks(
    svg: &mut Svg,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
    parts: &[(&str, &str)],
    rows: &[Stack],
) {
    let mut at = x;
    for (name, color) in parts {
        svg.rect((at, y), (10.0, 10.0), color);
        svg.text((at + 15.0, y + 9.0), name, Style::LABEL.at(Anchor::Start));
        at += 34.0 + width_of(name, Style::LABEL.size);
    }
    let (left, plot) = (x + 92.0, width - 92.0 - 78.0);
    let row = ((height - 26.0) / rows.len().max(1) as f64).min(44.0);
    let max = rows.iter().map(|stack| stack.parts.iter().sum::<u64>()).max().unwrap_or(0).max(1) as f64;
    for (index, stack) in rows.iter().enumerate() {
        let top = y + 26.0 + row * index as f64;
        let style = if stack.is_marked { Style::LABEL.color(INK).bold() } else { Style::LABEL };
        svg.text((left - 8.0, top + row * 0.36 + 4.0), &stack.name, style.at(Anchor::End));
        let mut from = left;
        for (&bytes, (_, color)) in stack.parts.iter().zip(parts) {
            let part = plot * bytes as f64 / max;
            svg.rect((from, top), (part, row * 0.72), color);
            from += part;
        }
        let total = bytes_text(stack.parts.iter().sum());
        svg.text((from + 7.0, top + row * 0.36 + 4.0), &total, style.at(Anchor::Start));
    }
}

/// One figure against a promise.
pub struct Gauge {
    pub name: String,
    pub value: f64,
    pub bar: f64,
    pub more_is_better: bool,
    pub decimals: usize,
}

impl Gauge {
    pub fn holds(&self) -> bool {
        if self.more_is_better { self.value >= self.bar } else { self.value <= self.bar }
    }

    pub fn draw(&self, svg: &mut Svg, (x, y): (f64, f64), width: f64) {
        let (color, decimals) = (if self.holds() { GOOD } else { BAD }, self.decimals);
        svg.text((x, y), &self.name, Style::NOTE.color(INK));
        // The promise is always at the same place, so that gauges are read alike.
        let scale_max = if self.more_is_better { self.bar * 1.25 } else { self.bar * 2.0 };
        let across = |value: f64| x + (width - 70.0) * (value / scale_max).clamp(0.0, 1.0);
        let (top, thick) = (y + 12.0, 12.0);
        svg.rect((x, top), (width - 70.0, thick), "#fbe9eb");
        let good =
            if self.more_is_better { (across(self.bar), x + width - 70.0) } else { (x, across(self.bar)) };
        svg.rect((good.0, top), (good.1 - good.0, thick), "#e1f2e8");
        svg.line((across(self.bar), top - 3.0), (across(self.bar), top + thick + 3.0), INK, 1.5);
        let words = if self.more_is_better { "at least" } else { "at most" };
        let promise = format!("{words} {:.*}", if decimals > 3 { decimals } else { 2 }, self.bar);
        svg.text((across(self.bar), top + thick + 16.0), &promise, Style::LABEL);
        svg.dot((across(self.value), top + thick / 2.0), 7.0, color);
        let value = Style { size: 16.0, color, bold: true, anchor: Anchor::End };
        svg.text((x + width, top + thick), &format!("{:.decimals$}", self.value), value);
    }
}

/// The least of 1, 2 and 5 times a power of ten that is no smaller.
fn nice_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= least * 0.999).unwrap_or(10.0);
    digit * power
}

/// The same for bytes: of a unit that is a power of 1024.
fn nice_bytes_step(least: f64) -> f64 {
    let unit = (0..6).map(|power| 1024_f64.powi(power)).rfind(|unit| *unit <= least).unwrap_or(1.0);
    let step = nice_step((least / unit).max(1.0)) * unit;
    // 500 and 1,000 KiB make no better ticks than one MiB.
    if step > 500.0 * unit { 1024.0 * unit } else { step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert!((nice_step(0.03) - 0.05).abs() < 1e-9 && (nice_step(7.0) - 10.0).abs() < 1e-9);
        assert!((nice_bytes_step(1500.0) - 2048.0).abs() < 1e-9);
        assert!((nice_bytes_step(700.0 * 1024.0) - 1_048_576.0).abs() < 1e-9);
        assert_eq!(labels_among(8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(labels_among(64), [0, 10, 20, 30, 40, 50, 60]);
        assert_eq!(labels_among(10_000).len(), 5);
        assert!(labels_among(0).is_empty());
    }
}
