//! Which types can be converted to which without the loss of a value.
//!
//! Four questions. Three from strict to lax: a column becomes wider without its files being rewritten (`can_widen`); a
//! column of another writer's file is read as one of the table (`can_read_as`); input is converted before it is
//! written, where a value that is out of range is an error (`keeps_values`). Nested types follow the rules of their
//! items and fields, and a nullable one does not become one that is not. And one in both directions: an expression over
//! a column has the same value whichever of two types it has (`keeps_meaning`).

use arrow_schema::{DataType, Field, Fields, TimeUnit};

use crate::parquet::nested::child_fields;

/// Whether a column of the type `from` can become one of the type `to` without rewriting its files: every
/// value has an equal one in `to`, with the same order and the same statistics.
pub(crate) fn can_widen(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Dictionary(_, value), _) if from != to => can_widen(value, to),
        (
            DataType::Decimal128(digits, scale),
            DataType::Decimal128(more, same) | DataType::Decimal256(more, same),
        )
        | (DataType::Decimal256(digits, scale), DataType::Decimal256(more, same)) => {
            digits <= more && scale == same
        }
        _ => is_simple_widening(from, to) || nested_types_fit(from, to, &can_widen),
    }
}

/// Whether a column of the type `from` in another writer's file can be read as one of the type `to`: it can become one
/// without rewriting the file, or Parquet stores both alike, lists whatever their offsets, and decimals whatever their
/// width.
pub(crate) fn can_read_as(from: &DataType, to: &DataType) -> bool {
    use DataType as D;
    match (from, to) {
        _ if can_widen(from, to) => true,
        (D::Dictionary(_, value), _) => can_read_as(value, to),
        (
            D::List(from)
            | D::LargeList(from)
            | D::ListView(from)
            | D::LargeListView(from)
            | D::FixedSizeList(from, _),
            D::List(to) | D::LargeList(to) | D::ListView(to) | D::LargeListView(to),
        ) => item_fits(from, to, &can_read_as),
        (D::FixedSizeList(from, length), D::FixedSizeList(to, same)) => {
            length == same && item_fits(from, to, &can_read_as)
        }
        _ => match (precision_and_scale(from), precision_and_scale(to)) {
            (Some((digits, scale)), Some((more, same))) => digits <= more && scale == same,
            _ => nested_types_fit(from, to, &can_read_as),
        },
    }
}

/// Whether input of the type `from` can be written to a column of the type `to`: every value has an equal
/// one in `to`, or the conversion fails because it is out of range.
pub(crate) fn keeps_values(from: &DataType, to: &DataType) -> bool {
    use DataType as D;
    match (from, to) {
        _ if from == to => true,
        (D::Dictionary(_, from), D::Dictionary(_, to)) => keeps_values(from, to),
        (D::Dictionary(_, value), _) => keeps_values(value, to),
        (_, D::Dictionary(_, value)) => keeps_values(from, value),
        (D::RunEndEncoded(_, value), _) => keeps_values(value.data_type(), to),
        (_, D::RunEndEncoded(_, value)) => keeps_values(from, value.data_type()),
        // The same points in time, whatever the name of the zone.
        (D::Timestamp(unit, zone), D::Timestamp(finer, other)) => {
            zone.is_some() == other.is_some() && is_finer(*unit, *finer)
        }
        (D::Duration(unit), D::Duration(finer))
        | (D::Time32(unit) | D::Time64(unit), D::Time32(finer) | D::Time64(finer)) => {
            is_finer(*unit, *finer)
        }
        (
            D::LargeList(from)
            | D::ListView(from)
            | D::LargeListView(from)
            | D::FixedSizeList(from, _),
            D::List(to),
        )
        | (
            D::ListView(from) | D::LargeListView(from) | D::FixedSizeList(from, _),
            D::LargeList(to),
        )
        | (
            D::List(from)
            | D::LargeList(from)
            | D::ListView(from)
            | D::LargeListView(from)
            | D::FixedSizeList(from, _),
            D::ListView(to) | D::LargeListView(to),
        ) => item_fits(from, to, &keeps_values),
        (D::FixedSizeList(from, length), D::FixedSizeList(to, same)) => {
            length == same && item_fits(from, to, &keeps_values)
        }
        (_, D::Float32 | D::Float64) if from.is_integer() => {
            // Floats of 32 bits have 24 bits of precision, those of 64 bits have 53.
            width_bytes(from) < width_bytes(to)
        }
        _ => match (precision_and_scale(from), precision_and_scale(to)) {
            (Some((digits, scale)), Some((more, finer))) => {
                scale <= finer && digits - scale <= more - finer
            }
            _ => is_simple_widening(from, to) || nested_types_fit(from, to, &keeps_values),
        },
    }
}

