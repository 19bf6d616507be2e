//! Random damage to checkpoints that torch wrote: each gives an error that names the place, or the right bytes. Both ways of reading
//! agree. Every case runs in a process that may not hang, take much memory, or end.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use shardfeed::checkpoint::{
    Checkpoint, OpenOptions, ReadOptions, ReadPlan, RunLimits, StoredTensor, verify_checkpoint,
};
use shardfeed::{Error, Result};

use crate::children::Cases;
use crate::common::{Dice, cases};
use crate::support::{copy_of, fixtures};

/// What a read may take besides the bytes that it is for: those of a tensor that damaged metadata make large, and slack.
const MEMORY_MAX: u64 = 1 << 30;

/// A tensor that damaged metadata make larger than this is not asked for: whoever asks for it brings the memory.
const TENSOR_BYTES_MAX: u64 = 64 << 20;

/// Old and new, one file and several, with checksums and without, compressed, safetensors, each rank for itself.
const FIXTURES: [&str; 11] = [
    "f02_shapes",
    "f04_zstd_zstandard",
    "f07_threads3",
    "f10_nocrc",
    "f11_fs_safetensors",
    "f13_hf_full",
    "f30_dtensor_2r",
    "f33_no_collectives_2r",
    "f36_sharded_tensor_2r",
    "f50_legacy_2.0.1",
    "f52_proto2",
];

/// Tensors by name.
type Tensors = BTreeMap<String, Vec<u8>>;

/// A good checkpoint.
struct Victim {
    name: &'static str,
    files: Vec<(String, Vec<u8>)>,
    tensors: Tensors,
}

fn victims() -> Vec<Victim> {
    let victim = |name: &'static str| {
        let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(fixtures().join(name))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect();
        files.sort_unstable();
        let tensors = read(copy_of(name).path(), &one_after_another()).unwrap();
        assert!(!tensors.is_empty(), "{name}");
        Victim { name, files, tensors }
    };
    FIXTURES.into_iter().map(victim).collect()
}

impl Victim {
    /// Whether damage to a file cannot give other bytes: all that is read of it has checksums.
    fn is_checked(&self, file: &str) -> bool {
        file.ends_with(".distcp") && !["f10_nocrc", "f11_fs_safetensors"].contains(&self.name)
    }
}

fn one_after_another() -> ReadOptions {
    ReadOptions { use_parallel: false, verify: true, ..ReadOptions::default() }
}

fn on_threads(dice: &mut Dice) -> ReadOptions {
    let limits = RunLimits { block: dice.pick(&[64, 4096, 1 << 20]), gap: dice.pick(&[0, 100]), direct: 64 };
    ReadOptions { num_workers: Some(1 + dice.below(2)), limits, verify: true, ..ReadOptions::default() }
}

/// Everything that is not too large to ask for.
fn read(directory: &Path, options: &ReadOptions) -> Result<Tensors> {
    let checkpoint = Checkpoint::open(directory)?.with_options(options.clone());
    let is_small = |tensor: &&StoredTensor| tensor.bytes() <= TENSOR_BYTES_MAX;
    let wanted: Vec<&StoredTensor> = checkpoint.tensors().iter().filter(is_small).take(1000).collect();
    let mut memory: Vec<Vec<u8>> = wanted.iter().map(|tensor| vec![0; tensor.bytes() as usize]).collect();
    let mut plan = ReadPlan::new();
    for (tensor, memory) in wanted.iter().zip(&mut memory) {
        plan.read(&tensor.name, memory);
    }
    checkpoint.read_into(plan)?;
    // Objects are read by themselves; that they come or are refused is all there is to see.
    for object in checkpoint.objects().iter().take(1000) {
        checkpoint.read_object(&object.name)?;
    }
    Ok(wanted.iter().map(|tensor| tensor.name.clone()).zip(memory).collect())
}

fn mutated(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let times = if dice.one_in(3) { 1 + dice.below(4) } else { 1 };
    for _ in 0..times {
        damage(&mut bytes, dice);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, dice: &mut Dice) {
    if bytes.is_empty() {
        return;
    }
    let at = dice.below(bytes.len());
    let longest = if dice.one_in(4) { 512 } else { 16 };
    let range = at..(at + 1 + dice.below(longest)).min(bytes.len());
    match dice.below(12) {
        0..=2 => bytes[at] ^= 1 << dice.below(8),
        3 => bytes[at] = dice.word() as u8,
        4 => bytes[at] = dice.pick(&[0, 1, 0x7f, 0x80, 0xff]),
        5 => bytes[range].fill(0),
        6 => bytes[range].fill_with(|| dice.word() as u8),
        7 => {
            let copy = bytes[range].to_vec();
            bytes.splice(at..at, copy);
        }
        8 => drop(bytes.drain(range)),
        9 => bytes.truncate(at),
        10 => edit_number(bytes, at, dice),
        _ => {
            // A piece of the file in another place of it.
            let (other, piece) = (dice.below(bytes.len()), bytes[range].to_vec());
            let end = (other + piece.len()).min(bytes.len());
            bytes[other..end].copy_from_slice(&piece[..end - other]);
        }
    }
}

/// Another number of two, four or eight bytes where one may stand.
fn edit_number(bytes: &mut [u8], at: usize, dice: &mut Dice) {
    let len = dice.pick(&[2, 4, 8]);
    let Some(field) = bytes.get_mut(at..at + len) else { return };
    let mut wide = [0; 8];
    wide[..len].copy_from_slice(field);
    let number = u64::from_le_bytes(wide);
    let other = match dice.below(7) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX >> 1,
        3 => number.wrapping_add(1),
        4 => number.wrapping_sub(1),
        5 => number.wrapping_mul(2),
        _ => 1 << dice.below(64),
    };
    field.copy_from_slice(&other.to_le_bytes()[..len]);
}

