//! Casts that keep every value and the order of values, so that a comparison does not need them.
//!
//! `CAST(column AS wider) < literal` can be a comparison of the column itself if the cast multiplies the
//! stored number by a constant, or keeps a string. [`LosslessCast`] recognizes such casts, and finds the
//! place of a literal among the values of the narrower type ([`ValuePosition`]). `None` means that this
//! is not known, and that the expression has to stay as it is; nothing here is an error.

use arrow_schema::{DataType, TimeUnit};
use datafusion_common::{DFSchema, ScalarValue};
use datafusion_expr::ExprSchemable;
use datafusion_expr::expr::Expr;

/// A cast that keeps every value and their order: it multiplies the stored number by `factor`.
pub(super) struct LosslessCast<'a> {
    pub(super) inner: &'a Expr,
    pub(super) from: DataType,
    to: &'a DataType,
    factor: i128,
}

/// Where a value of the wider type lies among those of the narrower type.
pub(super) enum ValuePosition {
    /// Equal to this value.
    Exact(ScalarValue),
    /// Between this value and the next.
    After(ScalarValue),
    /// Above the largest value.
    Above,
    /// Below the smallest value.
    Below,
}

impl<'a> LosslessCast<'a> {
    /// Returns `None` if the expression is not such a cast.
    pub(super) fn from_expr(cast: &'a Expr, schema: &DFSchema) -> Option<Self> {
        let Expr::Cast(cast) = cast else {
            return None;
        };
        let (inner, to) = (cast.expr.as_ref(), cast.field.data_type());
        let from = inner.get_type(schema).ok()?;
        let factor = cast_factor(&from, to)?;
        Some(Self {
            inner,
            from,
            to,
            factor,
        })
    }

    /// Where a value of the wider type lies; `None` if that is not known.
    pub(super) fn locate(&self, value: &ScalarValue) -> Option<ValuePosition> {
        if value.is_null() || value.data_type() != *self.to {
            return None;
        }
        if self.from.is_string() {
            return value.cast_to(&self.from).ok().map(ValuePosition::Exact);
        }
        let (low, high) = value_range(&self.from)?;
        let (floor, exact) = match scalar_to_f64(value) {
            // pyarrow, which evaluates its own expressions, does not order a NaN.
            Some(value) if value.is_nan() => return None,
            Some(value) => {
                // Beyond this limit a float is not between two neighboring integers.
                let limit = if matches!(self.to, DataType::Float64) {
                    2_f64.powi(53)
                } else {
                    2_f64.powi(24)
                };
                let is_narrow = to_f64(low).abs().max(to_f64(high).abs()) <= limit;
                if !is_narrow && value.abs() >= limit {
                    return None;
                }
                (floor_to_i128(value), is_whole(value))
            }
            None => {
                let value = scalar_to_i128(value)?;
                (
                    value.div_euclid(self.factor),
                    value.rem_euclid(self.factor) == 0,
                )
            }
        };
        Some(match (floor < low, floor > high) {
            (true, _) => ValuePosition::Below,
            (_, true) => ValuePosition::Above,
            _ if exact => ValuePosition::Exact(scalar_from_i128(floor, &self.from)?),
            _ => ValuePosition::After(scalar_from_i128(floor, &self.from)?),
        })
    }
}

/// Where a literal lies that is cast to a timestamp beyond the range of its unit; `None` for other expressions.
pub(super) fn position_beyond(cast: &Expr) -> Option<ValuePosition> {
    let Expr::Cast(cast) = cast else {
        return None;
    };
    let (Expr::Literal(value, _), to @ DataType::Timestamp(..)) =
        (cast.expr.as_ref(), cast.field.data_type())
    else {
        return None;
    };
    let from = value.data_type();
    if !from.is_temporal() {
        return None;
    }
    let number = scalar_to_i128(value)?.checked_mul(cast_factor(&from, to)?)?;
    let (low, high) = value_range(to)?;
    match (number < low, number > high) {
        (true, _) => Some(ValuePosition::Below),
        (_, true) => Some(ValuePosition::Above),
        _ => None,
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "the cast saturates at the largest and the smallest number"
)]
fn floor_to_i128(value: f64) -> i128 {
    value.floor() as i128
}

