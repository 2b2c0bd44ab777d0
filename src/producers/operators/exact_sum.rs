//! Sums of floats without any rounding, so that values can be taken out again and the order does not matter.
//!
//! The sum is a fixed-point number of [`LIMBS`] digits in base 2^32, the lowest of which is 2^-1074, the smallest
//! positive double: every finite double is a whole number of those. Infinities and not-a-numbers are counted beside it.
//! [`ExactSum::round`] is the double nearest to the sum, ties to even, as `math.fsum` of Python has it.

use num_bigint::BigUint;

use crate::error::{Result, corrupted_error};

/// The digits: 2,098 bits of a double, and room for the sum of 2^64 of them.
const LIMBS: usize = 68;
/// After so many values the digits are carried: each value adds less than 2^32 to one.
const MAX_PENDING: u32 = 1 << 30;
const BASE: i64 = 1 << 32;
/// The exponent of the lowest bit.
pub(super) const MIN_EXPONENT: i64 = -1074;
const MANTISSA_BITS: u32 = 52;

/// The exact sum of doubles.
#[derive(Debug, Clone)]
pub(super) struct ExactSum {
    limbs: [i64; LIMBS],
    /// The digits that may not be zero.
    used: std::ops::Range<usize>,
    pending: u32,
    positive_infinities: i64,
    negative_infinities: i64,
    nans: i64,
}

impl Default for ExactSum {
    fn default() -> Self {
        Self {
            limbs: [0; LIMBS],
            used: 0..0,
            pending: 0,
            positive_infinities: 0,
            negative_infinities: 0,
            nans: 0,
        }
    }
}

impl ExactSum {
    /// Makes it the sum of no values.
    pub(super) fn clear(&mut self) {
        self.limbs[self.used.clone()].fill(0);
        self.used = 0..0;
        self.pending = 0;
        self.positive_infinities = 0;
        self.negative_infinities = 0;
        self.nans = 0;
    }

    /// Adds a value, or takes it out again: `sign` is 1 or -1.
    #[expect(clippy::cast_possible_truncation, reason = "digits have 32 bits")]
    pub(super) fn add(&mut self, value: f64, sign: i64) {
        if !value.is_finite() {
            if value.is_nan() {
                self.nans += sign;
            } else if value > 0.0 {
                self.positive_infinities += sign;
            } else {
                self.negative_infinities += sign;
            }
            return;
        }
        let bits = value.to_bits();
        let biased = (bits >> MANTISSA_BITS) & 0x7ff;
        let fraction = bits & ((1 << MANTISSA_BITS) - 1);
        // Subnormals have no hidden bit, and the exponent of the smallest normals.
        let (mantissa, position) = match biased {
            0 => (fraction, 0),
            _ => (fraction | 1 << MANTISSA_BITS, biased as usize - 1),
        };
        if mantissa == 0 {
            return;
        }
        let (first, shift) = (position / 32, position % 32);
        let digits = u128::from(mantissa) << shift;
        let sign = if value < 0.0 { -sign } else { sign };
        for (at, limb) in self.limbs[first..first + 3].iter_mut().enumerate() {
            *limb += sign * i64::from((digits >> (32 * at)) as u32);
        }
        self.widen(first, first + 3);
        self.pending += 1;
        if self.pending == MAX_PENDING {
            self.carry();
        }
    }

    fn widen(&mut self, start: usize, end: usize) {
        if self.used.is_empty() {
            self.used = start..end;
        } else {
            self.used = self.used.start.min(start)..self.used.end.max(end);
        }
    }

    /// Carries, so that all digits but the highest are from 0 to 2^32 - 1; the highest has the sign.
    fn carry(&mut self) {
        self.pending = 0;
        let mut carried = 0;
        let mut at = self.used.start;
        while at < self.used.end || (carried != 0 && carried != -1) {
            if at + 1 == LIMBS {
                self.limbs[at] += carried;
                self.used.end = LIMBS;
                return;
            }
            let sum = self.limbs[at] + carried;
            self.limbs[at] = sum.rem_euclid(BASE);
            carried = sum.div_euclid(BASE);
            at += 1;
        }
        self.used.end = self.used.end.max(at);
        if carried == -1 {
            // The number is negative: its sign goes to the highest digit in use.
            self.limbs[self.used.end - 1] -= BASE;
        }
    }

