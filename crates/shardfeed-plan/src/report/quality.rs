use super::{EpochShape, sequences_that_begin_in};
use crate::{EpochOrder, StreamSettings, mix};

/// How well an epoch is shuffled, against a full random permutation of its sequences. A sequence belongs to the row
/// group in which it begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShuffleQuality {
    /// Whole steps that the first two figures are measured over, spread over the epoch.
    pub steps_measured: u64,
    /// Whole steps there are.
    pub whole_steps: u64,
    /// Row groups in which sequences begin.
    pub row_groups: u64,
    /// Distinct row groups of a batch, on average.
    pub distinct_row_groups: f64,
    /// The same of a full random permutation.
    pub distinct_row_groups_at_random: f64,
    /// Variance, over batches, of the mean of a random value per row group; 1 for a full random permutation.
    pub variance_ratio: f64,
    /// Rank correlation between the position of a sequence and its place in file order, without its sign. Over the
    /// whole epoch; in a large one the windows, which move a sequence by less than two of them, are left out.
    pub correlation: f64,
}

/// Positions of the steps that are measured, at most, or one step; an epoch with fewer is measured whole.
const POSITIONS_MAX: u64 = 1 << 18;
/// Elements of windows that are shuffled, about, to look at steps far from each other.
const SHUFFLED_MAX: u64 = 1 << 24;
/// What one step may take of them before it is not measured at all.
const SHUFFLED_BY_ONE_STEP_MAX: u64 = 1 << 27;

impl ShuffleQuality {
    /// The least ratio of distinct row groups to those of a random permutation that is promised.
    pub const DISTINCT_MIN: f64 = 0.95;
    /// The largest variance ratio that is promised.
    pub const VARIANCE_MAX: f64 = 1.25;

    /// Distinct row groups of a batch, by those of a full random permutation.
    pub fn distinct_ratio(&self) -> f64 {
        self.distinct_row_groups / self.distinct_row_groups_at_random
    }

    /// The largest correlation that is promised: permuting row groups alone leaves about a quarter of it.
    pub fn correlation_max(&self) -> f64 {
        4.0 / (self.row_groups as f64).sqrt()
    }

    /// Whether all three figures are within what is promised for global batches of up to 1,024.
    pub fn holds(&self) -> bool {
        self.distinct_ratio() >= Self::DISTINCT_MIN
            && self.variance_ratio <= Self::VARIANCE_MAX
            && self.correlation <= self.correlation_max()
    }

    pub(super) fn measure(
        order: &EpochOrder,
        sizes: &[u64],
        settings: &StreamSettings,
        shape: EpochShape,
    ) -> Option<Self> {
        Self::within(order, sizes, settings, shape, POSITIONS_MAX)
    }

    fn within(
        order: &EpochOrder,
        sizes: &[u64],
        settings: &StreamSettings,
        shape: EpochShape,
        positions_max: u64,
    ) -> Option<Self> {
        let steps = steps_to_measure(settings, shape, positions_max);
        if steps.is_empty() {
            return None;
        }
        let sample = Sample::take(order, shape, &steps);
        let random = Random::of(order, shape);
        let (mut distinct, mut variance) = (0, 0.0);
        for batch in sample.row_groups.chunks_exact(shape.global_batch as usize) {
            let (distinct_of_batch, variance_of_batch) = random.of_batch(batch);
            distinct += distinct_of_batch;
            variance += variance_of_batch;
        }
        let count = steps.len() as f64;
        let is_whole = steps.len() as u64 == shape.whole_steps;
        let in_file_order = starts_in_file_order(sizes);
        let pairs =
            if is_whole { sample.pairs(order, &in_file_order) } else { pairs_of_line(order, &in_file_order) };
        Some(Self {
            steps_measured: steps.len() as u64,
            whole_steps: shape.whole_steps,
            row_groups: random.row_groups,
            distinct_row_groups: distinct as f64 / count,
            distinct_row_groups_at_random: random.distinct,
            // With one row group, or one step, there is nothing to vary.
            variance_ratio: if random.variance > 0.0 { variance / count / random.variance } else { 1.0 },
            correlation: pairs.correlation().abs(),
        })
    }
}

