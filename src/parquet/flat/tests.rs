//! The flat decoder is compared with the general decoder of arrow-rs, as the oracle.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray, make_array,
};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, NullBuffer};
use arrow_cast::cast;
use arrow_schema::DataType as D;
use arrow_schema::{Field, Schema, TimeUnit};
use arrow_select::concat::concat;
use arrow_select::filter::filter;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::reader::{FileReader, SerializedFileReader};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::RowsToDecode;

const ROWS: usize = 5000;

fn text(i: i64) -> String {
    // Empty, short, about as long as what is copied at once, long, and not ASCII.
    let length = [0, 1, 7, 31, 32, 33, 90][usize::try_from(i).unwrap() % 7];
    let pattern = format!("{i}é漢");
    pattern.chars().cycle().take(length).collect()
}

/// Types, and whether the flat decoder supports them.
fn types() -> Vec<(D, bool)> {
    let zone = Some("Europe/Berlin".into());
    let dictionary = D::Dictionary(Box::new(D::Int32), Box::new(D::Utf8));
    let numbers = [
        D::Int8,
        D::UInt8,
        D::Int16,
        D::UInt16,
        D::Int32,
        D::UInt32,
        D::Int64,
    ];
    let floats = [D::UInt64, D::Float32, D::Float64];
    let times = [
        D::Date32,
        D::Time32(TimeUnit::Millisecond),
        D::Time64(TimeUnit::Nanosecond),
        D::Duration(TimeUnit::Second),
        D::Timestamp(TimeUnit::Microsecond, zone),
    ];
    let decimals = [
        D::Decimal32(8, 2),
        D::Decimal64(17, 3),
        D::Decimal128(9, 2),
        D::Decimal128(15, 2),
    ];
    let texts = [D::Utf8, D::LargeUtf8, D::Binary, D::LargeBinary];
    let others = [D::Boolean, D::Decimal128(30, 2), D::Utf8View, dictionary];
    let supported_types = numbers
        .into_iter()
        .chain(floats)
        .chain(times)
        .chain(decimals)
        .chain(texts);
    let supported = supported_types.map(|t| (t, true));
    supported.chain(others.map(|t| (t, false))).collect()
}

/// A column of at most `distinct` distinct values.
fn column(random: &mut StdRng, data_type: &D, distinct: i64) -> ArrayRef {
    let factor = random.random::<i64>() | 1;
    let draw = |_| random.random_range(0..distinct).wrapping_mul(factor);
    let drawn: Vec<i64> = (0..ROWS).map(draw).collect();
    let within = |modulus: i64| Int64Array::from_iter_values(drawn.iter().map(|n| n % modulus));
    let base: ArrayRef = match data_type {
        D::Utf8 | D::LargeUtf8 | D::Utf8View | D::Binary | D::LargeBinary | D::Dictionary(..) => {
            let texts = drawn.iter().map(|n| text(n.rem_euclid(distinct)));
            Arc::new(StringArray::from_iter_values(texts))
        }
        D::Int8 => Arc::new(within(1 << 7)),
        D::Int16 => Arc::new(within(1 << 15)),
        D::Int32 | D::Date32 => cast(&within(1 << 31), &D::Int32).unwrap(),
        D::UInt8 | D::UInt16 | D::Time32(_) => {
            let modulus = if *data_type == D::UInt16 {
                1 << 16
            } else {
                1 << 8
            };
            let values = drawn.iter().map(|n| n.rem_euclid(modulus));
            cast(&Int64Array::from_iter_values(values), &D::Int32).unwrap()
        }
        D::UInt32 | D::Time64(_) => {
            let values = drawn.iter().map(|n| n.rem_euclid(1 << 32));
            Arc::new(Int64Array::from_iter_values(values))
        }
        D::UInt64 => Arc::new(Int64Array::from_iter_values(
            drawn.iter().map(|n| n & i64::MAX),
        )),
        D::Decimal32(..) | D::Decimal64(..) | D::Decimal128(..) => Arc::new(within(999_999)),
        _ => Arc::new(Int64Array::from(drawn)),
    };
    let array = cast(&base, data_type).unwrap();
    assert_eq!(array.null_count(), 0, "{data_type}");
    array
}

