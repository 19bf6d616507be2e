use std::path::{Path, PathBuf};

use shardfeed::sample::write_rows;
use shardfeed::{CachePolicy, Packing, ScanReport};
use shardfeed_plan::{PieceCounts, decode_manifest, encode_manifest};

use crate::child::{Child, can_mount, prepared};
use crate::world::{
    World, assert_says, in_file_order, modified, plain, rest, rewrite, set_modified, small_files, tokens_in,
};

fn manifest_of(dir: &Path) -> PathBuf {
    dir.join(".shardfeed/manifest")
}

/// Builds a loader with the cache beside the data, checks that it streams `tokens`, and tells what its scan did.
#[track_caller]
fn stream(dir: &Path, cache: CachePolicy, tokens: &[u32]) -> ScanReport {
    let mut loader = in_file_order(dir).cache(cache).build().unwrap();
    let report = loader.scan_report().clone();
    assert_eq!(rest(&mut loader).unwrap(), tokens);
    report
}

#[test]
fn a_second_start_opens_no_file() {
    let world = World::with_files(3);
    let first = stream(world.dir(), CachePolicy::Auto, &world.tokens());
    let manifest = manifest_of(world.dir());
    assert_eq!((first.files_read, first.files_cached), (3, 0));
    assert_eq!((first.cache_read, first.cache_written.as_ref()), (None, Some(&manifest)));
    let second = stream(world.dir(), CachePolicy::Auto, &world.tokens());
    assert_eq!((second.files_read, second.files_cached), (0, 3));
    assert_eq!((second.cache_read.as_ref(), second.cache_written), (Some(&manifest), None));
    assert_eq!((first.cache_notes, second.cache_notes), (vec![], vec![]));
}

#[test]
fn a_broken_truncated_foreign_or_other_versions_manifest_is_rebuilt_and_never_trusted() {
    let world = World::with_files(2);
    let tokens = world.tokens();
    stream(world.dir(), CachePolicy::Auto, &tokens);
    let manifest = manifest_of(world.dir());
    let good = std::fs::read(&manifest).unwrap();
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    let mut cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "not a Shardfeed manifest"),
        (b"something else entirely, of another program".to_vec(), "not a Shardfeed manifest"),
        (vec![0; 10_000], "not a Shardfeed manifest"),
        (std::fs::read(world.path(0)).unwrap(), "not a Shardfeed manifest"),
        (changed(8, 3), "manifest version 3, this release reads 1 and 2"),
        (changed(8, 0), "manifest version 0, this release reads 1 and 2"),
        (changed(30, good[30] ^ 1), "damaged manifest"),
        ([good.as_slice(), b"more"].concat(), "damaged manifest"),
    ];
    cases.extend((24..good.len()).step_by(11).map(|len| (good[..len].to_vec(), "damaged manifest")));
    for (bytes, reason) in cases {
        std::fs::write(&manifest, bytes).unwrap();
        let report = stream(world.dir(), CachePolicy::Auto, &tokens);
        assert_eq!((report.files_read, report.files_cached, report.cache_read), (2, 0, None));
        let [note] = &report.cache_notes[..] else { panic!("{:?}", report.cache_notes) };
        assert_says(note, &[manifest.to_str().unwrap(), reason, "scanned again"]);
        // It was put right for the next start.
        assert_eq!(report.cache_written.as_ref(), Some(&manifest));
        assert_eq!(std::fs::read(&manifest).unwrap(), good);
    }
}

#[test]
fn the_manifest_of_another_data_set_is_not_taken_for_this_ones() {
    let world = World::with_files(2);
    // Files of the same names and sizes, with other tokens.
    let mut others = World::with_files(4).files;
    let other = World::of(
        others.split_off(2),
        &shardfeed::sample::WriteOptions { rows_per_group: 7, page_bytes: 64, ..plain() },
    );
    assert_ne!(other.tokens(), world.tokens());
    for file in 0..2 {
        let len = |world: &World| std::fs::metadata(world.path(file)).unwrap().len();
        assert_eq!(len(&world), len(&other));
        set_modified(&other.path(file), modified(&world.path(file)) + std::time::Duration::from_secs(1));
    }
    stream(other.dir(), CachePolicy::Auto, &other.tokens());
    std::fs::create_dir(world.dir().join(".shardfeed")).unwrap();
    std::fs::copy(manifest_of(other.dir()), manifest_of(world.dir())).unwrap();
    let report = stream(world.dir(), CachePolicy::Auto, &world.tokens());
    assert_eq!((report.files_read, report.files_cached), (2, 0));
}

