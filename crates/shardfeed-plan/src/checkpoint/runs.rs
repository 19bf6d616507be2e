use std::ops::Range;

use super::copying::{Copying, Fix};

/// Bytes that are read at once, and what becomes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The file, by its number.
    pub file: u32,
    /// Which bytes of it.
    pub range: Range<u64>,
    /// Which of the sorted pieces lie in them.
    pub pieces: Range<usize>,
    /// It is one block that lies together on both sides: it can be read straight to where it belongs.
    pub is_direct: bool,
}

/// A piece of what is wanted: from a file to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The file, by its number.
    pub file: u32,
    /// The destination, by its number.
    pub destination: u32,
    /// What it is a piece of, by a number of the asker's own.
    pub item: u32,
    /// Which bytes go where; the source is counted from the beginning of the file.
    pub copying: Copying,
    /// What has to be done to them there.
    pub fix: Option<Fix>,
}

/// How large reads may be, and when several are made into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Bytes of a read at most; what is larger is split.
    pub block: u64,
    /// Bytes that are rather read for nothing than left out with a second read.
    pub gap: u64,
    /// Bytes from which a block is read straight to its destination, and not together with others.
    pub direct: u64,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { block: 8 << 20, gap: 64 << 10, direct: 128 << 10 }
    }
}

/// Pieces into which gaps may cut what is wanted, unless more were wanted. Each takes some hundred bytes of memory, and a small file may speak of
/// as many as it likes.
const PLACES_MAX: u64 = 1 << 24;

/// Which reads bring everything that is wanted: those of a file in the order of its bytes, neighbours as one, large ones split,
/// and bytes that several destinations want only once (but for borders of blocks). Where gaps would make too many pieces of it, larger
/// ones are read over.
pub fn plan_runs(wanted: Vec<Piece>, limits: RunLimits) -> (Vec<Piece>, Vec<Run>) {
    plan_within(wanted, limits, PLACES_MAX)
}

