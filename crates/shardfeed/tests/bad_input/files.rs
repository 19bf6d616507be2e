use std::path::Path;

use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{CachePolicy, Error, ShardConfig, StreamingParquetLoader, TokenLoader};

use crate::child::{Child, prepared};
use crate::world::{
    World, assert_names, assert_says, in_file_order, message, modified, plain, rest, rewrite, set_modified,
    small_files, tokens_of, until_error, without_a_hang,
};

/// What the loader of whole files says of the only file there is.
fn message_of_file_loader(dir: &Path) -> String {
    let mut loader = StreamingParquetLoader::new(dir, ShardConfig::single(), 4, 16).unwrap();
    let whole = message(loader.next_batches());
    let one_by_one = message(loader.batches().next().expect("an error is an item"));
    assert_eq!(whole, one_by_one);
    assert_eq!(loader.current_file_idx(), 0);
    whole
}

#[test]
fn a_file_cut_at_any_length_is_refused_by_name() {
    let world = World::with_files(1);
    let path = world.path(0);
    let bytes = std::fs::read(&path).unwrap();
    for len in 0..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        for said in [message(world.builder().build()), message_of_file_loader(world.dir())] {
            assert_names(&said, &path);
            assert_says(&said, &["not a readable Parquet file", "cut short"]);
        }
    }
}

#[test]
fn a_file_cut_after_the_scan_at_any_length_is_refused_by_name() {
    let world = World::with_files(2);
    let path = world.path(0);
    let bytes = std::fs::read(&path).unwrap();
    for len in (0..bytes.len()).step_by(7) {
        std::fs::write(&path, &bytes).unwrap();
        let mut loader = world.loader();
        std::fs::write(&path, &bytes[..len]).unwrap();
        let said = message(loader.next_batch());
        assert_names(&said, &path);
        assert_says(
            &said,
            &["changed after it was scanned", &format!("now has {len}"), "scan the data set again"],
        );
        assert_eq!(loader.state().position, 0);
    }
}

#[test]
fn an_empty_file_and_files_of_other_formats_are_refused_by_name() {
    let huge_footer = [b"PAR1".as_slice(), &[0xff, 0xff, 0xff, 0x7f], b"PAR1"].concat();
    let negative_footer = [b"PAR1".as_slice(), &[0xff; 4], b"PAR1"].concat();
    let empty_footer = [b"PAR1".as_slice(), &[0; 4], b"PAR1"].concat();
    let garbage_footer = [b"PAR1".as_slice(), &[0xa7; 64], &64_u32.to_le_bytes(), b"PAR1"].concat();
    let encrypted = [b"PARE".as_slice(), &[1; 64], &64_u32.to_le_bytes(), b"PARE"].concat();
    for bytes in [
        b"".as_slice(),
        b"\n",
        b"PAR1",
        b"PAR1PAR1",
        b"input_ids\n[1, 2, 3]\n",
        b"PK\x03\x04 an archive of some kind, long enough to have a footer",
        b"ARROW1\0\0 and a whole file after it, that ends like this ARROW1",
        &[0; 4096],
        &huge_footer,
        &negative_footer,
        &empty_footer,
        &garbage_footer,
        &encrypted,
    ] {
        let world = World::with_files(2);
        let path = world.path(1);
        std::fs::write(&path, bytes).unwrap();
        let said = message(world.builder().build());
        assert_names(&said, &path);
        assert_says(&said, &["not a readable Parquet file", "cut short, damaged, or of another format"]);
        std::fs::remove_file(world.path(0)).unwrap();
        assert_eq!(message_of_file_loader(world.dir()), said);
    }
}

#[test]
fn a_file_that_vanishes_after_the_scan_is_named_and_waited_for() {
    let world = World::with_files(3);
    let cached = || in_file_order(world.dir()).build().unwrap();
    drop(cached());
    let mut loader = cached();
    assert_eq!((loader.scan_report().files_read, loader.scan_report().files_cached), (0, 3));

    let (path, aside) = (world.path(1), world.dir().join("aside"));
    std::fs::rename(&path, &aside).unwrap();
    let (mut tokens, said) = until_error(&mut loader);
    assert_names(&said, &path);
    assert_says(&said, &["No such file"]);
    let in_first_file = world.files[0].iter().flatten().flatten().count();
    assert_eq!(tokens.len(), in_first_file / 64 * 64, "every step that needs only the first file");
    assert!(world.tokens().starts_with(&tokens));

    // It stands where it stood, and tries again each time it is asked.
    let state = loader.state().to_json();
    for _ in 0..3 {
        assert_names(&message(loader.next_batch()), &path);
        assert_eq!(loader.state().to_json(), state);
    }
    std::fs::rename(&aside, &path).unwrap();
    tokens.extend(rest(&mut loader).unwrap());
    assert_eq!(tokens, world.tokens());
}

