use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, IntervalDayTimeType};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::IntervalDayTime;
use arrow_schema::DataType;
use bytes::Bytes;

use super::*;
use crate::error::{ErrorKind, Result};
use crate::parquet::decode::decode_with_skips;
use crate::parquet::hand_made::{Values, open, read, write};

const ROWS: usize = 5000;

fn read_rows(bytes: &Bytes, rows: std::ops::Range<usize>) -> Result<Vec<ArrayRef>> {
    let (file, chunks) = open(bytes);
    decode_with_skips(&file, 0, 0, &chunks, rows)
}

fn all_rows(bytes: &Bytes) -> ArrayRef {
    let mut arrays = read(bytes).unwrap();
    assert_eq!(arrays.len(), 1);
    arrays.remove(0)
}

/// Rows read by skipping those before them are those of the whole column.
fn assert_same_rows(bytes: &Bytes) {
    let all = all_rows(bytes);
    for (start, rows) in [(1, 1), (31, 2), (33, 70), (999, 2), (1500, 1000), (4999, 1)] {
        let some = read_rows(bytes, start..start + rows).unwrap();
        assert_eq!(some.len(), 1);
        assert_eq!(&some[0], &all.slice(start, rows), "{start}");
    }
}

#[test]
fn a_length_beyond_the_page_is_refused_where_rows_are_skipped() {
    let texts: Vec<String> = (0..ROWS).map(|row| format!("row {row:05}")).collect();
    let values: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
    let view = DataType::Utf8View;
    for arrow_type in [None, Some(&view)] {
        let column = "optional binary x (UTF8);";
        let values = Values::Bytes(values.clone());
        let bytes = write(column, arrow_type, Encoding::PLAIN, &values);
        assert_same_rows(&bytes);
        // The length of a string before the row, in the row's page.
        let before = [&[9_u8, 0, 0, 0][..], texts[2400].as_bytes()].concat();
        let mut places = bytes.windows(before.len()).enumerate();
        let at = places.find(|(_, w)| *w == before).unwrap().0;
        for damaged in [0x7f, 1, 0xff] {
            let mut bytes = bytes.to_vec();
            bytes[at + 3] = damaged;
            let error = read_rows(&bytes.into(), 2401..2402).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PartCorrupted);
            assert!(error.message().contains("\"x\""), "{error}");
        }
    }
}

#[test]
fn bytes_behind_the_last_string_do_not_count() {
    assert_eq!(whole_strings(b""), 0);
    assert_eq!(whole_strings(b"\x02\0\0\0ab\0\0\0\0"), 10);
    assert_eq!(whole_strings(b"\x02\0\0\0ab\0\0\0"), 6);
    assert_eq!(whole_strings(b"\x02\0\0\0ab\x01\0\0\0"), 6);
    assert_eq!(whole_strings(b"\xff\xff\xff\xffab"), 0);
}

#[test]
fn equal_steps_may_wrap_around() {
    let column = "optional int32 x;";
    for step in [1 << 26, 100_000_007, i32::MIN, -(1 << 27), 3] {
        let numbers = (0..ROWS).scan(0_i32, |last, row| {
            // Some blocks have other steps too.
            *last = last.wrapping_add(if row % 1300 < 200 { step / 2 } else { step });
            Some(*last)
        });
        let numbers: Vec<i32> = numbers.collect();
        let values = Values::Numbers(numbers.clone());
        let bytes = write(column, None, Encoding::DELTA_BINARY_PACKED, &values);
        let all = all_rows(&bytes);
        assert_eq!(all.as_primitive::<Int32Type>().values()[..], numbers);
        assert_same_rows(&bytes);
    }
}

#[test]
fn every_encoding_is_skipped() {
    let texts: Vec<String> = (0..ROWS).map(|row| format!("é{}", row % 900)).collect();
    let values = || Values::Bytes(texts.iter().map(|text| text.as_bytes()).collect());
    let view = DataType::Utf8View;
    for encoding in [
        Encoding::PLAIN,
        Encoding::RLE_DICTIONARY,
        Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Encoding::DELTA_BYTE_ARRAY,
    ] {
        for arrow_type in [None, Some(&view)] {
            let column = "optional binary x (UTF8);";
            assert_same_rows(&write(column, arrow_type, encoding, &values()));
        }
    }
}

