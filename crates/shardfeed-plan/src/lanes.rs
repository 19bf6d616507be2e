use std::ops::Range;

use crate::key;
use crate::permute::fisher_yates_into;

/// The line of an epoch's sequences cut into `count` lanes that are read side by side, each shuffled within
/// windows that slide along it.
///
/// Position `k` of the epoch belongs to lane `visit[k mod count]`, and is the `k div count`-th that lane delivers.
#[derive(Clone, Debug)]
pub struct Lanes {
    seed: u64,
    epoch: u64,
    window: u64,
    /// The lane visited at each turn: bit-reversed, so that whichever turns a step covers, its lanes are spread.
    lane_of_turn: Vec<u32>,
    turn_of_lane: Vec<u32>,
    /// First sequence of each lane, and the number of all sequences at the end.
    starts: Vec<u64>,
}

/// Where a position falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The lane.
    pub lane: u32,
    /// How many sequences the lane has delivered before.
    pub index: u64,
}

impl Lanes {
    /// Cuts a line of `sequences` into `count` lanes, whose lengths differ by at most one.
    pub fn new(sequences: u64, count: u32, window: u32, seed: u64, epoch: u64) -> Self {
        let bits = count.next_power_of_two().trailing_zeros();
        let mut lane_of_turn: Vec<u32> = (0..count).collect();
        lane_of_turn.sort_unstable_by_key(|lane| lane.reverse_bits().checked_shr(32 - bits).unwrap_or(0));
        let mut turn_of_lane = vec![0; count as usize];
        for (turn, &lane) in (0_u32..).zip(&lane_of_turn) {
            turn_of_lane[lane as usize] = turn;
        }
        let (each, rest) = (sequences / u64::from(count), sequences % u64::from(count));
        let mut starts = Vec::with_capacity(count as usize + 1);
        let mut start = 0;
        for &turn in &turn_of_lane {
            starts.push(start);
            start += each + u64::from(u64::from(turn) < rest);
        }
        starts.push(start);
        Self { seed, epoch, window: u64::from(window), lane_of_turn, turn_of_lane, starts }
    }

    /// Number of lanes.
    pub fn count(&self) -> u32 {
        self.lane_of_turn.len() as u32
    }

    /// Where position `k` falls.
    pub fn place(&self, position: u64) -> Place {
        let count = self.lane_of_turn.len() as u64;
        Place { lane: self.lane_of_turn[(position % count) as usize], index: position / count }
    }

    /// The turn at which a lane is visited: its positions have this remainder by the number of lanes.
    pub fn turn_of(&self, lane: u32) -> u32 {
        self.turn_of_lane[lane as usize]
    }

    /// The sequences of the line that lane `lane` holds.
    pub fn sequences_of(&self, lane: u32) -> Range<u64> {
        self.starts[lane as usize]..self.starts[lane as usize + 1]
    }

    /// The sequence on the line that is delivered at `place`. Costs a shuffle of a window or two; a walker along
    /// one lane, [`LaneWalk`], keeps them.
    pub fn sequence(&self, place: Place) -> u64 {
        self.walk(place.lane).sequence(place.index)
    }

    /// Sequences of a lane's first window, the only short one but for the last; 0 where the first is a whole one.
    pub(crate) fn first_window(&self, lane: u32) -> u64 {
        // Windows of different lanes begin at different times, so that they do not all refill at once.
        u64::from(self.turn_of(lane)) * self.window / u64::from(self.count())
    }

    /// A walker along one lane.
    pub fn walk(&self, lane: u32) -> LaneWalk {
        let Range { start, end } = self.sequences_of(lane);
        let offset = self.first_window(lane);
        let pass = |number, offset| Pass {
            key: [self.seed, self.epoch, 2, u64::from(lane), number],
            offset,
            window: self.window,
            len: end - start,
        };
        LaneWalk {
            start,
            second: pass(2, (offset + self.window / 2) % self.window),
            first: pass(1, offset),
            around: Around::default(),
            shuffles: Vec::new(),
        }
    }
}

/// Goes along one lane, from delivery to sequence, and remembers the shuffles of the windows around it.
///
/// Two passes whose windows overlap by half let a sequence move further than one window would, for the same memory.
#[derive(Clone, Debug)]
pub struct LaneWalk {
    start: u64,
    first: Pass,
    second: Pass,
    /// What holds as long as deliveries stay in one block of the second pass.
    around: Around,
    /// The most recently used shuffles, last used last: one of the second pass, two or three of the first.
    shuffles: Vec<(BlockId, Vec<u32>)>,
}

/// How far a lane's deliveries reach while they stay in one block.
#[derive(Clone, Debug, Default)]
struct Around {
    deliveries: Range<u64>,
    floor: u64,
    ceiling: u64,
    /// The next block's.
    next_ceiling: u64,
}

/// Shuffles kept by a walker.
const SHUFFLES_MAX: usize = 4;

type BlockId = (u64, u64);

impl LaneWalk {
    /// Bytes that a walker holds at most, with windows of this many sequences.
    pub fn bytes(window: u64) -> u64 {
        (SHUFFLES_MAX * size_of::<u32>()) as u64 * window
    }

    /// The sequence on the line that the lane delivers after `index` others.
    pub fn sequence(&mut self, index: u64) -> u64 {
        let second = self.second;
        let first = self.first;
        let between = self.shuffle(&second, index);
        self.start + self.shuffle(&first, between)
    }