/// Steps spread over the epoch: all of them if they are few, none if one alone costs too much.
fn steps_to_measure(settings: &StreamSettings, shape: EpochShape, positions_max: u64) -> Vec<u64> {
    if shape.sequences <= positions_max {
        return (0..shape.whole_steps).collect();
    }
    let lane_sequences = shape.sequences / u64::from(settings.lanes) + 1;
    let shuffled_by_step = 2 * u64::from(settings.window).min(lane_sequences) * u64::from(shape.global_batch);
    if shuffled_by_step > SHUFFLED_BY_ONE_STEP_MAX {
        return Vec::new();
    }
    let count = (positions_max / u64::from(shape.global_batch))
        .min(SHUFFLED_MAX / shuffled_by_step)
        .max(1)
        .min(shape.whole_steps);
    // One from each of equal parts, anywhere in it: at equal distances they might all have the same lanes.
    let part = |number: u64| (u128::from(number) * u128::from(shape.whole_steps) / u128::from(count)) as u64;
    (0..count).map(|number| part(number) + mix(number) % (part(number + 1) - part(number))).collect()
}

/// The sequences of some steps.
struct Sample {
    positions: Vec<u64>,
    sequences: Vec<u64>,
    row_groups: Vec<LineRowGroup>,
}

/// A row group by where it begins on the line: no two with units begin alike.
#[derive(Clone, Copy)]
struct LineRowGroup {
    start: u64,
    sequences: u64,
    row_group: u32,
}

impl Sample {
    fn take(order: &EpochOrder, shape: EpochShape, steps: &[u64]) -> Self {
        let batch = u64::from(shape.global_batch);
        let positions: Vec<u64> = steps.iter().flat_map(|step| step * batch..(step + 1) * batch).collect();
        // Lane by lane, so that one walker at a time is enough.
        let mut by_lane: Vec<usize> = (0..positions.len()).collect();
        by_lane.sort_unstable_by_key(|&at| order.place(positions[at]));
        let mut walk: Option<(u32, crate::LaneWalk)> = None;
        let mut sequences = vec![0; positions.len()];
        for at in by_lane {
            let place = order.place(positions[at]);
            if walk.as_ref().is_none_or(|(lane, _)| *lane != place.lane) {
                walk = Some((place.lane, order.walk(place.lane)));
            }
            if let Some((_, walk)) = &mut walk {
                sequences[at] = walk.sequence(place.index);
            }
        }
        let row_groups = sequences.iter().map(|&sequence| row_group_of(order, sequence)).collect();
        Self { positions, sequences, row_groups }
    }

    fn pairs(&self, order: &EpochOrder, in_file_order: &[u64]) -> Pairs {
        let mut pairs = Pairs::default();
        for ((&position, &sequence), group) in
            self.positions.iter().zip(&self.sequences).zip(&self.row_groups)
        {
            let place = in_file_order[group.row_group as usize] + (order.units(sequence).start - group.start);
            pairs.add(1.0, position as f64, place as f64, 0.0, 0.0);
        }
        pairs
    }
}

fn row_group_of(order: &EpochOrder, sequence: u64) -> LineRowGroup {
    let units_per_sequence = order.units_per_sequence();
    let (row_group, units) =
        order.line().row_group_at(order.units(sequence).start).unwrap_or((u32::MAX, 0..0));
    let begin = sequences_that_begin_in(&units, units_per_sequence);
    LineRowGroup { start: units.start, sequences: begin.end - begin.start, row_group }
}

/// What a full random permutation of the epoch's sequences would give.
struct Random {
    global_batch: f64,
    sequences: f64,
    row_groups: u64,
    distinct: f64,
    variance: f64,
    /// The sum over all row groups of the square of their share of the sequences.
    squares: f64,
}