#[allow(
    clippy::float_cmp,
    reason = "a float below every normal one is not a whole number either"
)]
fn is_whole(value: f64) -> bool {
    value == value.floor()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the order of magnitude is enough"
)]
fn to_f64(value: i128) -> f64 {
    value as f64
}

fn scalar_to_f64(value: &ScalarValue) -> Option<f64> {
    match value {
        ScalarValue::Float32(Some(value)) => Some(f64::from(*value)),
        ScalarValue::Float64(Some(value)) => Some(*value),
        _ => None,
    }
}

/// The factor by which the cast multiplies stored numbers; `None` if it does not keep every value.
fn cast_factor(from: &DataType, to: &DataType) -> Option<i128> {
    use DataType::{Date32, Date64, Dictionary, Float32, Float64, Time32, Time64, Timestamp};
    let ticks = |from: &TimeUnit, to: &TimeUnit| {
        let (from, to) = (ticks_per_second(*from), ticks_per_second(*to));
        (from <= to).then(|| to / from)
    };
    match (from, to) {
        (Dictionary(_, from), to) if from.as_ref() == to => Some(1),
        (Dictionary(_, from), to) => cast_factor(from, to),
        (from, to) if from.is_string() && to.is_string() => Some(1),
        (from, to) if from.is_integer() && to.is_integer() => {
            let (inner, outer) = (value_range(from)?, value_range(to)?);
            (outer.0 <= inner.0 && inner.1 <= outer.1).then_some(1)
        }
        (from, Float32 | Float64) if from.is_integer() => Some(1),
        (from, to) if from.is_integer() => {
            let (precision, scale) = precision_and_scale(to)?;
            let digits = value_range(from)?.1.to_string().len();
            let fits = usize::from(precision) >= digits + usize::from(scale) || precision == 38;
            10_i128.checked_pow(fits.then(|| u32::from(scale))?)
        }
        (from, to) if from.is_decimal() => {
            let ((p1, s1), (p2, s2)) = (precision_and_scale(from)?, precision_and_scale(to)?);
            let fits = s2 >= s1 && (p2 == 38 || p2 - s2 >= p1.checked_sub(s1)?);
            10_i128.checked_pow(fits.then(|| u32::from(s2 - s1))?)
        }
        (Timestamp(from, a), Timestamp(to, b)) => {
            let has_same_clock = match (a, b) {
                (Some(_), Some(_)) | (None, None) => true,
                (Some(zone), None) | (None, Some(zone)) => is_utc(zone),
            };
            has_same_clock.then(|| ticks(from, to))?
        }
        (Date32, Timestamp(to, zone)) => {
            let is_utc_or_naive = zone.as_ref().is_none_or(|zone| is_utc(zone));
            is_utc_or_naive.then(|| 86_400 * ticks_per_second(*to))
        }
        (Date32, Date64) => Some(86_400_000),
        // Date64 counts milliseconds.
        (Date64, Timestamp(to, zone)) if *to != TimeUnit::Second => {
            let is_utc_or_naive = zone.as_ref().is_none_or(|zone| is_utc(zone));
            is_utc_or_naive.then(|| ticks_per_second(*to) / 1_000)
        }
        (Time32(from) | Time64(from), Time32(to) | Time64(to)) => ticks(from, to),
        _ => None,
    }
}

/// Whether a cast keeps every value and their order, but for numbers that the other type is too narrow for.
pub(super) fn keeps_all_values(from: &DataType, to: &DataType) -> bool {
    cast_factor(from, to).is_some()
}

pub(super) fn is_utc(zone: &str) -> bool {
    matches!(zone, "UTC" | "+00:00" | "Etc/UTC" | "Z")
}

fn ticks_per_second(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Precision and scale of a decimal of up to 128 bits whose scale is not negative.
fn precision_and_scale(data_type: &DataType) -> Option<(u8, u8)> {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale) => Some((*precision, u8::try_from(*scale).ok()?)),
        _ => None,
    }
}

