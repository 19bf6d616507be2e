//! Any bytes as a Parquet file: scanned and read to its end, they give tokens or an error that names the file.
#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use shardfeed::{CachePolicy, Result, ScanOptions, Source, scan};

/// Tokens after which reading stops: a run of a few bytes may stand for billions of equal ones, rightly.
const TOKENS_MAX: usize = 1 << 22;

/// One file for each process, in memory where there is such a place.
static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    dir.join(format!("shardfeed-fuzz-{}.parquet", std::process::id()))
});

fn read(path: &Path) -> Result<()> {
    let options = ScanOptions { cache: CachePolicy::Off, threads: Some(1), ..ScanOptions::default() };
    let (data, _) = scan(&Source::Files(vec![path.to_owned()]), &options)?;
    let (mut tokens, mut seen) = (Vec::new(), 0);
    for group in 0..data.manifest().row_groups().len() as u32 {
        let mut cursor = data.open_row_group(group)?;
        while let Some(segment) = cursor.segment(1000)? {
            // Reading and skipping are different code: both are met.
            if segment.tokens % 5 == 4 {
                cursor.skip(segment.tokens)?;
            } else {
                tokens.clear();
                cursor.read(segment.tokens, &mut tokens)?;
                assert_eq!(tokens.len(), segment.tokens);
            }
            seen += segment.tokens;
            if seen > TOKENS_MAX {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn check(bytes: &[u8]) {
    std::fs::write(&*PATH, bytes).expect("there is room for one small file");
    let read = read(&PATH);
    // Processes that fuzz come and go; what they wrote goes with them.
    std::fs::remove_file(&*PATH).expect("it was written just now");
    if let Err(error) = read {
        let said = error.to_string();
        assert!(said.contains("shardfeed-fuzz-"), "an error without the file's name: {said}");
    }
}

fuzz_target!(
    // A panic inside a decoder is caught by Shardfeed and is an error like any other; libFuzzer's hook would end the
    // process before that. One that nobody catches still does, after it was printed.
    init: std::panic::set_hook(Box::new(|_| ())),
    |bytes: &[u8]| {
        if let Err(panic) = std::panic::catch_unwind(|| check(bytes)) {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref().copied());
            eprintln!("panicked: {}", text.unwrap_or("no message"));
            std::panic::resume_unwind(panic);
        }
    }
);
