//! What the fuzzers begin with holds what they assert.

use std::path::Path;

#[path = "../../../../fuzz/checks/checkpoint_item.rs"]
mod item;
#[path = "../../../../fuzz/checks/checkpoint_metadata.rs"]
mod metadata;

fn for_each_of(corpus: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(corpus);
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        check(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 9, "{count}");
}

#[test]
fn of_metadata() {
    for_each_of("checkpoint_metadata", metadata::check);
}

#[test]
fn of_items() {
    for_each_of("checkpoint_item", item::check);
}
