//! Any bytes as a stored tensor: they are refused with the file's name, or read alike on threads and one after another.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use shardfeed::checkpoint::{Checkpoint, OpenOptions, ReadOptions, RunLimits, verify_checkpoint};

/// Metadata of a tensor of two rows of three numbers, in one file: as Python's oldest protocol writes them, so that they can be read here.
const METADATA: &str = "(cm\nMetadata\no}(\
    Vstorage_data\n}(\
    (cm\nMetadataIndex\no}(Vfqn\nVa\nVoffset\n(I0\nI0\ntub\
    (cf\n_StorageInfo\no}(Vrelative_path\nV__0_0.distcp\nVoffset\nI0\nVlength\nILENGTH\nTRANSFORMSub\
    u\
    Vstate_dict_metadata\n}(\
    Va\n(cm\nTensorStorageMetadata\no}(\
    Vproperties\n(cm\nTensorProperties\no(ctorch\nfloat32\ntb\
    Vsize\n(I2\nI3\nt\
    Vchunks\n(l((cm\nChunkStorageMetadata\no}(Voffsets\n(I0\nI0\ntVsizes\n(I2\nI3\ntube\
    ub\
    uub.";

/// Nothing done to what is stored; or compressed, once and twice.
const TRANSFORMS: [&str; 3] = [
    "",
    "Vtransform_descriptors\n(lVstream.zstd/1\na",
    "Vtransform_descriptors\n(lVstream.zstd/1\naVstream.zstd/1\na",
];

const FILE: &str = "__0_0.distcp";

/// One directory for each process, in memory where there is such a place.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    dir.join(format!("shardfeed-fuzz-item-{}", std::process::id()))
});

fn read(options: ReadOptions) -> Result<Vec<u8>, String> {
    let read = Checkpoint::open(&*DIRECTORY).and_then(|opened| opened.with_options(options).read("a"));
    read.map(|tensor| tensor.bytes).map_err(|error| error.to_string())
}

pub fn check(bytes: &[u8]) {
    for transforms in TRANSFORMS {
        check_stored(bytes, transforms);
    }
}

fn check_stored(bytes: &[u8], transforms: &str) {
    std::fs::create_dir_all(&*DIRECTORY).expect("there is room for a directory");
    let metadata = METADATA.replace("LENGTH", &bytes.len().to_string()).replace("TRANSFORMS", transforms);
    std::fs::write(DIRECTORY.join(".metadata"), metadata).expect("there is room for a small file");
    std::fs::write(DIRECTORY.join(FILE), bytes).expect("there is room for a small file");
    for verify in [false, true] {
        let limits = RunLimits { block: 64, gap: 0, direct: 64 };
        let one = read(ReadOptions { use_parallel: false, verify, ..ReadOptions::default() });
        let other = read(ReadOptions { num_workers: Some(1), limits, verify, ..ReadOptions::default() });
        match (&one, &other) {
            (Ok(one), Ok(other)) => assert_eq!(one, other),
            (Err(one), Err(other)) => assert!(one.contains(FILE) && other.contains(FILE), "{one}; {other}"),
            _ => panic!("only one way fails: {one:?}, {other:?}"),
        }
    }
    let report =
        verify_checkpoint(&DIRECTORY, &OpenOptions::default(), None).expect("the directory is there");
    let is_read = read(ReadOptions { verify: true, ..ReadOptions::default() }).is_ok();
    assert!(is_read || !report.problems.is_empty(), "what cannot be read is a problem");
    // Processes that fuzz come and go; what they wrote goes with them.
    std::fs::remove_dir_all(&*DIRECTORY).expect("it was written just now");
}
