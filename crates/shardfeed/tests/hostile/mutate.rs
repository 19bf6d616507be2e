use std::ops::Range;

use crate::common::Dice;
use crate::victims::Victim;

/// The victim's bytes with some damage done to them: once, or up to four times.
pub fn mutated(victim: &Victim, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = victim.bytes.clone();
    let times = if dice.one_in(3) { 1 + dice.below(4) } else { 1 };
    for _ in 0..times {
        damage(&mut bytes, victim, dice);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, victim: &Victim, dice: &mut Dice) {
    if bytes.is_empty() {
        return;
    }
    let at = place(bytes.len(), victim, dice);
    match dice.below(14) {
        0..=2 => bytes[at] ^= 1 << dice.below(8),
        3 => bytes[at] = dice.word() as u8,
        4 => bytes[at] = dice.pick(&[0, 1, 0x7f, 0x80, 0xff]),
        5 => {
            let range = range_from(at, bytes.len(), dice);
            bytes[range].fill(0);
        }
        6 => {
            let other = place(bytes.len(), victim, dice);
            swap_ranges(bytes, at, other, dice);
        }
        7 => {
            let range = range_from(at, bytes.len(), dice);
            let copy = bytes[range].to_vec();
            bytes.splice(at..at, copy);
        }
        8 => {
            let range = range_from(at, bytes.len(), dice);
            bytes.drain(range);
        }
        9 => bytes.truncate(dice.below(bytes.len())),
        10 => edit_length(bytes, victim, dice),
        11..=12 => grow_varint(bytes, at, dice),
        _ => fill_randomly(bytes, at, dice),
    }
}

/// Bodies of pages, what lies between them, and the footer: each as often, whatever its size.
fn place(len: usize, victim: &Victim, dice: &mut Dice) -> usize {
    let last_body = victim.bodies.last().map_or(0, |body| body.end);
    let at = match dice.below(4) {
        0 | 1 if !victim.bodies.is_empty() => {
            let body = &victim.bodies[dice.below(victim.bodies.len())];
            body.start + dice.below(body.len())
        }
        // A header ends where a body begins.
        2 if !victim.bodies.is_empty() => {
            let body = &victim.bodies[dice.below(victim.bodies.len())];
            body.start.saturating_sub(1 + dice.below(32))
        }
        3 if last_body < len => last_body + dice.below(len - last_body),
        _ => dice.below(len),
    };
    at.min(len - 1)
}

fn range_from(at: usize, len: usize, dice: &mut Dice) -> Range<usize> {
    let longest = if dice.one_in(4) { 512 } else { 16 };
    at..(at + 1 + dice.below(longest)).min(len)
}

fn swap_ranges(bytes: &mut [u8], a: usize, b: usize, dice: &mut Dice) {
    let (low, high) = (a.min(b), a.max(b));
    // Both within the file, and apart.
    let count = (1 + dice.below(32)).min(high - low).min(bytes.len() - high);
    let (front, back) = bytes.split_at_mut(high);
    front[low..low + count].swap_with_slice(&mut back[..count]);
}

fn fill_randomly(bytes: &mut [u8], at: usize, dice: &mut Dice) {
    let range = range_from(at, bytes.len(), dice);
    bytes[range].fill_with(|| dice.word() as u8);
}

/// Changes four bytes that are, or could be, a length: of the footer, of levels, of a block.
fn edit_length(bytes: &mut [u8], victim: &Victim, dice: &mut Dice) {
    let at = match dice.below(3) {
        0 => bytes.len().saturating_sub(8),
        1 if !victim.bodies.is_empty() => victim.bodies[dice.below(victim.bodies.len())].start,
        _ => place(bytes.len(), victim, dice),
    };
    let Some(field) = bytes.get_mut(at..at + 4) else { return };
    let length = u32::from_le_bytes(field.try_into().expect("four bytes"));
    let other = match dice.below(8) {
        0 => 0,
        1 => u32::MAX,
        2 => i32::MAX.cast_unsigned(),
        3 => length.wrapping_add(1),
        4 => length.wrapping_sub(1),
        5 => length.wrapping_mul(2),
        6 => length ^ 1 << dice.below(32),
        _ => length.swap_bytes(),
    };
    field.copy_from_slice(&other.to_le_bytes());
}

/// Replaces the number of Thrift's compact form that begins here, if one does, by another: most are larger, so the
/// bytes after it move. Offsets within a chunk are relative, so that what follows is often still read.
fn grow_varint(bytes: &mut Vec<u8>, at: usize, dice: &mut Dice) {
    let len = bytes[at..].iter().take(9).take_while(|byte| **byte >= 0x80).count() + 1;
    let Some(old) = bytes.get(at..at + len) else { return };
    let number = old.iter().rev().fold(0_u64, |number, byte| number << 7 | u64::from(byte & 0x7f));
    let other = match dice.below(8) {
        // Zigzag: even numbers are positive, and these are the limits of 32 bits.
        0 => u64::from(u32::MAX) - 1,
        1 => u64::from(u32::MAX),
        2 => u64::MAX - 1,
        3 => number.wrapping_add(2),
        4 => number.wrapping_sub(2),
        5 => number.wrapping_mul(2),
        6 => number ^ 1,
        _ => 2 << dice.below(32),
    };
    bytes.splice(at..at + len, leb128(other));
}

fn leb128(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}
