//! The bytes that the hash of a column is computed from.
//!
//! [`encode_type`] encodes the type of a column, which comes first, and [`encode_values`] the values. A type without
//! a logical hash has no encoding: None.
//!
//! Source: RFC-002 of the Open Data Fabric and the `arrow-digest` crate (version 0 of its array digest), which the
//! tests compare with. The bytes are made here, not in the crate, so that columns can be hashed side by side.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{Buffer, NullBuffer};
use arrow_schema::{DataType, TimeUnit};

const NULL: u8 = 0;

/// Encodes a type; None if the type has no logical hash.
pub(super) fn encode_type(data_type: &DataType) -> Option<Vec<u8>> {
    let int = |signed: u8, bits: u64| encode_type_id(1, &[&[signed], &bits.to_le_bytes()]);
    let float = |bits: u64| encode_type_id(2, &[&bits.to_le_bytes()]);
    let decimal = |bits: u64, precision: u8, scale: i8| {
        // A negative scale is extended by its sign.
        let numbers = [bits, precision.into(), i64::from(scale).cast_unsigned()];
        encode_type_id(
            6,
            &numbers
                .each_ref()
                .map(|n| n.to_le_bytes())
                .each_ref()
                .map(|b| &b[..]),
        )
    };
    let with_unit = |id: u16, bits: u64, unit: u16| {
        encode_type_id(id, &[&bits.to_le_bytes(), &unit.to_le_bytes()])
    };
    Some(match data_type {
        DataType::Int8 => int(1, 8),
        DataType::Int16 => int(1, 16),
        DataType::Int32 => int(1, 32),
        DataType::Int64 => int(1, 64),
        DataType::UInt8 => int(0, 8),
        DataType::UInt16 => int(0, 16),
        DataType::UInt32 => int(0, 32),
        DataType::UInt64 => int(0, 64),
        DataType::Float16 => float(16),
        DataType::Float32 => float(32),
        DataType::Float64 => float(64),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => encode_type_id(3, &[]),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => encode_type_id(4, &[]),
        DataType::Boolean => encode_type_id(5, &[]),
        DataType::Decimal32(precision, scale) => decimal(32, *precision, *scale),
        DataType::Decimal64(precision, scale) => decimal(64, *precision, *scale),
        DataType::Decimal128(precision, scale) => decimal(128, *precision, *scale),
        DataType::Decimal256(precision, scale) => decimal(256, *precision, *scale),
        DataType::Date32 => with_unit(7, 32, 0),
        DataType::Date64 => with_unit(7, 64, 1),
        DataType::Time32(unit) => with_unit(8, 32, unit_number(*unit)),
        DataType::Time64(unit) => with_unit(8, 64, unit_number(*unit)),
        DataType::Timestamp(unit, zone) => {
            let unit = unit_number(*unit).to_le_bytes();
            match zone {
                None => encode_type_id(9, &[&unit, &[0]]),
                Some(zone) => {
                    let length = (zone.len() as u64).to_le_bytes();
                    encode_type_id(9, &[&unit, &length, zone.as_bytes()])
                }
            }
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            encode_type_id(11, &[&encode_type(item.data_type())?])
        }
        _ => return None,
    })
}

fn encode_type_id(id: u16, parameters: &[&[u8]]) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend(parameters.concat());
    bytes
}

fn unit_number(unit: TimeUnit) -> u16 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    }
}

/// Encodes the values of an array, of which `nulls` are null. Returns the array's own buffer if it holds the
/// encoding; otherwise returns None, and the encoding is in `scratch`.
pub(super) fn encode_values(
    array: &dyn Array,
    nulls: Option<&NullBuffer>,
    scratch: &mut Vec<u8>,
) -> Option<Buffer> {
    scratch.clear();
    if let (Some(width), None) = (array.data_type().primitive_width(), nulls) {
        return Some(fixed_width_values(array, width));
    }
    append_values(array, nulls, scratch);
    None
}

/// Returns the buffer of an array whose values have `width` bytes each.
fn fixed_width_values(array: &dyn Array, width: usize) -> Buffer {
    let data = array.to_data();
    data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
}

