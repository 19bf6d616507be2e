use std::sync::Barrier;

use shardfeed::{Batch, CachePolicy, Packing, Rank, mix};

use crate::job::{Wish, all_batches, some_dir};

#[test]
fn ranks_of_a_replica_group_get_identical_batches() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let of_rank =
        |index| all_batches(wish.builder(dir.path(), 12).rank(Rank::new(index, 5).unwrap()).cu_seqlens(true));
    for index in 0..5 {
        let replica = of_rank(index);
        assert!(!replica.is_empty());
        assert_eq!(replica, of_rank(index));
    }
    assert_ne!(of_rank(0), of_rank(1));
}

#[test]
fn any_number_of_threads_gives_identical_batches() {
    let (dir, _) = some_dir();
    for packing in [Packing::Concat, Packing::Pad] {
        let wish = Wish { packing, eos_id: Some(7), ..Wish::default() };
        let of_threads =
            |threads| all_batches(wish.builder(dir.path(), 12).cu_seqlens(true).threads(threads));
        let expected = of_threads(1);
        assert!(expected.len() > 20);
        for threads in [2, 5] {
            assert_eq!(of_threads(threads), expected, "{threads} threads");
        }
    }
}

#[test]
fn two_loaders_over_one_directory_do_not_disturb_each_other() {
    let (dir, _) = some_dir();
    let one = Wish { eos_id: Some(7), ..Wish::default() };
    let other = Wish { packing: Packing::Pad, seq_len: 10, seed: 99, ..Wish::default() };
    let builders = || [one.builder(dir.path(), 12), other.builder(dir.path(), 7).threads(2)];
    let alone = builders().map(all_batches);
    let mut loaders = builders().map(|builder| builder.build().unwrap());
    let mut together = [Vec::new(), Vec::new()];
    for turn in 0.. {
        if alone.iter().zip(&together).all(|(alone, together)| alone.len() == together.len()) {
            break;
        }
        let which = (mix(turn) % 2) as usize;
        if together[which].len() < alone[which].len() {
            together[which].extend(loaders[which].next_batch().unwrap());
        }
    }
    assert_eq!(together, alone);
}

#[test]
fn loaders_that_start_at_once_share_one_manifest_and_see_the_same() {
    let wish = Wish::default();
    let expected = all_batches(wish.builder(some_dir().0.path(), 12));
    for _ in 0..20 {
        let (dir, _) = some_dir();
        // Beside the data as by default, but nowhere else: what fails must not end up in the user's own cache.
        let cache = CachePolicy::At(dir.path().join(".shardfeed").join("manifest"));
        let builder = || wish.builder(dir.path(), 12).cache(cache.clone());
        let barrier = Barrier::new(6);
        std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                let mut loader = builder().build().unwrap();
                let batches: Vec<Batch> = loader.batches().collect::<Result<_, _>>().unwrap();
                (batches, loader.scan_report().cache_notes.clone())
            };
            let ranks: Vec<_> = (0..6).map(|_| scope.spawn(start)).collect();
            for rank in ranks {
                let (batches, notes) = rank.join().unwrap();
                assert_eq!(batches, expected);
                assert_eq!(notes, Vec::<String>::new(), "nobody finds or leaves a broken manifest");
            }
        });
        let report = builder().build().unwrap().scan_report().clone();
        assert_eq!((report.files_read, report.files_cached), (0, 4), "{report:?}");
    }
}