#[test]
fn only_files_that_changed_are_read_again() {
    let world = World::with_files(4);
    let mut expected = world.files.clone();
    let stream = |tokens: Vec<u32>| {
        let report = stream(world.dir(), CachePolicy::Auto, &tokens);
        assert!(report.cache_notes.is_empty(), "{report:?}");
        (report.files_read, report.files_cached)
    };
    assert_eq!(stream(tokens_in(&expected)), (4, 0));

    // Other rows; the same size and another time; only another time.
    let time = modified(&world.path(2));
    expected[2] = vec![Some(vec![7_000_001, 7_000_002, 7_000_003])];
    write_rows(&world.path(2), &expected[2], &plain()).unwrap();
    set_modified(&world.path(2), time);
    assert_eq!(stream(tokens_in(&expected)), (1, 3));
    let size = std::fs::metadata(world.path(2)).unwrap().len();
    expected[2] = vec![Some(vec![7_000_004, 7_000_005, 7_000_006])];
    write_rows(&world.path(2), &expected[2], &plain()).unwrap();
    assert_eq!(std::fs::metadata(world.path(2)).unwrap().len(), size);
    set_modified(&world.path(2), time + std::time::Duration::from_nanos(1));
    assert_eq!(stream(tokens_in(&expected)), (1, 3));
    rewrite(&world.path(0), &std::fs::read(world.path(0)).unwrap());
    assert_eq!(stream(tokens_in(&expected)), (1, 3));
    assert_eq!(stream(tokens_in(&expected)), (0, 4));

    // One more, one less, one under another name.
    expected.push(vec![Some(vec![8_000_001])]);
    write_rows(&world.path(4), &expected[4], &plain()).unwrap();
    assert_eq!(stream(tokens_in(&expected)), (1, 4));
    expected.remove(1);
    std::fs::remove_file(world.path(1)).unwrap();
    assert_eq!(stream(tokens_in(&expected)), (0, 4));
    std::fs::rename(world.path(3), world.path(1)).unwrap();
    expected.swap(1, 2);
    assert_eq!(stream(tokens_in(&expected)), (1, 3));
    assert_eq!(stream(tokens_in(&expected)), (0, 4));
}

#[test]
fn counted_rows_of_files_that_changed_are_counted_again() {
    let world = World::with_files(3);
    let count = || {
        let mut loader = in_file_order(world.dir()).packing(Packing::Pad).build().unwrap();
        let report = loader.scan_report().clone();
        (rest(&mut loader).unwrap(), report.files_read, report.row_groups_counted)
    };
    assert_eq!(count(), (world.tokens(), 3, 9));
    assert_eq!(count(), (world.tokens(), 0, 0));
    rewrite(&world.path(1), &std::fs::read(world.path(1)).unwrap());
    assert_eq!(count(), (world.tokens(), 1, 3));
}

#[test]
fn a_manifest_kept_elsewhere_is_found_there_and_nothing_is_written_beside_the_data() {
    let world = World::with_files(2);
    let elsewhere = tempfile::tempdir().unwrap();
    let at = elsewhere.path().join("not/yet/there/manifest");
    let report = stream(world.dir(), CachePolicy::At(at.clone()), &world.tokens());
    assert_eq!(report.cache_written.as_ref(), Some(&at));
    let report = stream(world.dir(), CachePolicy::At(at.clone()), &world.tokens());
    assert_eq!((report.cache_read, report.files_read), (Some(at), 0));
    stream(world.dir(), CachePolicy::Off, &world.tokens());
    assert!(!world.dir().join(".shardfeed").exists());
}

