use half::{bf16, f16};
use shardfeed_plan::checkpoint::Dtype;

/// Numbers in memory, little end first, as wide ones: one for each element, two for complex ones and for pairs of four bits.
pub(crate) fn for_each_number(dtype: Dtype, bytes: &[u8], mut each: impl FnMut(f64)) {
    fn of<const N: usize>(bytes: &[u8], each: &mut impl FnMut(f64), number: impl Fn([u8; N]) -> f64) {
        for chunk in bytes.chunks_exact(N) {
            each(number(chunk.try_into().expect("chunks of this size")));
        }
    }
    let each = &mut each;
    match dtype {
        Dtype::Float64 | Dtype::Complex128 => of(bytes, each, f64::from_le_bytes),
        Dtype::Float32 | Dtype::Complex64 => of(bytes, each, |bytes| f32::from_le_bytes(bytes).into()),
        Dtype::Float16 | Dtype::Complex32 => of(bytes, each, |bytes| f16::from_le_bytes(bytes).into()),
        Dtype::Bfloat16 | Dtype::Bcomplex32 => of(bytes, each, |bytes| bf16::from_le_bytes(bytes).into()),
        Dtype::Int64 => of(bytes, each, |bytes| i64::from_le_bytes(bytes) as f64),
        Dtype::Int32 => of(bytes, each, |bytes| i32::from_le_bytes(bytes).into()),
        Dtype::Int16 => of(bytes, each, |bytes| i16::from_le_bytes(bytes).into()),
        Dtype::Int8 => of(bytes, each, |bytes| i8::from_le_bytes(bytes).into()),
        Dtype::Uint64 => of(bytes, each, |bytes| u64::from_le_bytes(bytes) as f64),
        Dtype::Uint32 => of(bytes, each, |bytes| u32::from_le_bytes(bytes).into()),
        Dtype::Uint16 => of(bytes, each, |bytes| u16::from_le_bytes(bytes).into()),
        Dtype::Uint8 | Dtype::Bool => of(bytes, each, |[byte]: [u8; 1]| byte.into()),
        Dtype::Float4E2m1fnX2 => {
            // Two to a byte, the first in its lower half.
            bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).for_each(|bits| each(four_bits(bits)));
        }
        Dtype::Float8E4m3fn => of(bytes, each, |[byte]: [u8; 1]| eight_bits(byte, 4, 7, Special::Nan)),
        Dtype::Float8E5m2 => of(bytes, each, |[byte]: [u8; 1]| eight_bits(byte, 5, 15, Special::Ieee)),
        Dtype::Float8E4m3fnuz => {
            of(bytes, each, |[byte]: [u8; 1]| eight_bits(byte, 4, 8, Special::NegativeZero));
        }
        Dtype::Float8E5m2fnuz => {
            of(bytes, each, |[byte]: [u8; 1]| eight_bits(byte, 5, 16, Special::NegativeZero));
        }
        Dtype::Float8E8m0fnu => of(bytes, each, |[byte]: [u8; 1]| match byte {
            0xff => f64::NAN,
            exponent => 2_f64.powi(exponent as i32 - 127),
        }),
    }
}

/// A sign, two bits of exponent and one of fraction.
fn four_bits(bits: u8) -> f64 {
    let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let size = sizes[(bits & 7) as usize];
    if bits & 8 == 0 { size } else { -size }
}

/// Which patterns of eight bits are no number.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// All ones, with either sign.
    Nan,
    /// The largest exponent: infinity, and everything above it.
    Ieee,
    /// What would be minus zero.
    NegativeZero,
}

fn eight_bits(byte: u8, exponent_bits: u32, bias: i32, special: Special) -> f64 {
    let fraction_bits = 7 - exponent_bits;
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = ((byte & 0x7f) >> fraction_bits) as i32;
    let fraction = (byte & ((1 << fraction_bits) - 1)) as f64 / (1 << fraction_bits) as f64;
    let is_largest = exponent == (1 << exponent_bits) - 1;
    match special {
        Special::Nan if byte & 0x7f == 0x7f => return f64::NAN,
        Special::NegativeZero if byte == 0x80 => return f64::NAN,
        Special::Ieee if is_largest => return if fraction == 0.0 { sign * f64::INFINITY } else { f64::NAN },
        _ => {}
    }
    match exponent {
        0 => sign * fraction * 2_f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2_f64.powi(exponent - bias),
    }
}