/// The array with a random share of nulls, in runs: none, some or all rows.
fn with_nulls(array: &ArrayRef, random: &mut StdRng) -> ArrayRef {
    let share = [0, 1, 50, 99, 100][random.random_range(0..5)];
    let mut run = 0;
    let mut valid = true;
    let nulls: NullBuffer = (0..array.len())
        .map(|_| {
            if run == 0 {
                let longest = [2, 100, 2000][random.random_range(0..3)];
                run = random.random_range(1..longest);
                valid = random.random_range(0..100) >= share;
            }
            run -= 1;
            valid
        })
        .collect();
    let data = array.to_data().into_builder().nulls(Some(nulls));
    make_array(data.build().unwrap())
}

fn properties(random: &mut StdRng, data_type: &D) -> WriterProperties {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        zstd,
        zstd,
    ];
    let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
    let mut builder = WriterProperties::builder()
        .set_compression(codecs[random.random_range(0..5)])
        .set_writer_version(versions[random.random_range(0..2)])
        .set_data_page_row_count_limit([100, 1000, 100_000][random.random_range(0..3)])
        .set_write_batch_size([64, 1024][random.random_range(0..2)])
        // The smaller limit makes some columns continue without a dictionary.
        .set_dictionary_page_size_limit([2000, 1 << 20][random.random_range(0..2)]);
    if random.random_ratio(1, 3) {
        builder = builder.set_dictionary_enabled(false);
    }
    // Version 2 would choose delta encodings of strings, which the flat decoder does not support.
    builder = builder.set_encoding(Encoding::PLAIN);
    if is_integer(data_type) && random.random() {
        builder = builder.set_encoding(Encoding::DELTA_BINARY_PACKED);
    }
    builder.build()
}

/// Whether Parquet stores the values as integers of 32 or 64 bits.
fn is_integer(data_type: &D) -> bool {
    let is_long = matches!(data_type, D::Decimal128(18.., _));
    !is_long && (data_type.is_integer() || data_type.is_temporal() || data_type.is_decimal())
}

fn write_file(array: &ArrayRef, nullable: bool, properties: WriterProperties) -> Bytes {
    let field = Field::new("x", array.data_type().clone(), nullable);
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(array)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes.into()
}

/// A range of `rows` rows, and a mask of it: without a row, or with short or long runs of rows.
fn random_rows(random: &mut StdRng, rows: usize) -> (Range<usize>, BooleanBuffer) {
    let (from, to) = (random.random_range(0..=rows), random.random_range(0..=rows));
    let range = from.min(to)..from.max(to);
    let longest = [1, 2, 20, 1000][random.random_range(0..4)];
    let mut mask = BooleanBufferBuilder::new(range.len());
    while mask.len() < range.len() {
        let run = random
            .random_range(1..=longest)
            .min(range.len() - mask.len());
        mask.append_n(run, random.random());
    }
    (range, mask.finish())
}