fn plan_within(wanted: Vec<Piece>, mut limits: RunLimits, places_max: u64) -> (Vec<Piece>, Vec<Run>) {
    let places = |gap: u64| wanted.iter().map(|piece| piece.copying.places(gap)).fold(0, u64::saturating_add);
    while limits.gap < u64::MAX && places(limits.gap) > places_max.max(wanted.len() as u64) {
        limits.gap = limits.gap.saturating_mul(2).max(4096);
    }
    let mut pieces = Vec::with_capacity(wanted.len());
    for Piece { file, destination, item, copying, fix } in wanted {
        copying.split(limits.block, limits.gap, &mut |copying| {
            pieces.push(Piece { file, destination, item, copying, fix });
        });
    }
    pieces.sort_by_key(|piece| (piece.file, piece.copying.from));
    let mut runs: Vec<Run> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let source = piece.copying.source();
        let is_direct =
            piece.copying.is_plain() && piece.fix.is_none() && piece.copying.unit >= limits.direct;
        if let Some(run) = runs.last_mut().filter(|run| run.file == piece.file) {
            let is_shared = source.start < run.range.end;
            let is_near =
                source.start <= run.range.end.saturating_add(limits.gap) && !is_direct && !run.is_direct;
            let end = run.range.end.max(source.end);
            if (is_shared || is_near) && end - run.range.start <= limits.block.max(64) {
                run.range.end = end;
                run.pieces.end = index + 1;
                run.is_direct = false;
                continue;
            }
        }
        runs.push(Run { file: piece.file, range: source, pieces: index..index + 1, is_direct });
    }
    (pieces, runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dim;
    use proptest::prelude::*;

    #[test]
    fn there_are_no_more_pieces_than_memory_is_for() {
        let dims =
            vec![Dim { count: 100, from: 1 << 20, to: 1 << 20 }, Dim { count: 1000, from: 1000, to: 1 }];
        let wanted = || {
            vec![Piece { copying: Copying { from: 0, to: 0, unit: 1, dims: dims.clone() }, ..plain(0, 0, 1) }]
        };
        let limits = RunLimits { gap: 0, ..RunLimits::default() };
        assert_eq!(plan_within(wanted(), limits, 100_000).0.len(), 100_000);
        let (pieces, _) = plan_within(wanted(), limits, 99_999);
        assert_eq!(pieces.len(), 100);
        assert_eq!(pieces.iter().map(|piece| piece.copying.bytes()).sum::<u64>(), 100_000);
        // Less than one for each that is wanted there cannot be.
        assert_eq!(
            plan_within(wanted(), limits, 0).0.iter().map(|piece| piece.copying.bytes()).sum::<u64>(),
            100_000
        );
    }

    fn plain(file: u32, from: u64, unit: u64) -> Piece {
        let copying = Copying { from, to: 0, unit, dims: vec![] };
        Piece { file, destination: 0, item: 0, copying, fix: None }
    }

    #[test]
    fn neighbours_are_one_read_and_large_ones_several() {
        let limits = RunLimits { block: 1024, gap: 10, direct: 500 };
        let wanted = vec![
            plain(0, 300, 50),
            plain(1, 0, 9),
            plain(0, 0, 100),
            plain(0, 110, 100),
            plain(0, 2000, 2500),
        ];
        let (_, runs) = plan_runs(wanted, limits);
        let ranges: Vec<(u32, Range<u64>, bool)> =
            runs.iter().map(|run| (run.file, run.range.clone(), run.is_direct)).collect();
        let expected = [
            (0, 0..210, false),
            (0, 300..350, false),
            (0, 2000..3024, true),
            (0, 3024..4048, true),
            (0, 4048..4500, false),
            (1, 0..9, false),
        ];
        assert_eq!(ranges, expected);
    }

    #[test]
    fn what_two_want_is_read_once() {
        let limits = RunLimits { block: 1024, gap: 10, direct: 500 };
        let (_, runs) = plan_runs(vec![plain(0, 0, 4000), plain(0, 0, 4000)], limits);
        assert_eq!(runs.iter().map(|run| run.range.end - run.range.start).sum::<u64>(), 4000);
        assert!(runs.iter().all(|run| run.pieces.len() == 2 && !run.is_direct));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn every_piece_lies_in_its_run(
            wanted in proptest::collection::vec((0..3_u32, 0..3000_u64, 1..1500_u64, 1..4_u64, 0..200_u64), 0..40),
            block in 1..2000_u64, gap in 0..300_u64, direct in 1..800_u64,
        ) {
            let limits = RunLimits { block, gap, direct };
            let wanted: Vec<Piece> = wanted
                .into_iter()
                .map(|(file, from, unit, count, room)| {
                    let dims = if count > 1 { vec![Dim { count, from: unit + room, to: unit }] } else { vec![] };
                    Piece { copying: Copying { from, to: 0, unit, dims }, ..plain(file, 0, 1) }
                })
                .collect();
            let bytes: u64 = wanted.iter().map(|piece| piece.copying.bytes()).sum();
            let (pieces, runs) = plan_runs(wanted, limits);
            prop_assert_eq!(pieces.iter().map(|piece| piece.copying.bytes()).sum::<u64>(), bytes);
            prop_assert_eq!(runs.iter().map(|run| run.pieces.len()).sum::<usize>(), pieces.len());
            let mut before: Option<&Run> = None;
            for run in &runs {
                prop_assert_eq!(run.pieces.start, before.map_or(0, |before| before.pieces.end));
                prop_assert!(before.is_none_or(|before| (before.file, before.range.start) <= (run.file, run.range.start)));
                prop_assert!(run.range.end - run.range.start <= block.next_multiple_of(64).max(64));
                let mine = &pieces[run.pieces.clone()];
                prop_assert!(mine.iter().all(|piece| piece.file == run.file));
                let start = mine.iter().map(|piece| piece.copying.source().start).min();
                let end = mine.iter().map(|piece| piece.copying.source().end).max();
                prop_assert_eq!((start, end), (Some(run.range.start), Some(run.range.end)));
                prop_assert!(!run.is_direct || mine.len() == 1 && mine[0].copying.is_plain());
                before = Some(run);
            }
        }
    }
}