#[test]
fn a_file_copied_back_with_its_time_is_as_good_as_the_file_that_vanished() {
    let world = World::with_files(2);
    let mut loader = world.loader();
    let path = world.path(1);
    let (bytes, time) = (std::fs::read(&path).unwrap(), modified(&path));
    std::fs::remove_file(&path).unwrap();
    let (mut tokens, said) = until_error(&mut loader);
    assert_names(&said, &path);
    std::fs::write(&path, bytes).unwrap();
    set_modified(&path, time);
    tokens.extend(rest(&mut loader).unwrap());
    assert_eq!(tokens, world.tokens());
}

#[test]
fn a_renamed_file_is_missed_under_its_old_name_and_makes_another_data_set() {
    let world = World::with_files(3);
    let mut loader = world.loader();
    let state = loader.state().clone();
    let (old, new) = (world.path(1), world.dir().join("part-001-new.parquet"));
    std::fs::rename(&old, &new).unwrap();
    let (_, said) = until_error(&mut loader);
    assert_names(&said, &old);

    let said = message(world.builder().resume_from(state).build());
    assert_says(&said, &["another data set", "renamed"]);
    // Scanned again it is there, in its place.
    assert_eq!(rest(&mut world.loader()).unwrap(), world.tokens());
}

#[test]
fn a_file_replaced_after_the_scan_is_refused_by_name_until_it_is_scanned_again() {
    let world = World::with_files(2);
    let path = world.path(0);
    let bytes = std::fs::read(&path).unwrap();
    let other = World::with_files(3);
    let same_size = std::fs::read(other.path(2)).unwrap();
    assert!(same_size.len() == bytes.len() && same_size != bytes);
    let longer = [bytes.as_slice(), b"!"].concat();
    for replacement in [longer, same_size, bytes.clone()] {
        std::fs::write(&path, &bytes).unwrap();
        let mut loader = world.loader();
        rewrite(&path, &replacement);
        for _ in 0..2 {
            let said = message(loader.next_batch());
            assert_names(&said, &path);
            assert_says(&said, &["changed after it was scanned", "scan the data set again"]);
            assert_eq!(loader.state().position, 0);
        }
    }
    // The last replacement was only touched: for a new scan it is what it was.
    assert_eq!(rest(&mut world.loader()).unwrap(), world.tokens());
}

#[test]
fn a_file_put_back_after_it_was_replaced_is_read_again() {
    let world = World::with_files(2);
    let mut loader = world.loader();
    let (path, aside) = (world.path(0), world.dir().join("aside"));
    std::fs::rename(&path, &aside).unwrap();
    write_rows(&path, &world.files[1], &WriteOptions::default()).unwrap();
    assert_says(&message(loader.next_batch()), &["changed after it was scanned"]);
    std::fs::rename(&aside, &path).unwrap();
    assert_eq!(rest(&mut loader).unwrap(), world.tokens());
}

#[test]
fn a_file_replaced_by_another_while_it_is_read_is_read_to_its_end() {
    let world = long_world(0);
    let mut loader = world.loader();
    let mut tokens = tokens_of(&loader.next_batch().unwrap().unwrap());
    // As careful programs write: a new file takes the name, the old one stays with who has it open.
    let new = world.dir().join("new");
    std::fs::copy(long_world(1).path(0), &new).unwrap();
    std::fs::rename(&new, world.path(0)).unwrap();
    match rest(&mut loader) {
        Ok(more) => {
            tokens.extend(more);
            assert_eq!(tokens, world.tokens());
        }
        Err(error) => assert_names(&error.to_string(), &world.path(0)),
    }
}

/// One file of one row group with hundreds of pages; `first_token` moves all tokens, and no byte in the file.
fn long_world(first_token: u32) -> World {
    let rows = (0..1000_u32).map(|row| Some((0..20).map(|token| first_token + row * 20 + token).collect()));
    let options = WriteOptions { rows_per_group: usize::MAX, page_bytes: 256, statistics: false, ..plain() };
    World::of(vec![rows.collect()], &options)
}

#[test]
fn a_file_cut_in_place_while_it_is_read_is_an_error_at_once_and_ever_after() {
    without_a_hang(|| {
        for packing in [shardfeed::Packing::Concat, shardfeed::Packing::Pad] {
            let world = long_world(0);
            let path = world.path(0);
            let mut loader = world.builder().packing(packing).build().unwrap();
            let mut tokens = tokens_of(&loader.next_batch().unwrap().unwrap());
            let len = std::fs::metadata(&path).unwrap().len();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(len / 2).unwrap();
            let (more, said) = until_error(&mut loader);
            tokens.extend(more);
            assert_names(&said, &path);
            assert!(world.tokens().starts_with(&tokens), "what came before the cut is right");
            let state = loader.state().to_json();
            for _ in 0..3 {
                assert_names(&message(loader.next_batch()), &path);
                assert_eq!(loader.state().to_json(), state);
            }
        }
    });
}

#[test]
fn a_file_cut_in_place_while_whole_files_are_read_is_an_error() {
    without_a_hang(|| {
        let world = long_world(0);
        let path = world.path(0);
        let mut loader = StreamingParquetLoader::new(world.dir(), ShardConfig::single(), 4, 16).unwrap();
        let mut batches = loader.batches();
        batches.next().unwrap().unwrap();
        let len = std::fs::metadata(&path).unwrap().len();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(len / 4).unwrap();
        let error = batches.find_map(Result::err).expect("the rest of the file is not there");
        assert_names(&error.to_string(), &path);
        drop(batches);
        assert_eq!(loader.current_file_idx(), 0);
        assert_names(&message(loader.next_batches()), &path);
    });
}