impl Random {
    fn of(order: &EpochOrder, shape: EpochShape) -> Self {
        let (sequences, global_batch) = (shape.sequences as f64, f64::from(shape.global_batch));
        let (mut row_groups, mut distinct, mut squares) = (0, 0.0, 0.0);
        for (_, units) in order.line().row_group_units() {
            let begin = sequences_that_begin_in(&units, order.units_per_sequence());
            if begin.is_empty() {
                continue;
            }
            let of_group = (begin.end - begin.start) as f64;
            row_groups += 1;
            distinct += 1.0 - chance_of_none(sequences, of_group, global_batch);
            squares += (of_group / sequences).powi(2);
        }
        let without_replacement = (sequences - global_batch) / (sequences - 1.0).max(1.0);
        let variance =
            if row_groups > 1 { (1.0 - squares) / global_batch * without_replacement } else { 0.0 };
        Self { global_batch, sequences, row_groups, distinct, variance, squares }
    }

    /// Distinct row groups of a batch; and the variance of its mean, over all ways to draw a value for each row group:
    /// when they are independent with variance 1, the mean of a batch differs from the mean of all by something
    /// of variance `(n / G - p)^2` for each row group that has `n` of the batch's `G` sequences and the share `p`
    /// of all sequences.
    fn of_batch(&self, batch: &[LineRowGroup]) -> (u64, f64) {
        let mut batch: Vec<&LineRowGroup> = batch.iter().collect();
        batch.sort_unstable_by_key(|group| group.start);
        let (mut distinct, mut variance) = (0, self.squares);
        for same in batch.chunk_by(|a, b| a.start == b.start) {
            let share = same[0].sequences as f64 / self.sequences;
            variance += (same.len() as f64 / self.global_batch - share).powi(2) - share.powi(2);
            distinct += 1;
        }
        (distinct, variance)
    }
}

/// The chance that a draw of `drawn` of `all`, without putting back, has none of `marked`:
/// the product of `1 - larger / (all - i)` for `i` below the smaller of the two, by its middle factor.
fn chance_of_none(all: f64, marked: f64, drawn: f64) -> f64 {
    let (smaller, larger) = if marked < drawn { (marked, drawn) } else { (drawn, marked) };
    let middle = 1.0 - larger / (all - (smaller - 1.0) / 2.0);
    if smaller + larger > all { 0.0 } else { middle.max(0.0).powf(smaller) }
}

/// Where each row group would begin if all were laid out in file order.
fn starts_in_file_order(sizes: &[u64]) -> Vec<u64> {
    let starts = sizes.iter().scan(0, |end, size| {
        let start = *end;
        *end += size;
        Some(start)
    });
    starts.collect()
}

/// Positions and places in file order of all sequences, as if windows did not move them: in each lane, the sequences
/// that begin in one row group are equally far apart in both.
fn pairs_of_line(order: &EpochOrder, in_file_order: &[u64]) -> Pairs {
    let (lanes, unit) = (order.lanes(), order.units_per_sequence());
    let mut pairs = Pairs::default();
    let mut lane = 0;
    for (row_group, units) in order.line().row_group_units() {
        let mut begin = sequences_that_begin_in(&units, unit);
        while !begin.is_empty() {
            let of_lane = order.sequences_of(lane);
            if begin.start >= of_lane.end {
                lane += 1;
                continue;
            }
            let end = begin.end.min(of_lane.end);
            let count = (end - begin.start) as f64;
            let middle = (count - 1.0) / 2.0;
            let (step, first) = (f64::from(lanes.count()), (begin.start - of_lane.start) as f64);
            let position = (first + middle) * step + f64::from(lanes.turn_of(lane));
            let first_unit = in_file_order[row_group as usize] + (begin.start * unit - units.start);
            pairs.add(count, position, first_unit as f64 + middle * unit as f64, step, unit as f64);
            begin.start = end;
        }
    }
    pairs
}

/// Sums for a correlation. Both sides count evenly from 0, so that ranks are what they are but for a factor.
#[derive(Default)]
struct Pairs {
    count: f64,
    means: [f64; 2],
    squares: [f64; 2],
    products: f64,
}