    /// The sign and the digits of the absolute value: those from the first to the last that is not zero, and the index
    /// of the first. Zero has no digits.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "carried digits have 32 bits"
    )]
    fn magnitude(&mut self) -> (bool, usize, Vec<u32>) {
        self.carry();
        let is_negative = self.used.clone().any(|at| self.limbs[at] < 0);
        let mut own = self.clone();
        if is_negative {
            for limb in &mut own.limbs[own.used.clone()] {
                *limb = -*limb;
            }
            own.carry();
        }
        let used = own.used.clone();
        let not_zero = |at: &usize| own.limbs[*at] != 0;
        let (Some(first), Some(last)) = (used.clone().find(not_zero), used.rev().find(not_zero))
        else {
            return (false, 0, Vec::new());
        };
        let digits = own.limbs[first..=last].iter().map(|limb| *limb as u32);
        (is_negative, first, digits.collect())
    }

    /// Whether all values are finite.
    pub(super) fn is_finite(&self) -> bool {
        self.positive_infinities == 0 && self.negative_infinities == 0 && self.nans == 0
    }

    /// The absolute value of the sum of the finite values, in units of 2^-1074.
    pub(super) fn absolute(&mut self) -> BigUint {
        let (_, first, digits) = self.magnitude();
        BigUint::new(digits) << (32 * first)
    }

    /// The double nearest to the sum; an infinity or not-a-number if a value is one, or if it is too large.
    pub(super) fn round(&mut self) -> f64 {
        let has_both = self.positive_infinities != 0 && self.negative_infinities != 0;
        if self.nans != 0 || has_both {
            return f64::NAN;
        }
        if self.positive_infinities != 0 {
            return f64::INFINITY;
        }
        if self.negative_infinities != 0 {
            return f64::NEG_INFINITY;
        }
        let (is_negative, first, digits) = self.magnitude();
        let absolute = round_digits(first, &digits);
        if is_negative { -absolute } else { absolute }
    }

    /// Appends the one encoding of the sum: the counts of +inf, -inf and NaN, then the digits of the absolute value.
    ///
    /// Numbers are LEB128, signed ones zigzag; digits are 4 bytes, little-endian, the lowest first.
    pub(super) fn encode(&mut self, bytes: &mut Vec<u8>) {
        for count in [
            self.positive_infinities,
            self.negative_infinities,
            self.nans,
        ] {
            put_signed(bytes, i128::from(count));
        }
        let (is_negative, first, digits) = self.magnitude();
        put_unsigned(bytes, (digits.len() as u128) << 1 | u128::from(is_negative));
        if !digits.is_empty() {
            put_unsigned(bytes, first as u128);
        }
        for digit in digits {
            bytes.extend_from_slice(&digit.to_le_bytes());
        }
    }

    /// Makes it the sum that [`Self::encode`] wrote.
    pub(super) fn decode(&mut self, bytes: &mut &[u8]) -> Result<()> {
        self.clear();
        for count in [
            &mut self.positive_infinities,
            &mut self.negative_infinities,
            &mut self.nans,
        ] {
            *count = i64::try_from(take_signed(bytes)?)
                .ok()
                .ok_or_else(state_error)?;
        }
        let header = take_unsigned(bytes)?;
        let count = usize::try_from(header >> 1).ok().ok_or_else(state_error)?;
        if count == 0 {
            return Ok(());
        }
        let first = usize::try_from(take_unsigned(bytes)?)
            .ok()
            .ok_or_else(state_error)?;
        if first >= LIMBS || count > LIMBS - first {
            return Err(state_error());
        }
        let sign = if header & 1 == 1 { -1 } else { 1 };
        for limb in &mut self.limbs[first..first + count] {
            let Some((digit, rest)) = bytes.split_first_chunk::<4>() else {
                return Err(state_error());
            };
            *limb = sign * i64::from(u32::from_le_bytes(*digit));
            *bytes = rest;
        }
        self.used = first..first + count;
        Ok(())
    }
}

/// The double nearest to digits times 2^(32 × first - 1074).
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    reason = "the bits that do not fit are rounded here, and there are at most 68 digits"
)]
fn round_digits(first: usize, digits: &[u32]) -> f64 {
    let Some(highest) = digits.last() else {
        return 0.0;
    };
    let top_bit = (digits.len() as i64 - 1) * 32 + 31 - i64::from(highest.leading_zeros());
    let lowest = first as i64 * 32;
    // The bits of the result: 53, fewer for subnormals, which end at the lowest bit of all.
    let dropped = (top_bit - 52).max(-lowest);
    let bit = |at: i64| -> u64 {
        match usize::try_from(at) {
            Ok(at) if at / 32 < digits.len() => u64::from(digits[at / 32] >> (at % 32) & 1),
            _ => 0,
        }
    };
    let mut mantissa = (dropped..=top_bit)
        .rev()
        .fold(0, |bits, at| bits << 1 | bit(at));
    let is_half = dropped > 0 && bit(dropped - 1) == 1;
    let is_more = (0..dropped - 1).any(|at| bit(at) == 1);
    if is_half && (is_more || mantissa & 1 == 1) {
        mantissa += 1;
    }
    scale(mantissa as f64, lowest + dropped + MIN_EXPONENT)
}

/// A number times a power of two: exact unless the result is below the normal doubles, or infinite.
pub(super) fn scale(mut value: f64, mut exponent: i64) -> f64 {
    while exponent > 0 && value.is_finite() {
        let step = exponent.min(1000);
        value *= power_of_two(step);
        exponent -= step;
    }
    while exponent < 0 {
        let step = exponent.max(-1000);
        value *= power_of_two(step);
        exponent -= step;
    }
    value
}