/// Casts floating-point numbers to another such type as torch does: to the nearest, and by way of 32 bits from 64 to fewer.
/// Other types are not cast by anybody here.
pub(crate) fn cast(bytes: &[u8], from: Dtype, to: Dtype, into: &mut Vec<u8>) {
    into.clear();
    into.reserve(bytes.len() / from.bytes() as usize * to.bytes() as usize);
    if (from, to) == (Dtype::Bfloat16, Dtype::Float32) {
        // The upper half of the same bits, also of what is no number: a cast by the processor would change some of those.
        bytes.chunks_exact(2).for_each(|half| into.extend_from_slice(&[0, 0, half[0], half[1]]));
        return;
    }
    for_each_number(from, bytes, |number| match to {
        Dtype::Float64 => into.extend_from_slice(&number.to_le_bytes()),
        Dtype::Float32 => into.extend_from_slice(&(number as f32).to_le_bytes()),
        Dtype::Float16 => into.extend_from_slice(&f16::from_f32(number as f32).to_le_bytes()),
        Dtype::Bfloat16 => into.extend_from_slice(&bf16::from_f32(number as f32).to_le_bytes()),
        other => unreachable!("nobody casts to {other}"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
        let mut numbers = Vec::new();
        for_each_number(dtype, bytes, |number| numbers.push(number));
        numbers
    }

    #[test]
    fn eight_bits_mean_what_the_formats_say() {
        // Largest, smallest, one, by the papers that define them.
        assert_eq!(
            numbers(Dtype::Float8E4m3fn, &[0x7e, 0x01, 0x38, 0xb8]),
            [448.0, 2_f64.powi(-9), 1.0, -1.0]
        );
        assert_eq!(
            numbers(Dtype::Float8E5m2, &[0x7b, 0x01, 0x3c, 0x7c]),
            [57344.0, 2_f64.powi(-16), 1.0, f64::INFINITY]
        );
        assert_eq!(numbers(Dtype::Float8E4m3fnuz, &[0x7f, 0x01, 0x40]), [240.0, 2_f64.powi(-10), 1.0]);
        assert_eq!(numbers(Dtype::Float8E5m2fnuz, &[0x7f, 0x01, 0x40]), [57344.0, 2_f64.powi(-17), 1.0]);
        assert_eq!(numbers(Dtype::Float8E8m0fnu, &[127, 0, 254]), [1.0, 2_f64.powi(-127), 2_f64.powi(127)]);
        for (dtype, byte) in [
            (Dtype::Float8E4m3fn, 0xff),
            (Dtype::Float8E5m2, 0x7d),
            (Dtype::Float8E4m3fnuz, 0x80),
            (Dtype::Float8E8m0fnu, 0xff),
        ] {
            assert!(numbers(dtype, &[byte])[0].is_nan(), "{dtype}");
        }
    }

    #[test]
    fn four_bits_are_two_numbers_of_a_byte() {
        assert_eq!(numbers(Dtype::Float4E2m1fnX2, &[0x71, 0x2a]), [0.5, 6.0, -1.0, 1.0]);
    }

    #[test]
    fn what_is_no_number_keeps_its_bits_where_torch_keeps_them() {
        // Two that signal and one that does not; torch 2.15 gives these.
        let mut bytes = Vec::new();
        cast(&[0x81, 0x7f, 0x81, 0xff, 0xc1, 0x7f], Dtype::Bfloat16, Dtype::Float32, &mut bytes);
        assert_eq!(bytes, [0, 0, 0x81, 0x7f, 0, 0, 0x81, 0xff, 0, 0, 0xc1, 0x7f]);
    }

    #[test]
    fn casts_go_to_the_nearest_and_ties_to_even() {
        let cast_one = |number: f32, to| {
            let mut bytes = Vec::new();
            cast(&number.to_le_bytes(), Dtype::Float32, to, &mut bytes);
            bytes
        };
        // Halfway between two of them, twice: down to the even one, up to the even one.
        assert_eq!(cast_one(f32::from_bits(0x3f80_8000), Dtype::Bfloat16), 0x3f80_u16.to_le_bytes());
        assert_eq!(cast_one(f32::from_bits(0x3f81_8000), Dtype::Bfloat16), 0x3f82_u16.to_le_bytes());
        assert_eq!(cast_one(65520.0, Dtype::Float16), f16::INFINITY.to_le_bytes());
        assert_eq!(cast_one(1e-8, Dtype::Float16), [0, 0]);
        assert_eq!(cast_one(0.1, Dtype::Float64), f64::from(0.1_f32).to_le_bytes());
    }
}