impl Pairs {
    /// Adds `count` pairs around these means, `steps` apart. Sums are kept around the means so far: those of
    /// numbers as large as an epoch would cancel each other out.
    fn add(&mut self, count: f64, x: f64, y: f64, x_step: f64, y_step: f64) {
        let within = count * (count * count - 1.0) / 12.0;
        let all = self.count + count;
        let [dx, dy] = [x - self.means[0], y - self.means[1]];
        let weight = self.count * count / all;
        self.squares[0] += dx * dx * weight + x_step * x_step * within;
        self.squares[1] += dy * dy * weight + y_step * y_step * within;
        self.products += dx * dy * weight + x_step * y_step * within;
        self.means[0] += dx * count / all;
        self.means[1] += dy * count / all;
        self.count = all;
    }

    fn correlation(&self) -> f64 {
        let scale = (self.squares[0] * self.squares[1]).sqrt();
        if scale > 0.0 { self.products / scale } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Packing, Tail};

    #[test]
    fn some_steps_tell_what_all_would() {
        for (row_groups, lanes, window, global_batch) in
            [(1000, 64, 8, 64), (300, 128, 16, 32), (200, 1, 200, 16), (64, 64, 4, 64)]
        {
            let sizes: Vec<u64> = (0..row_groups).map(|group| 500 + mix(group) % 1000).collect();
            let auto = StreamSettings::auto(8, Packing::Concat, None, 7, global_batch);
            let settings = StreamSettings { lanes, window, ..auto };
            let order = EpochOrder::new(&sizes, &settings, 0);
            let sequences = order.sequences();
            let whole_steps = sequences / u64::from(global_batch);
            let shape = EpochShape { global_batch, tail: Tail::Pad, sequences, whole_steps };
            let measure =
                |positions| ShuffleQuality::within(&order, &sizes, &settings, shape, positions).unwrap();
            let (all, some) = (measure(u64::MAX), measure(sequences / 4));
            assert_eq!(all.steps_measured, whole_steps);
            assert!((whole_steps / 5..=whole_steps / 4).contains(&some.steps_measured));
            assert!((some.distinct_ratio() / all.distinct_ratio() - 1.0).abs() < 0.02, "{some:?} {all:?}");
            assert!((some.variance_ratio - all.variance_ratio).abs() < 0.1 * all.variance_ratio.max(1.0));
            assert!((some.correlation - all.correlation).abs() < 0.01, "{some:?} {all:?}");
        }
    }

    #[test]
    fn no_whole_step_and_windows_as_long_as_the_data_are_not_measured() {
        let shape = |sequences| EpochShape {
            global_batch: 64,
            tail: Tail::Pad,
            sequences,
            whole_steps: sequences / 64,
        };
        let settings = StreamSettings::auto(8, Packing::Concat, None, 7, 64);
        assert!(steps_to_measure(&settings, shape(63), POSITIONS_MAX).is_empty());
        let long = StreamSettings { window: u32::MAX, ..settings.clone() };
        assert!(steps_to_measure(&long, shape(1 << 40), POSITIONS_MAX).is_empty());
        let steps = steps_to_measure(&settings, shape(1 << 40), POSITIONS_MAX);
        assert!(steps.is_sorted_by(|a, b| a < b) && steps.len() as u64 * 64 <= POSITIONS_MAX);
        assert!(*steps.last().unwrap() < 1 << 34);
    }

    #[test]
    fn the_chance_of_none_is_the_product_it_stands_for() {
        for (all, marked, drawn) in [(100, 10, 10), (1000, 3, 64), (5000, 400, 64), (64, 32, 32), (10, 5, 6)]
        {
            let exact: f64 =
                (0..drawn).map(|i| (f64::from(all - marked - i) / f64::from(all - i)).max(0.0)).product();
            let given = chance_of_none(all.into(), marked.into(), drawn.into());
            assert!((given - exact).abs() < 0.002, "{given} {exact}");
        }
    }
}
