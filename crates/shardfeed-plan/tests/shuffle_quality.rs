//! How good is the shuffle against a full random permutation, and what does it cost in memory and in reading?
//!
//! `cargo test -p shardfeed-plan --test shuffle_quality -- --nocapture` prints the figures. Whole epochs are
//! measured: no batch is left out.

use std::collections::HashMap;

use std::fmt;

use shardfeed_plan::{
    EpochOrder, LaneWalk, Packing, Rank, Skips, StepPlan, StreamSettings, Tail, fisher_yates, key,
};

const SEQUENCES: u32 = 1 << 18;
const SEQ_LEN: u32 = 2048;
const SEEDS: [u64; 3] = [7, 17, 27];
const ROW_GROUPS: [u32; 4] = [64, 256, 1024, 4096];
const GLOBAL_BATCHES: [u32; 4] = [16, 64, 256, 1024];
/// Those that are automatic for these global batches.
const LANES: [u32; 3] = [64, 256, 1024];

#[test]
fn a_batch_draws_on_row_groups_as_if_all_sequences_had_been_shuffled() {
    println!("sizes       M     G lanes  win    MiB  distinct   var  |rho|  of groups  at most");
    let mut misses = Vec::new();
    for (data, row_groups) in every_data() {
        for global_batch in GLOBAL_BATCHES {
            let settings = |seed| StreamSettings::auto(SEQ_LEN, Packing::Concat, None, seed, global_batch);
            let of_seeds =
                SEEDS.map(|seed| Figures::of(&data, global_batch, &data.epoch(&settings(seed), 0)));
            let figures = of_seeds.into_iter().reduce(Figures::worse).unwrap();
            let StreamSettings { lanes, window, .. } = settings(0);
            // What one rank alone may have to hold: two windows of each lane, four bytes a token.
            let mebibytes = (u64::from(lanes) * 2 * u64::from(window * SEQ_LEN) * 4) >> 20;
            let rho_max = correlation_max(row_groups);
            let of = format!("{:7} {row_groups:5} {global_batch:5} {lanes:5}", data.name);
            println!("{of} {window:4} {mebibytes:6} {figures} {rho_max:8.3}");
            if !figures.pass(row_groups) {
                misses.push(format!("{of}: {figures}"));
            }
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
}

#[test]
fn two_epochs_have_uncorrelated_orders() {
    println!("sizes       M lanes  |rho|  at most");
    let mut misses = Vec::new();
    for (data, row_groups) in every_data() {
        for lanes in LANES {
            let row_groups_per_lane = f64::from(row_groups) / f64::from(lanes);
            let rho_max = if data.name == "uneven" {
                correlation_max(row_groups)
            } else if row_groups > lanes {
                // Lanes of equal row groups begin where row groups begin, in every epoch. A sequence then
                // comes at the same moment of its row group's turn, and a lane of few has long turns.
                correlation_max(row_groups) + row_groups_per_lane.powi(-2)
            } else {
                // A lane is about one row group, and each epoch goes through it from its beginning to its end:
                // version 1 of the order does not promise more (docs/tuning.md, small data sets).
                continue;
            };
            let rho = correlation_of_epochs(&data, lanes);
            println!("{:7} {row_groups:5} {lanes:5} {rho:6.3} {rho_max:8.3}", data.name);
            if rho > rho_max {
                misses.push(format!("{} {row_groups} row groups, {lanes} lanes: {rho:.3}", data.name));
            }
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
}

#[test]
fn a_full_random_permutation_has_the_figures_that_are_expected_of_it_and_file_order_fails() {
    for (data, row_groups) in every_data() {
        let sequences = data.row_group_of.len() as u32;
        let in_file_order: Vec<u32> = (0..sequences).collect();
        let random = fisher_yates(sequences, key(&[7]));
        for global_batch in GLOBAL_BATCHES {
            let Figures { distinct, variance, correlation, .. } = Figures::of(&data, global_batch, &random);
            assert!((distinct - 1.0).abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{distinct} {variance}");
            assert!(correlation < 4.0 / f64::from(sequences).sqrt(), "{correlation}");
            assert!(!Figures::of(&data, global_batch, &in_file_order).pass(row_groups));
        }
    }
}

#[test]
fn the_variance_over_all_values_is_that_over_drawn_ones() {
    let (data, global_batch) = (Data::uneven(256), 64_u32);
    let settings = StreamSettings::auto(SEQ_LEN, Packing::Concat, None, 7, global_batch);
    let epoch = data.epoch(&settings, 0);
    let sequences = epoch.len() as f64;
    let mean = |values: &mut dyn Iterator<Item = f64>, count: f64| values.sum::<f64>() / count;
    let (mut of_means, mut expected) = (0.0, 0.0);
    for draw in 0..200 {
        let values: Vec<f64> = (0..256).map(|group| (key(&[draw, group]) >> 40) as f64).collect();
        let stream: Vec<f64> = epoch.iter().map(|&sequence| values[data.row_group(sequence)]).collect();
        let all = mean(&mut stream.iter().copied(), sequences);
        let variance = mean(&mut stream.iter().map(|value| (value - all).powi(2)), sequences);
        let batches = stream.chunks_exact(global_batch as usize);
        let count = batches.len() as f64;
        let means = batches.map(|batch| mean(&mut batch.iter().copied(), f64::from(global_batch)));
        of_means += mean(&mut means.map(|of_batch| (of_batch - all).powi(2)), count);
        let batch_len = f64::from(global_batch);
        expected += variance / batch_len * (sequences - batch_len) / (sequences - 1.0);
    }
    let drawn = of_means / expected;
    let Figures { variance, .. } = Figures::of(&data, global_batch, &epoch);
    println!("drawn {drawn:.3}, all {variance:.3}");
    assert!((drawn - variance).abs() < 0.04, "{drawn} {variance}");
}

#[test]
fn read_amplification_is_at_most_1_05_for_any_world_size_up_to_the_global_batch() {
    let small = [1, 2, 3, 5, 7, 8, 12, 16, 31, 48, 60, 64, 65, 96, 100, 127, 128];
    let large = [192, 256, 384, 500, 512, 768, 1000, 1024, 1536, 2048, 4096];
    for global_batch in small.into_iter().chain(large) {
        let lanes = StreamSettings::auto_lanes(global_batch);
        // With fewer than twenty windows to a lane, a tail can cost more than 1.05.
        let whole_steps = u64::from(lanes) * u64::from(WINDOW) * 24;
        let batch = u64::from(global_batch);
        for tail in [0, 1, batch / 2, batch - 1] {
            let reads = Reads::of(whole_steps + tail, lanes, WINDOW, global_batch);
            for world_size in world_sizes(global_batch) {
                let read = reads.by_ranks(world_size);
                // A lane belongs to one rank all epoch, but for the tail, which is cut among the ranks anew.
                let max = reads.blocks + tail as usize;
                assert!(
                    read <= max,
                    "{read} of {max}: batch {global_batch}, tail {tail}, {world_size} ranks"
                );
                assert!(read as f64 <= 1.05 * reads.blocks as f64);
                let worst = reads.worst_rank(world_size);
                assert!(
                    worst <= 1.05,
                    "a rank reads {worst:.3} times what it delivers: batch {global_batch}, tail {tail}, {world_size} ranks"
                );
            }
        }
    }
}

#[test]
fn with_more_sequences_a_step_than_lanes_a_border_between_ranks_costs_at_most_one_lane() {
    for global_batch in [1536, 2000, 2048, 4096] {
        let (lanes, window) = (1024, StreamSettings::auto_window(SEQ_LEN));
        let batch = u64::from(global_batch);
        let sequences = (u64::from(lanes) * u64::from(window) * 6).next_multiple_of(batch);
        let reads = Reads::of(sequences, lanes, window, global_batch);
        let mut over = Vec::new();
        for world_size in world_sizes(global_batch) {
            let read = reads.by_ranks(world_size);
            if global_batch.is_multiple_of(lanes) {
                // Six windows, cut into seven where they do not begin with the lane.
                let max = reads.blocks + (world_size as usize - 1) * 7;
                assert!(read <= max, "{read} of {max} on {world_size} ranks");
            }
            let amplification = read as f64 / reads.blocks as f64;
            if amplification > 1.05 {
                over.push(format!("{world_size}: {amplification:.2}"));
            }
        }
        println!("global batch {global_batch}, {lanes} lanes, above 1.05 on ranks {}", over.join(", "));
    }
}

/// What is measured of an order; of several, the worst.
#[derive(Clone, Copy)]
struct Figures {
    /// Distinct row groups of a batch; of a full random permutation: 1.
    distinct: f64,
    /// Variance, over batches, of the mean of a random value per row group; of a full random permutation: 1.
    variance: f64,
    /// Rank correlation between a sequence's position and its place in file order.
    correlation: f64,
    /// The same of row groups, a row group's position being the mean of its sequences'.
    correlation_of_row_groups: f64,
}

impl Figures {
    fn of(data: &Data, global_batch: u32, epoch: &[u32]) -> Self {
        let row_groups: Vec<u32> =
            epoch.iter().map(|&sequence| data.row_group_of[sequence as usize]).collect();
        let mut mean_positions = vec![0.0; data.sizes.len()];
        for (&group, position) in row_groups.iter().zip(0_u32..) {
            mean_positions[group as usize] += f64::from(position) / data.sizes[group as usize] as f64;
        }
        Self {
            distinct: data.distinct_row_groups(&row_groups, global_batch),
            variance: data.variance_of_means(&row_groups, global_batch),
            correlation: correlation_with_index(&positions_of(epoch)).abs(),
            correlation_of_row_groups: correlation_with_index(&ranks(&mean_positions)).abs(),
        }
    }

    fn pass(&self, row_groups: u32) -> bool {
        self.distinct >= 0.95
            && self.variance <= 1.25
            && self.correlation <= correlation_max(row_groups)
            && self.correlation_of_row_groups <= correlation_max(row_groups)
    }

    fn worse(self, other: Self) -> Self {
        Self {
            distinct: self.distinct.min(other.distinct),
            variance: self.variance.max(other.variance),
            correlation: self.correlation.max(other.correlation),
            correlation_of_row_groups: self.correlation_of_row_groups.max(other.correlation_of_row_groups),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { distinct, variance, correlation, correlation_of_row_groups } = self;
        write!(f, "{distinct:9.3} {variance:5.2} {correlation:6.3} {correlation_of_row_groups:10.3}")
    }
}

/// Permuting row groups alone leaves a correlation of about one part in the square root of their number.
fn correlation_max(row_groups: u32) -> f64 {
    4.0 / f64::from(row_groups).sqrt()
}

/// Rank correlation between a sequence's positions in two epochs: the largest over the seeds.
fn correlation_of_epochs(data: &Data, lanes: u32) -> f64 {
    let of_seed = |seed| {
        let settings =
            StreamSettings { lanes, ..StreamSettings::auto(SEQ_LEN, Packing::Concat, None, seed, 64) };
        let positions = positions_of(&data.epoch(&settings, 0));
        let next = data.epoch(&settings, 1);
        let then: Vec<u32> = next.iter().map(|&sequence| positions[sequence as usize]).collect();
        correlation_with_index(&then).abs()
    };
    SEEDS.into_iter().map(of_seed).fold(0.0, f64::max)
}

/// Row groups of whole sequences.
struct Data {
    name: &'static str,
    /// Sequences of each row group.
    sizes: Vec<u64>,
    /// The row group of each sequence, in file order.
    row_group_of: Vec<u32>,
    /// The first sequence of each row group.
    starts: Vec<u32>,
}

fn every_data() -> impl Iterator<Item = (Data, u32)> {
    let equal = ROW_GROUPS.map(|row_groups| (Data::equal(row_groups), row_groups));
    let uneven = ROW_GROUPS.map(|row_groups| (Data::uneven(row_groups), row_groups));
    equal.into_iter().chain(uneven)
}

impl Data {
    fn equal(row_groups: u32) -> Self {
        Self::new("equal", vec![u64::from(SEQUENCES / row_groups); row_groups as usize])
    }

    /// Row groups of half to one and a half times the mean.
    fn uneven(row_groups: u32) -> Self {
        let mean = u64::from(SEQUENCES / row_groups);
        let sizes = (0..u64::from(row_groups)).map(|group| mean / 2 + key(&[group]) % (mean + 1)).collect();
        Self::new("uneven", sizes)
    }

    fn new(name: &'static str, sizes: Vec<u64>) -> Self {
        let mut row_group_of = Vec::new();
        let mut starts = Vec::new();
        for (&size, group) in sizes.iter().zip(0_u32..) {
            starts.push(row_group_of.len() as u32);
            row_group_of.extend((0..size).map(|_| group));
        }
        Self { name, sizes, row_group_of, starts }
    }

    /// The sequences of an epoch, numbered in file order, in the order in which they are delivered.
    fn epoch(&self, settings: &StreamSettings, epoch: u64) -> Vec<u32> {
        let tokens: Vec<u64> = self.sizes.iter().map(|sequences| sequences * u64::from(SEQ_LEN)).collect();
        let order = EpochOrder::new(&tokens, settings, epoch);
        let mut walks: Vec<LaneWalk> = (0..settings.lanes).map(|lane| order.walk(lane)).collect();
        (0..order.sequences())
            .map(|position| {
                let place = order.place(position);
                let sequence = walks[place.lane as usize].sequence(place.index);
                let span = order.spans(order.units(sequence)).next().unwrap();
                self.starts[span.row_group as usize] + (span.units.start / u64::from(SEQ_LEN)) as u32
            })
            .collect()
    }

    fn row_group(&self, sequence: u32) -> usize {
        self.row_group_of[sequence as usize] as usize
    }

    fn distinct_row_groups(&self, row_groups: &[u32], global_batch: u32) -> f64 {
        let mut last_batch = vec![usize::MAX; self.sizes.len()];
        let mut distinct = 0;
        let batches = row_groups.chunks_exact(global_batch as usize);
        let count = batches.len() as f64;
        for (number, batch) in batches.enumerate() {
            for &group in batch {
                distinct += u32::from(std::mem::replace(&mut last_batch[group as usize], number) != number);
            }
        }
        // A row group of u sequences is missed with probability C(N - u, G) / C(N, G).
        let sequences = row_groups.len() as f64;
        let missed = |size: f64| -> f64 {
            (0..global_batch)
                .map(|i| (sequences - size - f64::from(i)) / (sequences - f64::from(i)))
                .product()
        };
        let expected: f64 = self.sizes.iter().map(|&size| 1.0 - missed(size as f64)).sum();
        f64::from(distinct) / count / expected
    }

    /// Averaged over all ways to draw the values, not over a few: when they are independent with variance 1,
    /// the mean of a batch differs from the mean of all by something of variance `(n / G - p)^2` for each row
    /// group that has `n` of the batch's `G` sequences and the share `p` of all sequences.
    fn variance_of_means(&self, row_groups: &[u32], global_batch: u32) -> f64 {
        let (sequences, batch_len) = (row_groups.len() as f64, f64::from(global_batch));
        let shares: Vec<f64> = self.sizes.iter().map(|&size| size as f64 / sequences).collect();
        // The sum over all row groups of p^2, corrected for those that the batch has.
        let of_none: f64 = shares.iter().map(|share| share * share).sum();
        let mut counts = vec![0.0; shares.len()];
        let mut sum = 0.0;
        let batches = row_groups.chunks_exact(global_batch as usize);
        let count = batches.len() as f64;
        for batch in batches {
            for &group in batch {
                counts[group as usize] += 1.0;
            }
            sum += of_none;
            for &group in batch {
                let (n, share) = (std::mem::take(&mut counts[group as usize]), shares[group as usize]);
                if n > 0.0 {
                    sum += (n / batch_len - share).powi(2) - share.powi(2);
                }
            }
        }
        let without_replacement = (sequences - batch_len) / (sequences - 1.0);
        let expected: f64 = shares.iter().map(|share| share * (1.0 - share)).sum::<f64>() / batch_len;
        sum / count / (expected * without_replacement)
    }
}

fn positions_of(epoch: &[u32]) -> Vec<u32> {
    let mut positions = vec![0; epoch.len()];
    for (&sequence, position) in epoch.iter().zip(0..) {
        positions[sequence as usize] = position;
    }
    positions
}

fn correlation_with_index(ranks: &[u32]) -> f64 {
    let n = ranks.len() as f64;
    let squares: f64 =
        ranks.iter().zip(0_u32..).map(|(&rank, i)| (f64::from(rank) - f64::from(i)).powi(2)).sum();
    1.0 - 6.0 * squares / (n * (n * n - 1.0))
}

fn ranks(values: &[f64]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0; values.len()];
    for (&index, rank) in order.iter().zip(0..) {
        ranks[index] = rank;
    }
    ranks
}

/// Short, so that a lane has many: while a lane has one reader, their length does not matter.
const WINDOW: u32 = 8;

fn world_sizes(global_batch: u32) -> impl Iterator<Item = u32> {
    let some = [1, 2, 3, 5, 7, 8, 16, 31, 48, 52, 64, 100, 128, 250, 256, 512, 1000, 1024, 1536, 2048, 3000];
    some.into_iter().filter(move |&world_size| world_size < global_batch).chain([global_batch])
}

/// What the steps of an epoch read: for each position of each step, which window block of which lane.
struct Reads {
    steps: Vec<(StepPlan, Vec<u32>)>,
    /// Blocks that are read at all.
    blocks: usize,
}

impl Reads {
    fn of(sequences: u64, lanes: u32, window: u32, global_batch: u32) -> Self {
        let auto = StreamSettings::auto(SEQ_LEN, Packing::Pad, None, 7, global_batch);
        let settings = StreamSettings { lanes, window, ..auto };
        let order = EpochOrder::new(&[sequences], &settings, 0);
        let mut walks: Vec<LaneWalk> = (0..lanes).map(|lane| order.walk(lane)).collect();
        let mut turns = vec![0; lanes as usize];
        (0..lanes).for_each(|turn| turns[order.place(u64::from(turn)).lane as usize] = turn);
        // The first pass shuffles within blocks of the line: a sequence stays in the block it is read with.
        let mut block = |position| {
            let place = order.place(position);
            let lane = place.lane as usize;
            let index = walks[lane].sequence(place.index) - order.sequences_of(place.lane).start;
            let offset = u64::from(turns[lane] * window / lanes);
            let number = if index < offset { 0 } else { (index - offset) / u64::from(window) + 1 };
            number as u32 * lanes + place.lane
        };
        let mut steps = Vec::new();
        let mut from = 0;
        while let Some(step) = order.step_at(from, &Skips::default(), global_batch, Tail::Pad) {
            from = step.next();
            let blocks = step.all_positions().iter().map(|&position| block(position)).collect();
            steps.push((step, blocks));
        }
        let blocks = distinct(steps.iter().flat_map(|(_, blocks)| blocks).map(|&block| (block, 0)));
        Self { steps, blocks }
    }

    /// Sequences of the blocks that a rank reads, by those that it delivers: of the rank with the most.
    fn worst_rank(&self, world_size: u32) -> f64 {
        let mut sizes: HashMap<u32, u64> = HashMap::new();
        self.steps
            .iter()
            .flat_map(|(_, blocks)| blocks)
            .for_each(|&block| *sizes.entry(block).or_default() += 1);
        let mut delivered = vec![0_u64; world_size as usize];
        let mut read = vec![0_u64; world_size as usize];
        let mut reads = self.all_reads(world_size);
        for &(_, rank) in &reads {
            delivered[rank as usize] += 1;
        }
        reads.sort_unstable();
        reads.dedup();
        for &(block, rank) in &reads {
            read[rank as usize] += sizes[&block];
        }
        read.iter().zip(&delivered).map(|(&read, &own)| read as f64 / own as f64).fold(0.0, f64::max)
    }

    /// Blocks that a rank reads, summed over the ranks.
    fn by_ranks(&self, world_size: u32) -> usize {
        distinct(self.all_reads(world_size))
    }

    /// The block and the rank of every sequence that is delivered.
    fn all_reads(&self, world_size: u32) -> Vec<(u32, u32)> {
        let mut reads = Vec::new();
        for (step, blocks) in &self.steps {
            let mut blocks = blocks.iter();
            for index in 0..world_size {
                let count = step.positions(Rank::new(index, world_size).unwrap()).len();
                reads.extend(blocks.by_ref().take(count).map(|&block| (block, index)));
            }
        }
        reads
    }
}

fn distinct(reads: impl IntoIterator<Item = (u32, u32)>) -> usize {
    let mut reads: Vec<(u32, u32)> = reads.into_iter().collect();
    reads.sort_unstable();
    reads.dedup();
    reads.len()
}