#[test]
fn many_ranks_that_scan_at_once_all_write_the_manifest_and_it_is_whole() {
    let test = "cache::many_ranks_that_scan_at_once_all_write_the_manifest_and_it_is_whole";
    if prepared().is_none() {
        return Child { test, before: "true", own_mounts: false }.run(tempfile::tempdir().unwrap().path());
    }
    for _ in 0..20 {
        let world = World::with_files(3);
        let tokens = world.tokens();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let report = stream(world.dir(), CachePolicy::Auto, &tokens);
                    assert!(report.cache_notes.is_empty(), "{:?}", report.cache_notes);
                });
            }
        });
        let report = stream(world.dir(), CachePolicy::Auto, &tokens);
        assert_eq!((report.files_read, report.cache_notes), (0, vec![]));
        let left: Vec<_> = std::fs::read_dir(world.dir().join(".shardfeed")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

/// In a child, whose cache directory is its own: streams twice, and expects the second start to find the cache.
fn stream_twice(dir: &Path, beside_is_refused: bool) {
    let (data, cache) = (dir.join("data"), dir.join("cache"));
    let tokens = tokens_in(&small_files(2));
    let first = stream(&data, CachePolicy::Auto, &tokens);
    assert_eq!(first.files_read, 2);
    let written = first.cache_written.expect("in one place or the other");
    if beside_is_refused {
        assert!(written.starts_with(&cache), "{}", written.display());
        let notes = first.cache_notes.join("\n");
        assert_says(&notes, &[manifest_of(&data).to_str().unwrap(), "cannot be written"]);
    }
    let second = stream(&data, CachePolicy::Auto, &tokens);
    assert_eq!((second.files_read, second.cache_read), (0, Some(written)));
}

/// A directory for a child, with the files of a small world in `data`.
fn prepare() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let world = World::with_files(2);
    for file in 0..2 {
        let path = world.path(file);
        std::fs::copy(&path, data.join(path.file_name().unwrap())).unwrap();
    }
    dir
}