/// The smallest and the largest number that a value of a type is stored as.
fn value_range(data_type: &DataType) -> Option<(i128, i128)> {
    use DataType::{
        Date32, Date64, Dictionary, Int8, Int16, Int32, Int64, Time32, Time64, Timestamp, UInt8,
        UInt16, UInt32, UInt64,
    };
    Some(match data_type {
        Int8 => (i8::MIN.into(), i8::MAX.into()),
        Int16 => (i16::MIN.into(), i16::MAX.into()),
        Int32 | Date32 | Time32(_) => (i32::MIN.into(), i32::MAX.into()),
        Int64 | Date64 | Time64(_) | Timestamp(..) => (i64::MIN.into(), i64::MAX.into()),
        UInt8 => (0, u8::MAX.into()),
        UInt16 => (0, u16::MAX.into()),
        UInt32 => (0, u32::MAX.into()),
        UInt64 => (0, u64::MAX.into()),
        Dictionary(_, values) => value_range(values)?,
        other => {
            let largest = 10_i128.checked_pow(precision_and_scale(other)?.0.into())? - 1;
            (-largest, largest)
        }
    })
}

/// The number that a literal is stored as.
fn scalar_to_i128(value: &ScalarValue) -> Option<i128> {
    use ScalarValue as S;
    Some(match value {
        S::Int8(v) => (*v)?.into(),
        S::Int16(v) => (*v)?.into(),
        S::Int32(v)
        | S::Date32(v)
        | S::Time32Second(v)
        | S::Time32Millisecond(v)
        | S::Decimal32(v, ..) => (*v)?.into(),
        S::Int64(v)
        | S::Date64(v)
        | S::Time64Microsecond(v)
        | S::Time64Nanosecond(v)
        | S::TimestampSecond(v, _)
        | S::TimestampMillisecond(v, _)
        | S::TimestampMicrosecond(v, _)
        | S::TimestampNanosecond(v, _)
        | S::Decimal64(v, ..) => (*v)?.into(),
        S::UInt8(v) => (*v)?.into(),
        S::UInt16(v) => (*v)?.into(),
        S::UInt32(v) => (*v)?.into(),
        S::UInt64(v) => (*v)?.into(),
        S::Decimal128(v, ..) => (*v)?,
        _ => return None,
    })
}

/// The literal of a type that is stored as this number.
fn scalar_from_i128(number: i128, data_type: &DataType) -> Option<ScalarValue> {
    use DataType as D;
    let to_i32 = || i32::try_from(number).ok();
    let to_i64 = || i64::try_from(number).ok();
    Some(match data_type {
        D::Int8 => ScalarValue::Int8(Some(number.try_into().ok()?)),
        D::Int16 => ScalarValue::Int16(Some(number.try_into().ok()?)),
        D::Int32 => ScalarValue::Int32(Some(to_i32()?)),
        D::Int64 => ScalarValue::Int64(Some(to_i64()?)),
        D::UInt8 => ScalarValue::UInt8(Some(number.try_into().ok()?)),
        D::UInt16 => ScalarValue::UInt16(Some(number.try_into().ok()?)),
        D::UInt32 => ScalarValue::UInt32(Some(number.try_into().ok()?)),
        D::UInt64 => ScalarValue::UInt64(Some(number.try_into().ok()?)),
        D::Date32 => ScalarValue::Date32(Some(to_i32()?)),
        D::Date64 => ScalarValue::Date64(Some(to_i64()?)),
        D::Time32(TimeUnit::Second) => ScalarValue::Time32Second(Some(to_i32()?)),
        D::Time32(_) => ScalarValue::Time32Millisecond(Some(to_i32()?)),
        D::Time64(TimeUnit::Microsecond) => ScalarValue::Time64Microsecond(Some(to_i64()?)),
        D::Time64(_) => ScalarValue::Time64Nanosecond(Some(to_i64()?)),
        D::Timestamp(unit, zone) => {
            let (value, zone) = (Some(to_i64()?), zone.clone());
            match unit {
                TimeUnit::Second => ScalarValue::TimestampSecond(value, zone),
                TimeUnit::Millisecond => ScalarValue::TimestampMillisecond(value, zone),
                TimeUnit::Microsecond => ScalarValue::TimestampMicrosecond(value, zone),
                TimeUnit::Nanosecond => ScalarValue::TimestampNanosecond(value, zone),
            }
        }
        D::Decimal32(p, s) => ScalarValue::Decimal32(Some(to_i32()?), *p, *s),
        D::Decimal64(p, s) => ScalarValue::Decimal64(Some(to_i64()?), *p, *s),
        D::Decimal128(p, s) => ScalarValue::Decimal128(Some(number), *p, *s),
        D::Dictionary(key, values) => {
            ScalarValue::Dictionary(key.clone(), Box::new(scalar_from_i128(number, values)?))
        }
        _ => return None,
    })
}