/// Reasons that are about no place: of a tensor as a whole, of a file as a whole, of one that is not there.
const UNPLACED: [&str; 8] = [
    "cannot begin at",
    "are in no chunk that this rank's metadata know",
    "are in none of its",
    "overlap in too many ways",
    "the file is missing",
    "the index says that",
    "it has no weight_map",
    "would lie outside of the checkpoint",
];

const RIGHT: &str = "right";
const REFUSED: &str = "refused";
const DIFFERENT: &str = "another view";

fn outcome(victim: &Victim, file: &str, directory: &Path, dice: &mut Dice) -> Result<String, String> {
    let options = on_threads(dice);
    let (one, other) = (read(directory, &one_after_another()), read(directory, &options));
    let is_metadata = [".metadata", ".json"].iter().any(|end| file.ends_with(end));
    let outcome = match (&one, &other) {
        (Ok(one), Ok(other)) if one != other => return Err("both ways read, and differ".to_owned()),
        (Ok(one), Ok(_)) if *one == victim.tensors => RIGHT,
        (Ok(_), Ok(_)) if victim.is_checked(file) => {
            return Err(format!("{}: other bytes in spite of checksums", victim.name));
        }
        (Ok(_), Ok(_)) => DIFFERENT,
        (Err(one), Err(other)) => {
            // Damaged metadata may send a reader to any file.
            let place = if is_metadata { directory.to_owned() } else { directory.join(file) };
            for error in [one, other] {
                let said = error.to_string();
                // Good metadata of a tensor that this machine has no memory for: its name is all there is to say.
                let is_too_large =
                    matches!(error, Error::Invalid(_)) && said.contains("more than this machine");
                if !is_too_large && !said.contains(place.to_str().unwrap()) {
                    return Err(format!("{}: the error does not name {file}: {said}", victim.name));
                }
                let is_about_all = UNPLACED.iter().any(|reason| said.contains(reason));
                if !is_too_large && !is_about_all && !said.contains("byte ") && !said.contains(" column ") {
                    return Err(format!("{}: the error names no place in {file}: {said}", victim.name));
                }
            }
            REFUSED
        }
        (Ok(_), Err(error)) => return Err(format!("only threads fail: {error}")),
        (Err(error), Ok(_)) => return Err(format!("only one after another fails: {error}")),
    };
    // Whoever looks at everything finds what readers find. It takes as long as both of them.
    if dice.one_in(4) {
        let report = verify_checkpoint(directory, &OpenOptions::default(), None)
            .map_err(|error| format!("{}: nothing is listed: {error}", victim.name))?;
        if outcome == REFUSED && report.problems.is_empty() {
            return Err(format!("{}: no problem is listed, and {}", victim.name, one.unwrap_err()));
        }
    }
    let what = if is_metadata {
        "metadata"
    } else if victim.is_checked(file) {
        "checked"
    } else {
        "unchecked"
    };
    Ok(format!("{what}: {outcome}"))
}

#[test]
fn a_damaged_checkpoint_is_refused_by_name_or_read_right_both_ways() {
    let made = OnceCell::new();
    let cases = Cases {
        test: "mutations::a_damaged_checkpoint_is_refused_by_name_or_read_right_both_ways",
        count: u64::from(cases(100_000).cases),
        memory_max: MEMORY_MAX,
        silence_max: Duration::from_mins(1),
    };
    let tally = cases.run(|number, directory| {
        let mut dice = Dice::new(number.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let victims = made.get_or_init(victims);
        let victim = &victims[dice.below(victims.len())];
        let (file, good) = &victim.files[dice.below(victim.files.len())];
        // Written once for many cases, each of which damages one file and puts it right.
        let place = directory.join(victim.name);
        if !place.exists() {
            fs::create_dir(&place).unwrap();
            victim.files.iter().for_each(|(name, bytes)| fs::write(place.join(name), bytes).unwrap());
        }
        fs::write(place.join(file), mutated(good, &mut dice)).unwrap();
        let outcome = outcome(victim, file, &place, &mut dice);
        fs::write(place.join(file), good).unwrap();
        outcome
    });
    // Every kind of outcome is met, or the damage is not what it is meant to be. One case alone is being repeated.
    if let Some(tally) = tally.filter(|tally| tally.values().sum::<u64>() > 1_000) {
        for met in ["metadata: right", "metadata: refused", "checked: right", "checked: refused"] {
            assert!(tally.contains_key(met), "{met}: {tally:?}");
        }
        for met in ["metadata: another view", "unchecked: another view", "unchecked: refused"] {
            assert!(tally.contains_key(met), "{met}: {tally:?}");
        }
    }
}
