//! `verify` names every damaged place, and no other.

mod common;

use std::path::{Path, PathBuf};

use common::page_bodies::page_bodies;
use shardfeed::sample::{SampleData, write_sample};
use shardfeed::{
    EpochOrder, Packing, StreamSettings, VerifyOptions, VerifyReport, is_exactly_once, mix, verify,
};

fn checksummed() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/checksums");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "parquet"))
        .collect();
    files.sort();
    assert!(files.len() >= 60);
    files
}

fn verified(dir: &Path) -> VerifyReport {
    verify(&dir.into(), &VerifyOptions::default()).unwrap()
}

#[test]
fn every_damaged_page_is_named_and_no_other() {
    for (seed, path) in (0_u64..).zip(checksummed()) {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("a.parquet");
        std::fs::copy(&path, &copy).unwrap();
        let whole = verified(dir.path());
        assert!(whole.damages.is_empty(), "{}: {:?}", path.display(), whole.damages);
        assert!(whole.tokens > 0);
        let bodies = page_bodies(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        let damaged: Vec<usize> =
            (0..bodies.len()).filter(|&page| mix(seed << 20 | page as u64).is_multiple_of(3)).collect();
        for &page in &damaged {
            let body = &bodies[page];
            let at = body.start + mix(seed ^ page as u64) % (body.end - body.start);
            bytes[at as usize] ^= 1 << (seed % 8);
        }
        std::fs::write(&copy, bytes).unwrap();
        let report = verified(dir.path());
        assert_eq!(report.damages.len(), damaged.len(), "{}: {:?}", path.display(), report.damages);
        for damage in &report.damages {
            assert!(
                damage.reason.contains("a.parquet") && damage.reason.contains("page"),
                "{}",
                damage.reason
            );
        }
        let places: Vec<_> = report.damages.iter().map(|damage| (damage.row_group, damage.page)).collect();
        assert!(places.is_sorted() && places.windows(2).all(|two| two[0] != two[1]), "{places:?}");
    }
}

#[test]
fn damage_in_one_file_does_not_hide_that_in_others() {
    let dir = tempfile::tempdir().unwrap();
    write_sample(dir.path(), &SampleData { files: 4, ..SampleData::default() }).unwrap();
    let good = verified(dir.path());
    assert_eq!((good.files, good.damages.len()), (4, 0));
    std::fs::write(dir.path().join("broken.parquet"), b"no Parquet at all").unwrap();
    std::fs::write(dir.path().join("empty.parquet"), b"").unwrap();
    let report = verified(dir.path());
    assert_eq!((report.files, report.damages.len()), (6, 2), "{:?}", report.damages);
    assert_eq!((report.rows, report.tokens), (good.rows, good.tokens));
    assert!(report.damages.iter().all(|damage| damage.row_group.is_none()));
    assert!(report.damages[0].reason.contains("broken.parquet"));
    assert!(report.damages[1].reason.contains("empty.parquet"));
}

#[test]
fn an_epoch_is_exactly_once_over_the_sizes_it_was_made_for_and_no_others() {
    let sizes = [100, 0, 250, 7, 31];
    for (seq_len, lanes, window) in [(8, 4, 4), (1, 64, 2), (16, 1, 1), (64, 7, 3)] {
        let settings =
            StreamSettings { lanes, window, ..StreamSettings::auto(seq_len, Packing::Concat, None, 3, 4) };
        let order = EpochOrder::new(&sizes, &settings, 2);
        assert!(is_exactly_once(&order, &sizes));
        assert!(!is_exactly_once(&order, &[100, 0, 250, 8, 31]));
        assert!(!is_exactly_once(&order, &[100, 0, 250, 7]));
        assert!(!is_exactly_once(&order, &[100, 0, 250, 7, 31, 1]));
    }
}
