use shardfeed::sample::WriteOptions;
use shardfeed::{Error, Packing, Rank, Tail, TokenLoaderBuilder};

use crate::world::{World, assert_says, message, plain, rest};

/// The number that the refusal of a tiny budget names.
fn needed(builder: &TokenLoaderBuilder) -> u64 {
    let error = builder.clone().memory_budget(1).build().err().expect("one byte is not enough");
    let Error::Budget { given: 1, needed, .. } = error else { panic!("{error}") };
    assert_says(&error.to_string(), &["1 bytes", &needed.to_string(), "choose", "allow more"]);
    needed
}

#[test]
fn a_budget_too_small_is_refused_at_once_with_the_number_that_is_enough() {
    let world = World::with_files(3);
    for packing in [Packing::Concat, Packing::Pad] {
        for (shuffle, world_size) in [(false, 1), (true, 1), (true, 3), (true, 4)] {
            let mut tokens = Vec::new();
            for index in 0..world_size {
                let builder = world
                    .builder()
                    .packing(packing)
                    .shuffle(shuffle)
                    .rank(Rank::new(index, world_size).unwrap());
                let needed = needed(&builder);
                let one_less = message(builder.clone().memory_budget(needed - 1).build());
                assert_says(&one_less, &[&needed.to_string()]);
                let mut loader = builder.memory_budget(needed).build().unwrap();
                tokens.extend(rest(&mut loader).unwrap());
            }
            tokens.sort_unstable();
            assert_eq!(tokens, world.tokens(), "with exactly that budget, every token comes once");
        }
    }
}

#[test]
fn a_row_group_larger_than_the_budget_streams_or_is_refused_with_the_number() {
    let rows = (0..4000_u32).map(|row| Some((0..2000).map(|token| row * 2000 + token).collect()));
    let options = WriteOptions { rows_per_group: usize::MAX, page_bytes: 1 << 20, ..plain() };
    let world = World::of(vec![rows.collect()], &options);
    let builder = shardfeed::TokenLoader::builder(world.dir(), 1024, 8)
        .shuffle(false)
        .threads(2)
        .cache(shardfeed::CachePolicy::Off);
    let needed = needed(&builder);
    assert!(needed < 14 << 20, "the row group alone has 32 MB, the budget is {needed}");
    let mut loader = builder.memory_budget(needed).build().unwrap();
    assert_eq!(rest(&mut loader).unwrap(), world.tokens());
}

#[test]
fn more_ranks_than_sequences_of_a_step_are_refused_with_both_numbers() {
    let world = World::with_files(1);
    for (index, world_size) in [(0, 5), (4, 5), (63, 64)] {
        let said = message(world.builder().rank(Rank::new(index, world_size).unwrap()).build());
        assert_says(&said, &["global batch is 4", &format!("{world_size} ranks"), "at least one sequence"]);
    }
    let said = message(shardfeed::TokenLoader::builder(world.dir(), 16, 0).build());
    assert_says(&said, &["global batch is 0"]);
    let said = message(shardfeed::TokenLoader::builder(world.dir(), 0, 4).build());
    assert_says(&said, &["seq_len is 0", "give the number of tokens"]);
}

#[test]
fn a_short_last_step_that_is_forbidden_is_refused_before_the_first() {
    // 210 tokens are 14 sequences of 16, which 4 does not divide and 7 does.
    let world = World::with_files(1);
    assert_eq!(world.tokens().len().div_ceil(16), 14);
    let said = message(world.builder().tail(Tail::Error).build());
    assert_says(&said, &["14 sequences", "takes 4", "choose tail \"pad\"", "another global batch"]);
    let sevens = shardfeed::TokenLoader::builder(world.dir(), 16, 7)
        .shuffle(false)
        .tail(Tail::Error)
        .cache(shardfeed::CachePolicy::Off);
    assert_eq!(rest(&mut sevens.build().unwrap()).unwrap(), world.tokens());
}

#[test]
fn dropping_everything_is_refused_before_the_first_step() {
    let world = World::with_files(1);
    let fifteen = |tail| {
        shardfeed::TokenLoader::builder(world.dir(), 16, 15)
            .shuffle(false)
            .tail(tail)
            .cache(shardfeed::CachePolicy::Off)
            .build()
    };
    let said = message(fifteen(Tail::Drop));
    assert_says(&said, &["14 sequences", "takes 15", "would be short", "choose tail \"pad\""]);
    assert_eq!(rest(&mut fifteen(Tail::Pad).unwrap()).unwrap(), world.tokens());
}