/// The column by the general and by the flat decoder: all rows, or those of a range that a mask selects.
fn decode_both(
    file: &Bytes,
    selected: Option<&(Range<usize>, BooleanBuffer)>,
) -> (Option<ArrayRef>, Option<ArrayRef>) {
    let Ok(builder) = ParquetRecordBatchReaderBuilder::try_new(file.clone()) else {
        return (None, None);
    };
    let metadata = Arc::clone(builder.metadata());
    let data_type = builder.schema().field(0).data_type().clone();
    let group = metadata.row_group(0);
    let rows = usize::try_from(group.num_rows()).unwrap();
    let row_range = selected.map_or(0..rows, |(range, _)| range.clone());
    let bits = selected.map(|(_, bits)| bits);
    let rows_to_decode = RowsToDecode {
        range: row_range.clone(),
        mask: bits,
        locations: None,
    };
    // Not within the `catch_unwind` for the general decoder: the flat one must not panic.
    let decoded = super::decode(
        file.clone(),
        group.column(0),
        rows,
        &rows_to_decode,
        &data_type,
    );
    let mask = ProjectionMask::all();
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let batches = builder.with_projection(mask).build().ok()?;
        let columns = batches.map(|b| b.map(|b| Arc::clone(b.column(0))));
        let arrays = columns.collect::<Result<Vec<_>, _>>().ok()?;
        let parts: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        let whole = concat(&parts).ok()?;
        let of_range =
            (whole.len() == rows).then(|| whole.slice(row_range.start, row_range.len()))?;
        let Some(bits) = bits else {
            return Some(of_range);
        };
        filter(&of_range, &BooleanArray::new(bits.clone(), None)).ok()
    }));
    (read.ok().flatten(), decoded)
}

/// The column by the flat decoder from a file in which all data pages without a selected row are zeros.
fn decode_by_pages(
    file: &Bytes,
    (range, bits): &(Range<usize>, BooleanBuffer),
) -> Option<ArrayRef> {
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
    let builder =
        ParquetRecordBatchReaderBuilder::try_new_with_options(file.clone(), options).unwrap();
    let group = builder.metadata().row_group(0);
    let locations = builder.metadata().offset_index().unwrap()[0][0].page_locations();
    let mut bytes = file.to_vec();
    for (number, location) in locations.iter().enumerate() {
        let row_of = |index: i64| usize::try_from(index).unwrap();
        let next = locations.get(number + 1);
        let rows = row_of(location.first_row_index)
            ..next.map_or(ROWS, |next| row_of(next.first_row_index));
        let is_selected = |row| range.contains(&row) && bits.value(row - range.start);
        if !rows.clone().any(is_selected) {
            let offset = row_of(location.offset);
            let length = usize::try_from(location.compressed_page_size).unwrap();
            bytes[offset..offset + length].fill(0);
        }
    }
    let rows_to_decode = RowsToDecode {
        range: range.clone(),
        mask: Some(bits),
        locations: Some(locations),
    };
    let data_type = builder.schema().field(0).data_type();
    let bytes = Bytes::from(bytes);
    super::decode(bytes, group.column(0), ROWS, &rows_to_decode, data_type)
}

#[test]
fn gives_what_the_general_decoder_gives() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        for (data_type, is_supported) in types() {
            let distinct = [1, 2, 30, 3000][random.random_range(0..4)];
            let mut array = column(&mut random, &data_type, distinct);
            let nullable = random.random_ratio(3, 4);
            if nullable {
                array = with_nulls(&array, &mut random);
            }
            let file = write_file(&array, nullable, properties(&mut random, &data_type));
            let (expected, decoded) = decode_both(&file, None);
            assert_eq!(
                expected.as_ref(),
                Some(&array),
                "seed {seed}, {data_type}: the oracle"
            );
            if is_supported {
                assert_eq!(decoded, expected, "seed {seed}, {data_type}");
                for _ in 0..3 {
                    let (range, bits) = random_rows(&mut random, ROWS);
                    let all = BooleanBuffer::new_set(range.len());
                    for bits in [all, bits] {
                        let selected = (range.clone(), bits);
                        let (expected, decoded) = decode_both(&file, Some(&selected));
                        assert_eq!(decoded, expected, "seed {seed}, {data_type}, {selected:?}");
                        let by_pages = decode_by_pages(&file, &selected);
                        assert_eq!(by_pages, expected, "seed {seed}, {data_type}, {selected:?}");
                    }
                }
            } else {
                assert!(decoded.is_none(), "{data_type} is not decoded here");
            }
        }
    }
}