#[test]
fn a_data_directory_that_cannot_be_written_to_is_no_obstacle() {
    let test = "cache::a_data_directory_that_cannot_be_written_to_is_no_obstacle";
    if let Some(dir) = prepared() {
        let beside_is_refused = std::fs::write(dir.join("data/probe"), "").is_err();
        return stream_twice(&dir, beside_is_refused);
    }
    // Root may write here all the same; then the manifest lies beside the data, and that is right too.
    let dir = prepare();
    Child { test, before: "chmod 0555 \"$DIR/data\"", own_mounts: false }.run(dir.path());
    std::fs::set_permissions(dir.path().join("data"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    if can_mount() {
        let dir = prepare();
        let before = "mount --bind \"$DIR/data\" \"$DIR/data\"; mount -o remount,bind,ro \"$DIR/data\"";
        Child { test, before, own_mounts: true }.run(dir.path());
        assert!(!dir.path().join("data/.shardfeed").exists());
    }
}

#[test]
fn a_plain_file_or_a_directory_in_the_manifests_place_is_no_obstacle() {
    let test = "cache::a_plain_file_or_a_directory_in_the_manifests_place_is_no_obstacle";
    if let Some(dir) = prepared() {
        return stream_twice(&dir, true);
    }
    for before in ["echo hello > \"$DIR/data/.shardfeed\"", "mkdir -p \"$DIR/data/.shardfeed/manifest/full\""]
    {
        Child { test, before, own_mounts: false }.run(prepare().path());
    }
}

#[test]
fn no_place_at_all_for_a_manifest_is_no_obstacle() {
    let test = "cache::no_place_at_all_for_a_manifest_is_no_obstacle";
    if let Some(dir) = prepared() {
        let tokens = tokens_in(&small_files(2));
        for _ in 0..2 {
            let report = stream(&dir.join("data"), CachePolicy::Auto, &tokens);
            assert_eq!((report.files_read, report.cache_read, report.cache_written), (2, None, None));
            assert!(!report.cache_notes.is_empty());
        }
        return;
    }
    for before in [
        "touch \"$DIR/data/.shardfeed\" \"$DIR/cache\"",
        "touch \"$DIR/data/.shardfeed\"; unset XDG_CACHE_HOME HOME",
        "touch \"$DIR/data/.shardfeed\"; export XDG_CACHE_HOME= HOME=/dev/null",
    ] {
        Child { test, before, own_mounts: false }.run(prepare().path());
    }
}

#[test]
fn a_full_disk_is_no_obstacle_and_nothing_half_written_is_left_on_it() {
    let test = "cache::a_full_disk_is_no_obstacle_and_nothing_half_written_is_left_on_it";
    if let Some(dir) = prepared() {
        let tokens = tokens_in(&small_files(2));
        let full = dir.join("full");
        // A small disk is filled to its last byte; where files may have no bytes at all, it is full already.
        let mut filler = std::fs::File::create(full.join("filler")).unwrap();
        while std::io::Write::write(&mut filler, &[1; 512]).is_ok_and(|written| written > 0) {}
        let at = full.join("manifest");
        let report = stream(&dir.join("data"), CachePolicy::At(at.clone()), &tokens);
        assert_eq!((report.files_read, report.cache_written), (2, None));
        let [note] = &report.cache_notes[..] else { panic!("{:?}", report.cache_notes) };
        assert_says(note, &[at.to_str().unwrap(), "cannot be written"]);
        let left: Vec<_> =
            std::fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["filler"]);
        return;
    }
    // Files of no bytes: what a full disk says comes as another error, on any machine.
    let before = "mkdir \"$DIR/full\"; trap '' XFSZ; ulimit -f 0";
    Child { test, before, own_mounts: false }.run(prepare().path());
    if can_mount() {
        let before = "mkdir \"$DIR/full\"; mount -t tmpfs -o size=64k none \"$DIR/full\"";
        Child { test, before, own_mounts: true }.run(prepare().path());
    }
}

#[test]
fn sequences_that_the_manifest_counts_wrong_are_found_when_their_row_group_is_read() {
    let world = World::with_files(2);
    let padded = || world.builder().cache(CachePolicy::Auto).packing(Packing::Pad);
    let right = rest(&mut padded().build().unwrap()).unwrap();
    assert_eq!(right, world.tokens());
    let place = manifest_of(world.dir());
    let mut manifest = decode_manifest(&std::fs::read(&place).unwrap()).unwrap();
    let seq_len = manifest.files()[1].pieces[0].seq_len;
    let mut counts = manifest.files()[1].pieces[0].counts.clone();
    // Within what the tokens could make, so that only reading tells.
    for change in [1, -1_i64] {
        counts[0] = counts[0].checked_add_signed(change).unwrap();
        manifest.set_pieces(1, PieceCounts { seq_len, counts: counts.clone() });
        std::fs::write(&place, encode_manifest(&manifest)).unwrap();
        match padded().build().and_then(|mut loader| rest(&mut loader)) {
            Ok(tokens) => assert_eq!(tokens, right, "counted right again"),
            Err(error) => assert_says(&error.to_string(), &["part-001.parquet", "row group 0", "scan again"]),
        }
    }
    // What no rows can make is not taken for a manifest at all.
    for impossible in [0, u64::MAX, 100_000_000_000] {
        counts[0] = impossible;
        manifest.set_pieces(1, PieceCounts { seq_len, counts: counts.clone() });
        std::fs::write(&place, encode_manifest(&manifest)).unwrap();
        assert_eq!(rest(&mut padded().build().unwrap()).unwrap(), right);
    }
}

#[test]
fn an_old_manifest_beside_data_that_cannot_be_written_to_gives_way_to_a_newer_one() {
    let tokens = tokens_in(&small_files(2));
    if let Some(dir) = prepared() {
        let start = || stream(&dir.join("data"), CachePolicy::Auto, &tokens);
        let (first, second) = (start(), start());
        assert_eq!((first.files_read, first.files_cached), (1, 1), "{first:?}");
        assert_eq!((second.files_read, second.files_cached), (0, 2), "{second:?}");
        return;
    }
    if !can_mount() {
        return;
    }
    let dir = prepare();
    let data = dir.path().join("data");
    stream(&data, CachePolicy::Auto, &tokens);
    let changed = data.join("part-001.parquet");
    set_modified(&changed, modified(&changed) + std::time::Duration::from_mins(1));
    let test = "cache::an_old_manifest_beside_data_that_cannot_be_written_to_gives_way_to_a_newer_one";
    let before = "mount --bind \"$DIR/data\" \"$DIR/data\"; mount -o remount,bind,ro \"$DIR/data\"";
    Child { test, before, own_mounts: true }.run(dir.path());
}