fn append_values(array: &dyn Array, nulls: Option<&NullBuffer>, bytes: &mut Vec<u8>) {
    let mut encoder = ValueEncoder {
        rows: array.len(),
        nulls,
        bytes,
    };
    match array.data_type() {
        DataType::Boolean => {
            let array = array.as_boolean();
            encoder.for_each_row(|row, bytes| bytes.push(u8::from(array.value(row)) + 1));
        }
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            encoder.append_blobs(|row| array.value(row).as_bytes());
        }
        DataType::LargeUtf8 => {
            let array = array.as_string::<i64>();
            encoder.append_blobs(|row| array.value(row).as_bytes());
        }
        DataType::Utf8View => {
            let array = array.as_string_view();
            encoder.append_blobs(|row| array.value(row).as_bytes());
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            encoder.append_blobs(|row| array.value(row));
        }
        DataType::LargeBinary => {
            let array = array.as_binary::<i64>();
            encoder.append_blobs(|row| array.value(row));
        }
        DataType::BinaryView => {
            let array = array.as_binary_view();
            encoder.append_blobs(|row| array.value(row));
        }
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            encoder.append_blobs(|row| array.value(row));
        }
        DataType::List(_) => {
            let array = array.as_list::<i32>();
            encoder.append_lists(|row| array.value(row));
        }
        DataType::LargeList(_) => {
            let array = array.as_list::<i64>();
            encoder.append_lists(|row| array.value(row));
        }
        DataType::FixedSizeList(..) => {
            let array = array.as_fixed_size_list();
            encoder.append_lists(|row| array.value(row));
        }
        _ => encoder.append_numbers(array),
    }
}

/// Appends the encoded values of rows to `bytes`.
struct ValueEncoder<'a> {
    rows: usize,
    nulls: Option<&'a NullBuffer>,
    bytes: &'a mut Vec<u8>,
}