/// Of an exponent from -1000 to 1000.
#[expect(clippy::cast_sign_loss, reason = "the biased exponent is positive")]
fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << MANTISSA_BITS)
}

/// Appends a number as LEB128.
#[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
pub(super) fn put_unsigned(bytes: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a number as LEB128 of its zigzag form.
#[expect(clippy::cast_sign_loss, reason = "zigzag")]
pub(super) fn put_signed(bytes: &mut Vec<u8>, number: i128) {
    put_unsigned(bytes, ((number << 1) ^ (number >> 127)) as u128);
}

/// Takes a number that [`put_unsigned`] wrote.
pub(super) fn take_unsigned(bytes: &mut &[u8]) -> Result<u128> {
    let (mut number, mut shift) = (0_u128, 0);
    loop {
        let Some((byte, rest)) = bytes.split_first() else {
            return Err(state_error());
        };
        *bytes = rest;
        if shift > 126 || (shift == 126 && byte & 0x7c != 0) {
            return Err(state_error());
        }
        number |= u128::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
}

/// Takes a number that [`put_signed`] wrote.
#[expect(clippy::cast_possible_wrap, reason = "zigzag")]
pub(super) fn take_signed(bytes: &mut &[u8]) -> Result<i128> {
    let number = take_unsigned(bytes)?;
    Ok((number >> 1) as i128 ^ -((number & 1) as i128))
}

/// The error of a stored state that this library cannot have written.
pub(super) fn state_error() -> crate::error::Error {
    corrupted_error("a run", "the column state has a value of another form")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_sum(values: &[f64], expected: f64) {
        let mut sum = ExactSum::default();
        for value in values {
            sum.add(*value, 1);
        }
        let rounded = sum.round();
        assert_eq!(
            rounded.to_bits(),
            expected.to_bits(),
            "the sum of {values:?} is {rounded}, not {expected}"
        );
    }

    #[test]
    fn sums_are_rounded_once() {
        assert_sum(&[], 0.0);
        assert_sum(&[1e16, 1.0, 1.0], 1e16 + 2.0);
        assert_sum(&[1e308, 1e308, -1e308], 1e308);
        assert_sum(&[f64::MAX, f64::MAX], f64::INFINITY);
        assert_sum(&[-f64::MAX, -f64::MAX], f64::NEG_INFINITY);
        assert_sum(&[5e-324, 5e-324], 1e-323);
        assert_sum(&[5e-324, -5e-324], 0.0);
        assert_sum(&[f64::MIN_POSITIVE, -5e-324], f64::MIN_POSITIVE - 5e-324);
        // A tie goes to the even one, and what is far below decides.
        assert_sum(&[1.0, f64::EPSILON / 2.0], 1.0);
        assert_sum(&[1.0, f64::EPSILON / 2.0, 5e-324], 1.0 + f64::EPSILON);
        assert_sum(&[1.0, f64::EPSILON / 2.0, -5e-324], 1.0);
        assert_sum(&[0.1; 10], 1.0);
    }

    #[test]
    fn what_is_taken_out_leaves_nothing() {
        let values = [1e300, -3.5, 7e-310, f64::INFINITY, f64::NAN, 0.1, -0.0];
        let mut with = ExactSum::default();
        with.add(0.25, 1);
        for value in values {
            with.add(value, 1);
        }
        assert!(with.round().is_nan());
        for value in values {
            with.add(value, -1);
        }
        let mut without = ExactSum::default();
        without.add(0.25, 1);
        let encoded = |sum: &mut ExactSum| {
            let mut bytes = Vec::new();
            sum.encode(&mut bytes);
            bytes
        };
        assert_eq!(encoded(&mut with), encoded(&mut without));
    }

    #[test]
    fn encodings_are_read_and_damaged_ones_refused() {
        for values in [&[][..], &[1.5, -1e-300], &[-1e300, 1.0], &[f64::NAN, -1.0]] {
            let mut sum = ExactSum::default();
            for value in values {
                sum.add(*value, 1);
            }
            let mut bytes = Vec::new();
            sum.encode(&mut bytes);
            let mut copy = ExactSum::default();
            copy.decode(&mut bytes.as_slice()).unwrap();
            assert_eq!(copy.round().to_bits(), sum.round().to_bits(), "{values:?}");
            let mut encoded_copy = Vec::new();
            copy.encode(&mut encoded_copy);
            assert_eq!(encoded_copy, bytes);
            for length in 0..bytes.len() {
                assert!(copy.decode(&mut &bytes[..length]).is_err(), "{values:?}");
            }
        }
    }

    #[test]
    fn numbers_of_any_size_are_encoded() {
        for number in [0, 1, -1, 63, -64, 64, i128::MAX, i128::MIN] {
            let mut bytes = Vec::new();
            put_signed(&mut bytes, number);
            assert_eq!(take_signed(&mut bytes.as_slice()).unwrap(), number);
        }
    }
}