fn interval(months: u32, days: u32, milliseconds: u32) -> Vec<u8> {
    [months, days, milliseconds].map(u32::to_le_bytes).concat()
}

#[test]
fn intervals_lose_nothing() {
    let column = "optional fixed_len_byte_array(12) x (INTERVAL);";
    let write_intervals = |intervals: &[Vec<u8>], encoding| {
        let values = Values::Bytes(intervals.iter().map(|v| &v[..]).collect());
        write(column, None, encoding, &values)
    };
    let sound = [interval(0, 0, 0), interval(0, 40, 0x7fff_ffff)];
    for encoding in [Encoding::PLAIN, Encoding::RLE_DICTIONARY] {
        let decoded = all_rows(&write_intervals(&sound, encoding));
        let decoded = decoded.as_primitive::<IntervalDayTimeType>();
        let expected = [(0, 0), (40, i32::MAX)].map(|(d, ms)| IntervalDayTime::new(d, ms));
        assert_eq!(decoded.values()[..], expected);
        for lost in [
            interval(1, 0, 0),
            interval(0, 1 << 31, 0),
            interval(0, 0, 1 << 31),
        ] {
            let bytes = write_intervals(&[sound[0].clone(), lost], encoding);
            let error = read(&bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PartCorrupted);
            assert!(error.message().contains("\"x\""), "{error}");
            assert!(error.message().contains("intervals of months"), "{error}");
        }
    }
    let bytes = write_intervals(&sound, Encoding::DELTA_BYTE_ARRAY);
    assert!(read(&bytes).is_err());
}

/// Whatever a damaged page holds, rows that are read by skipping others are valid, or an error.
#[test]
fn damaged_pages_are_refused_or_read() {
    let texts: Vec<String> = (0..400).map(|row| format!("é{}", row % 90)).collect();
    let strings = || Values::Bytes(texts.iter().map(|text| text.as_bytes()).collect());
    let numbers = || Values::Numbers((0..400).map(|row| row * row % 1000).collect());
    let zeros = [0; 12];
    let fixed_values = || Values::Bytes(vec![&zeros[..]; 400]);
    let (text, number) = ("optional binary x (UTF8);", "optional int32 x;");
    let fixed = "optional fixed_len_byte_array(12) x;";
    let view = Some(DataType::Utf8View);
    let files = [
        write(text, None, Encoding::PLAIN, &strings()),
        write(text, view.as_ref(), Encoding::PLAIN, &strings()),
        write(text, None, Encoding::RLE_DICTIONARY, &strings()),
        write(text, None, Encoding::DELTA_LENGTH_BYTE_ARRAY, &strings()),
        write(text, view.as_ref(), Encoding::DELTA_BYTE_ARRAY, &strings()),
        write(number, None, Encoding::DELTA_BINARY_PACKED, &numbers()),
        write(number, None, Encoding::BYTE_STREAM_SPLIT, &numbers()),
        write(fixed, None, Encoding::PLAIN, &fixed_values()),
        write(fixed, None, Encoding::DELTA_BYTE_ARRAY, &fixed_values()),
    ];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 1).unwrap() % below
    };
    let (mut refused, rounds) = (0, 2000);
    for round in 0..rounds {
        let good = &files[round % files.len()];
        let footer = u32::from_le_bytes(*good[good.len() - 8..].first_chunk().unwrap()) as usize;
        let mut bytes = good.to_vec();
        for _ in 0..=random(2) {
            let at = 4 + random(good.len() - 12 - footer);
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ (1 << random(8))][random(6)];
        }
        let start = random(390);
        match read_rows(&bytes.into(), start..start + 1 + random(9)) {
            Ok(arrays) => {
                for array in arrays {
                    array.to_data().validate_full().unwrap();
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PartCorrupted);
                refused += 1;
            }
        }
    }
    assert!((rounds / 10..rounds).contains(&refused), "{refused}");
}