    /// One past the last sequence on the line that the lane delivers.
    pub fn end(&self) -> u64 {
        self.start + self.first.len
    }

    /// No sequence below this one is delivered at `index` or later: what lies before it can be forgotten.
    pub fn floor(&mut self, index: u64) -> u64 {
        self.around(index).floor
    }

    /// Until `index` and a while longer, no sequence from this one on is delivered.
    pub fn ceiling(&mut self, index: u64) -> u64 {
        self.around(index).ceiling
    }

    /// The ceiling that holds soon: that of the next block, once half of the block that `index` is in is delivered.
    /// Who decodes so far ahead holds two windows and a half at most.
    pub fn ceiling_ahead(&mut self, index: u64) -> u64 {
        let is_near = self.second.window / 2;
        let around = self.around(index);
        if index + is_near >= around.deliveries.end { around.next_ceiling } else { around.ceiling }
    }

    fn around(&mut self, index: u64) -> &Around {
        if !self.around.deliveries.contains(&index) {
            let Self { start, first, second, .. } = self;
            let deliveries = second.block(index).sequences;
            let ceiling = |end: u64| *start + first.block(end.saturating_sub(1)).sequences.end;
            let end = deliveries.end;
            let next_end = if end < second.len { second.block(end).sequences.end } else { end };
            self.around = Around {
                floor: *start + first.block(deliveries.start).sequences.start,
                ceiling: ceiling(end),
                next_ceiling: ceiling(next_end),
                deliveries,
            };
        }
        &self.around
    }

    fn shuffle(&mut self, pass: &Pass, index: u64) -> u64 {
        let block = pass.block(index);
        let id = (pass.key[4], block.number);
        match self.shuffles.iter().position(|(other, _)| *other == id) {
            Some(at) => self.shuffles[at..].rotate_left(1),
            None => {
                let is_full = self.shuffles.len() == SHUFFLES_MAX;
                let mut order = if is_full { self.shuffles.remove(0).1 } else { Vec::new() };
                let [seed, epoch, use_, lane, pass_number] = pass.key;
                let len = (block.sequences.end - block.sequences.start) as u32;
                let key = key(&[seed, epoch, use_, lane, pass_number, block.number]);
                fisher_yates_into(&mut order, len, key);
                self.shuffles.push((id, order));
            }
        }
        let (_, order) = self.shuffles.last().expect("just used");
        block.sequences.start + u64::from(order[(index - block.sequences.start) as usize])
    }
}

/// One pass over a lane: blocks `[0, offset)`, `[offset, offset + window)`, ... each shuffled by its own key.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Seed, epoch, 2, lane and pass: the block's number makes it complete.
    key: [u64; 5],
    offset: u64,
    window: u64,
    len: u64,
}

struct Block {
    number: u64,
    sequences: Range<u64>,
}

impl Pass {
    fn block(&self, index: u64) -> Block {
        let (number, start, end) = if index < self.offset {
            (0, 0, self.offset)
        } else {
            let full = (index - self.offset) / self.window;
            let start = self.offset + full * self.window;
            (full + 1, start, start + self.window)
        };
        Block { number, sequences: start..end.min(self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sequence_is_at_one_position_and_the_floor_holds() {
        for sequences in [0, 1, 5, 64, 257, 1000] {
            for count in [1, 2, 3, 7, 16, 64] {
                for window in [1, 2, 3, 8, 64, 5000] {
                    let lanes = Lanes::new(sequences, count, window, 7, 3);
                    let mut seen = vec![false; sequences as usize];
                    let mut walks: Vec<_> = (0..count).map(|lane| lanes.walk(lane)).collect();
                    let mut floors = vec![0; count as usize];
                    for position in 0..sequences {
                        let place = lanes.place(position);
                        let walk = &mut walks[place.lane as usize];
                        let sequence = walk.sequence(place.index);
                        assert_eq!(sequence, lanes.sequence(place));
                        assert!(lanes.sequences_of(place.lane).contains(&sequence));
                        assert!(!std::mem::replace(&mut seen[sequence as usize], true));
                        let floor = walk.floor(place.index);
                        assert!(floor <= sequence && floor >= floors[place.lane as usize]);
                        assert!(sequence - floor < 2 * u64::from(window));
                        assert!(sequence < walk.ceiling(place.index));
                        // What is decoded and not delivered yet.
                        let start = lanes.sequences_of(place.lane).start;
                        let ahead = walk.ceiling_ahead(place.index);
                        assert!(ahead >= walk.ceiling(place.index));
                        assert!(ahead - start <= place.index + 2 * u64::from(window) + 1);
                        floors[place.lane as usize] = floor;
                    }
                    assert!(seen.into_iter().all(|was| was));
                }
            }
        }
    }

    #[test]
    fn lanes_are_visited_in_bit_reversed_order() {
        assert_eq!(Lanes::new(27, 4, 4, 7, 0).lane_of_turn, [0, 2, 1, 3]);
        assert_eq!(Lanes::new(27, 6, 4, 7, 0).lane_of_turn, [0, 4, 2, 1, 5, 3]);
        assert_eq!(Lanes::new(27, 1, 1, 7, 0).lane_of_turn, [0]);
        assert_eq!(Lanes::new(27, 4, 4, 7, 0).starts, [0, 7, 14, 21, 27]);
    }
}