impl ValueEncoder<'_> {
    /// Calls `append_value` for every row that has a value, and appends one byte for every null.
    fn for_each_row(&mut self, append_value: impl Fn(usize, &mut Vec<u8>)) {
        for row in 0..self.rows {
            if self.nulls.is_none_or(|nulls| nulls.is_valid(row)) {
                append_value(row, self.bytes);
            } else {
                self.bytes.push(NULL);
            }
        }
    }

    fn append_numbers(&mut self, array: &dyn Array) {
        let width = array.data_type().primitive_width().unwrap_or_default();
        let values = fixed_width_values(array, width);
        match width {
            1 => self.append_fixed_width::<1>(&values),
            2 => self.append_fixed_width::<2>(&values),
            4 => self.append_fixed_width::<4>(&values),
            8 => self.append_fixed_width::<8>(&values),
            16 => self.append_fixed_width::<16>(&values),
            _ => self.append_fixed_width::<32>(&values),
        }
    }

    fn append_fixed_width<const WIDTH: usize>(&mut self, values: &[u8]) {
        if self.nulls.is_none() {
            self.bytes.extend_from_slice(values);
            return;
        }
        let (values, _) = values.as_chunks::<WIDTH>();
        self.bytes.reserve(values.len() * WIDTH);
        self.for_each_row(|row, bytes| bytes.extend_from_slice(&values[row]));
    }

    fn append_blobs<'v>(&mut self, value: impl Fn(usize) -> &'v [u8]) {
        self.for_each_row(|row, bytes| {
            let value = value(row);
            bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
            bytes.extend_from_slice(value);
        });
    }

    fn append_lists(&mut self, items: impl Fn(usize) -> ArrayRef) {
        self.for_each_row(|row, bytes| {
            let items = items(row);
            bytes.extend_from_slice(&(items.len() as u64).to_le_bytes());
            let nulls = items.nulls().filter(|nulls| nulls.null_count() > 0);
            append_values(items.as_ref(), nulls, bytes);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        FixedSizeBinaryArray, FixedSizeListArray, Int8Array, LargeListArray, ListArray,
    };
    use arrow_buffer::OffsetBuffer;
    use arrow_cast::cast;
    use arrow_digest::{ArrayDigest, ArrayDigestV0};
    use arrow_schema::Field;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use sha3::{Digest, Sha3_256};

    use super::*;

    fn flat_types() -> Vec<DataType> {
        use DataType::*;
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let mut types = vec![
            Int8,
            Int16,
            Int32,
            Int64,
            Float16,
            Float32,
            Float64,
            Boolean,
            Utf8,
            LargeUtf8,
            Utf8View,
            Binary,
            LargeBinary,
            BinaryView,
            FixedSizeBinary(3),
            Date32,
            Date64,
            Time32(Second),
            Time32(Millisecond),
            Time64(Microsecond),
            Time64(Nanosecond),
            Decimal32(9, 2),
            Decimal64(18, -2),
            Decimal128(38, 10),
            Decimal256(76, 3),
            UInt8,
            UInt16,
            UInt32,
            UInt64,
        ];
        for unit in [Second, Millisecond, Microsecond, Nanosecond] {
            types.push(Timestamp(unit, None));
            types.push(Timestamp(unit, Some("UTC".into())));
            types.push(Timestamp(unit, Some("+02:00".into())));
        }
        types
    }

    /// Numbers of a type, from 0 on, since not all types have negative ones.
    fn flat(data_type: &DataType, rows: usize, random: &mut StdRng) -> ArrayRef {
        let with_nulls = random.random_bool(0.7);
        let value = |random: &mut StdRng| match random.random_range(0..4) {
            0 if with_nulls => None,
            _ => Some(random.random_range(0..=i8::MAX)),
        };
        let numbers: Int8Array = (0..rows).map(|_| value(random)).collect();
        match data_type {
            DataType::FixedSizeBinary(width) => {
                let values = numbers.iter().map(|n| n.map(|n| [n.cast_unsigned(), 7, 9]));
                Arc::new(
                    FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, *width).unwrap(),
                )
            }
            _ => [DataType::Int64, DataType::Int32, DataType::Utf8]
                .iter()
                .find_map(|intermediate| {
                    cast(&cast(&numbers, intermediate).unwrap(), data_type).ok()
                })
                .unwrap_or_else(|| panic!("numbers cannot be cast to {data_type}")),
        }
    }

    fn nested(items: ArrayRef, form: usize, random: &mut StdRng) -> ArrayRef {
        let field = Arc::new(Field::new("item", items.data_type().clone(), true));
        let nulls = |rows: usize, random: &mut StdRng| {
            let valid = (0..rows).map(|_| random.random_bool(0.8));
            Some(valid.collect::<NullBuffer>()).filter(|n| n.null_count() > 0)
        };
        if form == 0 {
            let rows = items.len() / 3;
            let nulls = nulls(rows, random);
            let items = items.slice(0, rows * 3);
            return Arc::new(FixedSizeListArray::new(field, 3, items, nulls));
        }
        let (mut lengths, mut remaining) = (Vec::new(), items.len());
        while remaining > 0 {
            lengths.push(random.random_range(0..=remaining.min(5)));
            remaining -= lengths[lengths.len() - 1];
        }
        let nulls = nulls(lengths.len(), random);
        if form == 1 {
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
            return Arc::new(ListArray::new(field, offsets, items, nulls));
        }
        let offsets = OffsetBuffer::<i64>::from_lengths(lengths);
        Arc::new(LargeListArray::new(field, offsets, items, nulls))
    }

    #[test]
    fn they_are_what_the_crate_hashes() {
        let mut random = StdRng::seed_from_u64(11);
        for data_type in flat_types() {
            for round in 0..20 {
                let mut array = flat(&data_type, random.random_range(0..200), &mut random);
                for _ in 0..round % 3 {
                    let form = random.random_range(0..3);
                    array = nested(array, form, &mut random);
                }
                let from = random.random_range(0..=array.len());
                let array = array.slice(from, random.random_range(0..=array.len() - from));
                let mut ours = Sha3_256::new();
                ours.update(encode_type(array.data_type()).unwrap());
                let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
                let mut scratch = Vec::new();
                let borrowed = encode_values(array.as_ref(), nulls, &mut scratch);
                ours.update(borrowed.as_deref().unwrap_or(&scratch));
                let theirs = ArrayDigestV0::<Sha3_256>::digest(array.as_ref());
                assert_eq!(ours.finalize(), theirs, "{:?}", array.data_type());
            }
        }
    }

    #[test]
    fn types_that_the_crate_does_not_know_have_no_hash() {
        let entries = Field::new("entries", DataType::Struct([].into()), false);
        for data_type in [
            DataType::Null,
            DataType::Duration(TimeUnit::Second),
            DataType::Interval(arrow_schema::IntervalUnit::DayTime),
            DataType::Map(Arc::new(entries), false),
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        ] {
            let list = DataType::List(Arc::new(Field::new("item", data_type.clone(), true)));
            assert_eq!(
                (encode_type(&data_type), encode_type(&list)),
                (None, None),
                "{data_type}"
            );
        }
    }
}