/// Of differences of every width, and of equal steps whose sums wrap around.
#[test]
fn packed_differences_are_decoded() {
    let mut random = StdRng::seed_from_u64(1);
    for width in 0..=64_u32 {
        let mask = u64::MAX.checked_shr(64 - width).unwrap_or_default();
        let step = random.random::<u64>();
        let mut last = random.random::<u64>();
        let values = (0..ROWS).map(|_| {
            last = last
                .wrapping_add(step)
                .wrapping_add(random.random::<u64>() & mask);
            last.cast_signed()
        });
        let long = Int64Array::from_iter_values(values);
        #[allow(clippy::cast_possible_truncation, reason = "any 32 bits will do")]
        let short = Int32Array::from_iter_values(long.values().iter().map(|value| *value as i32));
        for array in [Arc::new(long) as ArrayRef, Arc::new(short)] {
            for nullable in [false, true] {
                let array = if nullable {
                    with_nulls(&array, &mut random)
                } else {
                    Arc::clone(&array)
                };
                let rows = [1, 2, 33, ROWS][random.random_range(0..4)];
                let array = array.slice(0, rows);
                let properties = WriterProperties::builder()
                    .set_dictionary_enabled(false)
                    .set_encoding(Encoding::DELTA_BINARY_PACKED)
                    .set_data_page_row_count_limit([30, 1000, 100_000][random.random_range(0..3)])
                    .build();
                let file = write_file(&array, nullable, properties);
                let selected = random_rows(&mut random, rows);
                for selected in [None, Some(&selected)] {
                    let (expected, decoded) = decode_both(&file, selected);
                    assert!(expected.is_some(), "width {width}");
                    assert_eq!(decoded, expected, "width {width}");
                }
                assert_eq!(decode_both(&file, None).1.as_ref(), Some(&array));
            }
        }
    }
}

/// Of changed bytes both decoders give the same, or one an error; the flat decoder does not panic.
#[test]
fn damaged_pages_are_left_to_the_general_decoder() {
    let mut refused = 0;
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        for (data_type, _) in types()
            .into_iter()
            .filter(|(_, is_supported)| *is_supported)
        {
            let array = column(&mut random, &data_type, 30).slice(0, 500);
            let array = with_nulls(&array, &mut random);
            let file = write_file(&array, true, properties(&mut random, &data_type));
            let reader = SerializedFileReader::new(file.clone()).unwrap();
            let (start, length) = reader.metadata().row_group(0).column(0).byte_range();
            let pages = usize::try_from(start + length).unwrap();
            for _ in 0..20 {
                let mut bytes = file.to_vec();
                let at = random.random_range(4..pages);
                bytes[at] ^= 1 << random.random_range(0..8);
                let damaged = bytes.into();
                // Damage outside the rows is not noticed here (checksums notice it), and the headers of skipped
                // pages can panic, which the caller of `decode` catches.
                let selected = random_rows(&mut random, 500);
                let _ = std::panic::catch_unwind(|| decode_both(&damaged, Some(&selected)));
                let (expected, decoded) = decode_both(&damaged, None);
                refused += usize::from(decoded.is_none());
                if expected.is_some() && decoded.is_some() {
                    assert_eq!(decoded, expected, "seed {seed}, {data_type}, byte {at}");
                }
            }
        }
    }
    assert!(refused > 100, "only {refused} refused");
}

/// Old writers list the encoding of levels that a column does not have.
#[test]
#[allow(deprecated, reason = "old writers list it among the encodings")]
fn listed_level_encodings_do_not_matter() {
    let array: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None, Some(-1)]));
    let bytes = write_file(&array, true, WriterProperties::default());
    let file = SerializedFileReader::new(bytes.clone()).unwrap();
    let column = file.metadata().row_group(0).column(0).clone();
    let mut encodings: Vec<Encoding> = column.encodings().collect();
    encodings.push(Encoding::BIT_PACKED);
    let column = column.into_builder().set_encodings(encodings).build();
    let all_rows = RowsToDecode {
        range: 0..3,
        mask: None,
        locations: None,
    };
    let decoded = super::decode(bytes, &column.unwrap(), 3, &all_rows, &D::Int64);
    assert_eq!(decoded.as_ref(), Some(&array));
}
