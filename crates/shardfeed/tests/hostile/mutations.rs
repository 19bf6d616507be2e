use std::cell::OnceCell;
use std::path::Path;
use std::time::Duration;

use crate::children::Cases;
use crate::common::{Dice, cases};
use crate::mutate::mutated;
use crate::read::{by_cursor, by_loader, in_part};
use crate::victims::{self, Victim};

const MIB: u64 = 1 << 20;
/// The largest page that is read without a budget, and what comes of it.
const PAGE_MAX: u64 = 1024 * MIB;
/// The allocator's slack, stacks of threads, pages of the program.
const ALLOWANCE: u64 = 64 * MIB;
const LOADER_BUDGET: u64 = 64 * MIB;

/// Outcomes. A decoder's panic that was caught is an error, if not a pretty one.
const RIGHT: &str = "right";
const REFUSED: &str = "refused";
const REFUSED_AFTER_A_PANIC: &str = "refused after a decoder's panic";
const DIFFERENT: &str = "different";

/// Where the damage is. Without checksums, and outside of what they are made of, nobody can tell one number from
/// another: what is different there is counted.
const NO_CHECKSUMS: &str = "no checksums";
const IN_CHECKED_BODIES: &str = "in bodies with checksums";
const OUTSIDE_CHECKED_BODIES: &str = "not only in bodies with checksums";

/// A case's victim and its damaged bytes, written to where they are read from.
fn prepare<'a>(victims: &'a [Victim], number: u64, data: &Path) -> (&'a Victim, Vec<u8>) {
    let mut dice = Dice::new(number.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let victim = &victims[dice.below(victims.len())];
    let bytes = mutated(victim, &mut dice);
    std::fs::write(data.join("case.parquet"), &bytes).unwrap();
    (victim, bytes)
}

/// What came of a damaged file, or a complaint: an error must name the place.
fn outcome(
    victim: &Victim,
    bytes: &[u8],
    place: &str,
    read: shardfeed::Result<bool>,
) -> Result<String, String> {
    let damage = match (victim.has_checksums, victim.differs_in_bodies_only(bytes)) {
        (false, _) => NO_CHECKSUMS,
        (true, true) => IN_CHECKED_BODIES,
        (true, false) => OUTSIDE_CHECKED_BODIES,
    };
    let outcome = match read {
        Ok(true) => RIGHT,
        Ok(false) if damage == IN_CHECKED_BODIES => {
            return Err(format!("{}: other tokens in spite of checksums", victim.name));
        }
        Ok(false) => DIFFERENT,
        Err(error) => {
            let said = error.to_string();
            if !said.contains(place) {
                return Err(format!("{}: the error does not name the place: {said}", victim.name));
            }
            if said.contains("panicked") { REFUSED_AFTER_A_PANIC } else { REFUSED }
        }
    };
    Ok(format!("{damage}: {outcome}"))
}

#[test]
fn a_damaged_file_is_refused_by_name_or_read_right() {
    let victims = OnceCell::new();
    let cases = Cases {
        test: "mutations::a_damaged_file_is_refused_by_name_or_read_right",
        count: u64::from(cases(100_000).cases),
        memory_max: PAGE_MAX + ALLOWANCE,
        silence_max: Duration::from_mins(1),
    };
    let tally = cases.run(|number, data| {
        let (victim, bytes) = prepare(victims.get_or_init(victims::all), number, data);
        let path = data.join("case.parquet");
        let expected = &victim.content;
        let is_right = if number % 4 == 3 {
            in_part(&path, expected.tokens.len())
                .map(|taken| taken.iter().all(|&(at, token)| expected.tokens.get(at) == Some(&token)))
        } else {
            by_cursor(&path, expected.tokens.len()).map(|content| content == *expected)
        };
        outcome(victim, &bytes, "case.parquet", is_right)
    });
    // Every kind of outcome is met, or the damage is not what it is meant to be. One case alone is being repeated.
    if let Some(tally) = tally.filter(|tally| tally.values().sum::<u64>() > 1_000) {
        let is_met = |damage: &str, outcome: &str| tally.contains_key(&format!("{damage}: {outcome}"));
        for damage in [NO_CHECKSUMS, IN_CHECKED_BODIES, OUTSIDE_CHECKED_BODIES] {
            assert!(is_met(damage, RIGHT) && is_met(damage, REFUSED), "{damage}: {tally:?}");
        }
        assert!(is_met(NO_CHECKSUMS, DIFFERENT), "{tally:?}");
    }
}

#[test]
fn a_damaged_file_is_refused_by_name_or_streamed_right() {
    let victims = OnceCell::new();
    let cases = Cases {
        test: "mutations::a_damaged_file_is_refused_by_name_or_streamed_right",
        count: u64::from(cases(4_000).cases),
        memory_max: LOADER_BUDGET + ALLOWANCE,
        silence_max: Duration::from_mins(1),
    };
    cases.run(|number, data| {
        // Other damage than the cursor's: seeds far away from its.
        let (victim, bytes) = prepare(victims.get_or_init(victims::all), number + (1 << 40), data);
        let expected = &victim.content.tokens;
        let is_right = by_loader(data, expected.len(), LOADER_BUDGET).map(|tokens| tokens == *expected);
        // What is wrong with all files together is said of their directory.
        outcome(victim, &bytes, data.to_str().unwrap(), is_right)
    });
}