#[test]
fn a_file_written_over_in_place_while_it_is_read_never_gives_the_new_files_tokens() {
    let world = long_world(0);
    let path = world.path(0);
    let other = std::fs::read(long_world(1 << 20).path(0)).unwrap();
    assert_eq!(other.len() as u64, std::fs::metadata(&path).unwrap().len());
    let mut loader = world.loader();
    let mut tokens = tokens_of(&loader.next_batch().unwrap().unwrap());
    let mut file = std::fs::File::options().write(true).open(&path).unwrap();
    std::io::Write::write_all(&mut file, &other).unwrap();
    file.set_modified(modified(&path) + std::time::Duration::from_secs(10)).unwrap();
    let error = loop {
        match loader.next_batch() {
            Ok(Some(batch)) => tokens.extend(tokens_of(&batch)),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
        let right = world.tokens();
        assert!(right.starts_with(&tokens), "tokens of another file than was scanned, and no error");
    };
    let error = error.expect("nobody could have read the whole file before it was written over");
    assert!(matches!(error, Error::Changed { .. } | Error::Damaged { .. }), "{error}");
    assert_names(&error.to_string(), &path);
}

#[test]
fn an_error_leaves_no_panic_behind_it_on_any_thread() {
    let test = "files::an_error_leaves_no_panic_behind_it_on_any_thread";
    if prepared().is_none() {
        return Child { test, before: "true", own_mounts: false }.run(tempfile::tempdir().unwrap().path());
    }
    // Panics of decoding threads are caught; here, in a process of its own, one ends everything.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
    for packing in [shardfeed::Packing::Concat, shardfeed::Packing::Pad] {
        // One row in the middle of the last file is no token id.
        let mut files = small_files(3);
        files[2][9].as_mut().unwrap()[3] = 3_000_000_000;
        let world = World::of(files, &plain());
        let other_work = World::with_files(2);
        for seed in 0..30 {
            let builder = world.builder().packing(packing).shuffle(true).seed(seed).lanes(1).window(8);
            let mut loader = builder.build().unwrap();
            let error = loop {
                // Meanwhile steps are prepared ahead: the bad one, and those behind it.
                rest(&mut other_work.loader()).unwrap();
                if let Err(error) = loader.next_batch() {
                    break error;
                }
            };
            assert_says(&error.to_string(), &["row group 0, row 9:", "negative"]);
        }
    }
}

#[test]
fn after_an_error_other_ranks_and_other_loaders_are_not_disturbed() {
    let world = World::with_files(2);
    let mut stuck = world.loader();
    let mut other = world.loader();
    other.next_batch().unwrap();
    let (path, aside) = (world.path(0), world.dir().join("aside"));
    std::fs::rename(&path, &aside).unwrap();
    assert_names(&message(stuck.next_batch()), &path);
    // It has the file open.
    let tokens = rest(&mut other).unwrap();
    assert_eq!(tokens, world.tokens()[64..]);
}

#[test]
fn a_source_that_is_not_there_or_holds_nothing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere");
    let build = |source: &Path| TokenLoader::builder(source, 16, 4).cache(CachePolicy::Off).build();
    assert_names(&message(build(&nowhere)), &nowhere);
    let said = message(build(dir.path()));
    assert_names(&said, dir.path());
    assert_says(&said, &["no .parquet files", "give a directory that holds some"]);
    let missing = dir.path().join("missing.parquet");
    let said = message(TokenLoader::builder(vec![missing.clone()], 16, 4).build());
    assert_names(&said, &missing);
}

#[test]
fn every_refusal_of_a_file_says_what_to_do() {
    let world = World::with_files(2);
    let mut told = Vec::new();
    let mut loader = world.loader();
    let aside = world.dir().join("aside");
    std::fs::rename(world.path(0), &aside).unwrap();
    told.push(message(loader.next_batch()));
    std::fs::write(world.path(0), "no Parquet").unwrap();
    told.push(message(world.builder().build()));
    std::fs::rename(&aside, world.path(0)).unwrap();
    let long = long_world(0);
    let mut loader = long.loader();
    loader.next_batch().unwrap();
    std::fs::File::options().write(true).open(long.path(0)).unwrap().set_len(1000).unwrap();
    told.push(until_error(&mut loader).1);
    let empty = World::of(vec![vec![None], vec![]], &plain());
    told.push(message(empty.builder().build()));

    // Verbs that our other messages give advice with.
    let advice = [
        "restore",
        "scan",
        "give",
        "use ",
        "remove",
        "delete",
        "choose",
        "copy",
        "put it back",
        "download",
        "write it",
        "check",
        "tokenize",
        "bring",
    ];
    let silent: Vec<&String> =
        told.iter().filter(|said| !advice.iter().any(|verb| said.to_lowercase().contains(verb))).collect();
    assert!(silent.is_empty(), "these say what happened and not what to do: {silent:#?}");
}
