//! The examples hold what they promise.

use std::process::Command;

#[test]
fn every_example_runs_to_its_end() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let built = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    let mut count = 0;
    for entry in std::fs::read_dir(source).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_owned();
        let output = Command::new(built.join(&name)).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty(), "{}: {output:?}", name.display());
        count += 1;
    }
    assert!(count >= 4, "{count}");
}
