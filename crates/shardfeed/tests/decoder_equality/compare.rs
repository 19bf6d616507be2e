use std::path::Path;
use std::sync::Arc;

use shardfeed::{
    CachePolicy, DataSet, IdType, Result, RowGroupCursor, ScanOptions, Source, TokenLoader, scan,
};

use crate::common::Dice;
use crate::reference;

/// Around the sizes at which decoders work: words, groups of eight, mini blocks, portions.
const PORTIONS: [usize; 18] =
    [1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 500, 1023, 4096, 5000, usize::MAX];

pub fn open(path: &Path) -> Result<Arc<DataSet>> {
    let options = ScanOptions { cache: CachePolicy::Off, threads: Some(1), ..ScanOptions::default() };
    scan(&Source::Files(vec![path.to_owned()]), &options).map(|(data, _)| data)
}

/// Both readers give the same of every row group: in one piece, in random pieces, and with some passed over.
pub fn assert_equal(path: &Path, seed: u64) -> Result<()> {
    let data = open(path)?;
    let naive = reference::row_groups(path, data.manifest().files()[0].column.ids == IdType::U32).unwrap();
    let mut met = vec![false; naive.len()];
    for (index, facts) in data.manifest().row_groups().iter().enumerate() {
        let naive = Expected::new(&naive[facts.number as usize]);
        met[facts.number as usize] = true;
        for turn in 0..3 {
            let cursor = data.open_row_group(index as u32)?;
            let mut dice = Dice::new(seed ^ turn << 32 ^ index as u64);
            let taken = match turn {
                0 => take(cursor, || Move { max: usize::MAX, portion: usize::MAX, skip: false })?,
                1 => take(cursor, || Move { max: dice.pick(&PORTIONS), portion: usize::MAX, skip: false })?,
                _ => take(cursor, || Move {
                    max: dice.pick(&PORTIONS),
                    portion: dice.pick(&PORTIONS),
                    skip: dice.one_in(2),
                })?,
            };
            naive.assert_same(&taken, &format!("{}, row group {index}, turn {turn}", path.display()));
        }
    }
    assert_streamed(path, &naive, seed)?;
    for (number, _) in met.iter().enumerate().filter(|(_, met)| !**met) {
        assert_eq!(naive[number], Vec::<Vec<i64>>::new(), "row group {number} is left out");
    }
    Ok(())
}

/// The stream, in file order, is all tokens one after another.
fn assert_streamed(path: &Path, naive: &[Vec<Vec<i64>>], seed: u64) -> Result<()> {
    let tokens: Vec<i64> = naive.iter().flatten().flatten().copied().collect();
    if tokens.is_empty() {
        return Ok(());
    }
    let seq_len = Dice::new(seed).pick(&[1, 7, 64, 1000, 5000]).min(tokens.len()) as u32;
    let builder = TokenLoader::builder(vec![path.to_owned()], seq_len, 3).shuffle(false).threads(1);
    let mut streamed = Vec::with_capacity(tokens.len());
    for batch in builder.cache(CachePolicy::Off).build()?.batches() {
        streamed.extend(batch?.input_ids().iter());
    }
    let differs = streamed.iter().zip(&tokens).position(|(streamed, naive)| streamed != naive);
    assert_eq!(differs, None, "{}: a token of the stream of {seq_len}", path.display());
    assert!(streamed.len() >= tokens.len());
    Ok(())
}

/// How the next tokens are taken: the longest segment asked for, and how many of its tokens at once.
pub struct Move {
    pub max: usize,
    pub portion: usize,
    pub skip: bool,
}

/// What a cursor gave. Tokens that were passed over are `None`.
#[derive(Default)]
pub struct Taken {
    pub tokens: Vec<Option<u32>>,
    pub row_starts: Vec<usize>,
}

/// Goes through a row group as the moves say.
pub fn take(mut cursor: RowGroupCursor, mut next_move: impl FnMut() -> Move) -> Result<Taken> {
    let mut taken = Taken::default();
    let mut read = Vec::new();
    loop {
        let max = next_move().max;
        let Some(segment) = cursor.segment(max)? else { return Ok(taken) };
        assert!((1..=max).contains(&segment.tokens), "{segment:?} where at most {max} were asked for");
        if segment.starts_row {
            taken.row_starts.push(taken.tokens.len());
        }
        let mut left = segment.tokens;
        while left > 0 {
            let Move { portion, skip, .. } = next_move();
            let count = portion.min(left);
            left -= count;
            if skip {
                cursor.skip(count)?;
                taken.tokens.resize(taken.tokens.len() + count, None);
            } else {
                read.clear();
                cursor.read(count, &mut read)?;
                assert_eq!(read.len(), count, "as many tokens as were asked for");
                taken.tokens.extend(read.iter().copied().map(Some));
            }
        }
    }
}

struct Expected {
    tokens: Vec<u32>,
    row_starts: Vec<usize>,
}

impl Expected {
    fn new(rows: &[Vec<i64>]) -> Self {
        let mut expected = Self { tokens: Vec::new(), row_starts: Vec::new() };
        for row in rows {
            expected.row_starts.push(expected.tokens.len());
            expected.tokens.extend(row.iter().map(|&id| u32::try_from(id).expect("a token id")));
        }
        expected
    }

    fn assert_same(&self, taken: &Taken, place: &str) {
        // Millions of tokens in a message help nobody: the first that differs does.
        let differs = taken
            .tokens
            .iter()
            .zip(&self.tokens)
            .position(|(taken, naive)| taken.is_some_and(|taken| taken != *naive));
        if let Some(at) = differs {
            panic!("{place}: token {at} is {:?}, and should be {}", taken.tokens[at], self.tokens[at]);
        }
        assert_eq!(taken.tokens.len(), self.tokens.len(), "{place}: tokens");
        assert!(taken.row_starts == self.row_starts, "{place}: rows start elsewhere");
    }
}