/// Whether expressions over a column select the same rows with either type: integers of both kinds overflow and
/// underflow at other numbers, and floats are rounded and written otherwise, but widths of one kind, offsets of texts
/// and lists, digits before the decimal point and dictionaries make no difference.
pub(crate) fn keeps_meaning(from: &DataType, to: &DataType) -> bool {
    use DataType as D;
    let is_text = |t: &D| matches!(t, D::Utf8 | D::LargeUtf8 | D::Utf8View);
    let is_binary = |t: &D| {
        matches!(
            t,
            D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_)
        )
    };
    let is_list = |t: &D| !matches!(t, D::Struct(_) | D::Map(..));
    match (from, to) {
        _ if from == to => true,
        (D::Null, _) | (_, D::Null) => true,
        (D::Dictionary(_, value), other) | (other, D::Dictionary(_, value)) => {
            keeps_meaning(value, other)
        }
        _ if from.is_integer() && to.is_integer() => {
            from.is_signed_integer() == to.is_signed_integer()
        }
        _ if (is_text(from) && is_text(to)) || (is_binary(from) && is_binary(to)) => true,
        _ => {
            if let (Some((_, scale)), Some((_, other))) =
                (precision_and_scale(from), precision_and_scale(to))
            {
                return scale == other;
            }
            let (fields, others) = (child_fields(from), child_fields(to));
            let are_alike = is_list(from) == is_list(to)
                && matches!(from, D::Struct(_)) == matches!(to, D::Struct(_));
            let has_names = matches!(from, D::Struct(_));
            let mut pairs = fields.iter().zip(others);
            are_alike
                && !fields.is_empty()
                && fields.len() == others.len()
                && pairs.all(|(field, other)| {
                    (!has_names || field.name() == other.name())
                        && keeps_meaning(field.data_type(), other.data_type())
                })
        }
    }
}

/// Rules that hold for columns of files and for rows alike.
fn is_simple_widening(from: &DataType, to: &DataType) -> bool {
    use DataType as D;
    let is_text = |t: &D| matches!(t, D::Utf8 | D::LargeUtf8 | D::Utf8View);
    let is_binary = |t: &D| matches!(t, D::Binary | D::LargeBinary | D::BinaryView);
    match (from, to) {
        _ if from == to => true,
        (D::FixedSizeBinary(_), _) => is_binary(to),
        (D::Null, _) | (D::Float16, D::Float32 | D::Float64) | (D::Float32, D::Float64) => true,
        _ if from.is_signed_integer() && to.is_signed_integer() => {
            width_bytes(from) <= width_bytes(to)
        }
        _ if from.is_unsigned_integer() && to.is_unsigned_integer() => {
            width_bytes(from) <= width_bytes(to)
        }
        _ if from.is_unsigned_integer() && to.is_signed_integer() => {
            width_bytes(from) < width_bytes(to)
        }
        _ => (is_text(from) && is_text(to)) || (is_binary(from) && is_binary(to)),
    }
}

/// Applies a rule to the items of lists and to the fields of structs.
fn nested_types_fit(
    from: &DataType,
    to: &DataType,
    rule: &dyn Fn(&DataType, &DataType) -> bool,
) -> bool {
    use DataType as D;
    match (from, to) {
        (D::List(from) | D::LargeList(from), D::LargeList(to)) | (D::List(from), D::List(to)) => {
            item_fits(from, to, rule)
        }
        (D::Struct(from), D::Struct(to)) => {
            let names =
                |fields: &Fields| fields.iter().map(|f| f.name().clone()).collect::<Vec<_>>();
            names(from) == names(to)
                && from
                    .iter()
                    .zip(to)
                    .all(|(from, to)| item_fits(from, to, rule))
        }
        // Entries, keys and values are called differently by different writers. Any map may be called unsorted.
        (D::Map(from, from_sorted), D::Map(to, to_sorted)) if *from_sorted || !*to_sorted => {
            match (from.data_type(), to.data_type()) {
                (D::Struct(from), D::Struct(to)) => {
                    let mut fields = from.iter().zip(to);
                    from.len() == to.len() && fields.all(|(from, to)| item_fits(from, to, rule))
                }
                _ => false,
            }
        }
        _ => false,
    }
}

fn item_fits(from: &Field, to: &Field, rule: &dyn Fn(&DataType, &DataType) -> bool) -> bool {
    (to.is_nullable() || !from.is_nullable()) && rule(from.data_type(), to.data_type())
}

fn width_bytes(data_type: &DataType) -> usize {
    data_type.primitive_width().unwrap_or_default()
}

/// The digits of a decimal, and how many of them are after the decimal point.
fn precision_and_scale(data_type: &DataType) -> Option<(i16, i16)> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    match data_type {
        Decimal32(digits, scale)
        | Decimal64(digits, scale)
        | Decimal128(digits, scale)
        | Decimal256(digits, scale) => Some((i16::from(*digits), i16::from(*scale))),
        _ => None,
    }
}

fn is_finer(unit: TimeUnit, finer: TimeUnit) -> bool {
    let rank = |unit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    };
    rank(unit) <= rank(finer)
}
