use std::time::Duration;

use crate::children::Cases;
use crate::read::{by_cursor, by_loader, in_part};
use crate::victims::{files_in, testdata};

const MIB: u64 = 1 << 20;

/// Files of `testdata/hostile` did harm once: `README.md` there says which.
#[test]
fn files_that_once_did_harm_are_refused_by_name_or_read_within_bounds() {
    let files = files_in(&testdata("hostile"));
    let cases = Cases {
        test: "found::files_that_once_did_harm_are_refused_by_name_or_read_within_bounds",
        count: files.len() as u64,
        memory_max: 256 * MIB,
        silence_max: Duration::from_secs(20),
    };
    cases.run(|number, data| {
        let path = data.join("case.parquet");
        let name = files[number as usize].file_name().unwrap().to_string_lossy().into_owned();
        std::fs::copy(&files[number as usize], &path).unwrap();
        let reads = [
            by_cursor(&path, 1000).map(drop),
            in_part(&path, 1000).map(drop),
            by_loader(data, 1000, 64 * MIB).map(drop),
        ];
        for error in reads.into_iter().filter_map(Result::err) {
            let said = error.to_string();
            if !said.contains(path.to_str().unwrap()) {
                return Err(format!("{name}: the error does not name the place: {said}"));
            }
        }
        Ok("refused or read".to_owned())
    });
}
