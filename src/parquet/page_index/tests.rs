use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::*;
use crate::error::ErrorKind;
use crate::parquet::file::FileOpenResult;

const ROWS: u32 = 5000;

/// A file of another maker: pages of 1000 rows of numbers, texts and lists.
fn sample() -> Bytes {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(i64::from)));
    let texts: ArrayRef = Arc::new(
        (0..ROWS)
            .map(|n| (n % 3 > 0).then(|| format!("text {n}")))
            .collect::<StringArray>(),
    );
    let lists = (0..ROWS).map(|n| Some(vec![Some(i64::from(n)); 2]));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<
        arrow_array::types::Int64Type,
        _,
        _,
    >(lists));
    let columns = [("n", numbers), ("t", texts), ("l", lists)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_data_page_row_count_limit(1000)
        .set_write_batch_size(500)
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes.into()
}

fn open(bytes: &Bytes) -> ParquetFile {
    match ParquetFile::open(bytes, bytes.len() as u64).unwrap() {
        FileOpenResult::Ready(file) => *file,
        FileOpenResult::NeedTail(_) => panic!("the file is complete"),
    }
}

fn chunks(bytes: &Bytes) -> Chunks {
    let mut chunks = Chunks::new();
    chunks.push(0, bytes.clone());
    chunks
}

type Decoded = (Option<ChunkPages>, Option<PageBounds>);

fn decode(file: &ParquetFile, leaf: usize, bytes: &Bytes) -> Result<Decoded> {
    let ranges = file.index_ranges(0, leaf).unwrap();
    let pages = file.decode_pages(0, leaf, &ranges, &chunks(bytes))?;
    let count = pages.as_ref().map_or(5, ChunkPages::num_pages);
    let bounds = file.decode_bounds(0, leaf, &ranges, &chunks(bytes), count)?;
    Ok((pages, bounds))
}

#[test]
fn another_makers_indexes_are_read() {
    let bytes = sample();
    let file = open(&bytes);
    for leaf in [0, 1] {
        let (pages, bounds) = decode(&file, leaf, &bytes).unwrap();
        let (pages, bounds) = (pages.unwrap(), bounds.unwrap());
        let rows: Vec<_> = (0..5).map(|page| pages.page_rows(page)).collect();
        assert_eq!(
            rows,
            [0..1000, 1000..2000, 2000..3000, 3000..4000, 4000..5000]
        );
        assert!(!bounds.is_sealed);
        let nulls: u64 = bounds.null_counts.unwrap().iter().sum();
        assert_eq!(
            nulls,
            if leaf == 0 {
                0
            } else {
                u64::from(ROWS.div_ceil(3))
            }
        );
        let some = RowRanges::covering([1500..1501, 3999..4001]);
        let selected: Vec<usize> = pages.pages_of(&some).collect();
        assert_eq!(selected, [1, 3, 4]);
        for (begin, end) in [
            (0, 1),
            (7, 7),
            (999, 1000),
            (999, 1001),
            (1000, 1001),
            (4999, 5000),
            (0, 5000),
        ] {
            let some = RowRanges::single(begin..end);
            let selected: Vec<usize> = pages.pages_of(&some).collect();
            let expected = (0..5).filter(|page| some.overlaps(&pages.page_rows(*page)));
            assert_eq!(selected, expected.collect::<Vec<_>>(), "{begin}..{end}");
        }
        pages
            .check(&file, (0, leaf), &chunks(&bytes), &some)
            .unwrap();
    }
    // How many rows a page with lists has cannot be compared with anything.
    assert!(decode(&file, 2, &bytes).unwrap().0.is_none());
}

#[test]
fn changed_indexes_are_refused_or_read() {
    let good = sample();
    let file = open(&good);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 1) % below
    };
    let (mut refused, mut ignored, mut unbounded) = (0, 0, 0);
    for round in 0..6000_usize {
        let ranges = file.index_ranges(0, round % 2).unwrap();
        let index = if round % 4 < 2 {
            ranges.offset_index
        } else {
            ranges.column_index.unwrap()
        };
        let mut bytes = good.to_vec();
        for _ in 0..=random(2) {
            let at = usize::try_from(index.start + random(index.end - index.start)).unwrap();
            bytes[at] =
                [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1][usize::try_from(random(6)).unwrap()];
        }
        let bytes = Bytes::from(bytes);
        match decode(&file, round % 2, &bytes) {
            Ok((Some(pages), bounds)) => {
                unbounded += usize::from(bounds.is_none());
                let rows = RowRanges::all(ROWS as usize);
                // Every page is either as the header says or is refused.
                let checked = pages.check(&file, (0, round % 2), &chunks(&bytes), &rows);
                refused += usize::from(checked.is_err());
            }
            Ok((None, _)) => ignored += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PartCorrupted);
                // Without its column index a chunk is read with all of its pages.
                assert!(round % 4 < 2, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 500 && ignored > 500, "{refused} {ignored}");
    assert!(unbounded > 100, "{unbounded}");
}

#[test]
fn a_negative_number_of_nulls_gives_no_bounds() {
    // Two pages of nulls, without bounds: -1 and 2 nulls.
    let index = |counts: [u8; 2]| {
        let start: [u8; 12] = [0x19, 0x21, 1, 1, 0x19, 0x28, 0, 0, 0x19, 0x28, 0, 0];
        [&start[..], &[0x15, 0, 0x19, 0x26], &counts, &[0]].concat()
    };
    assert!(read_column_index(&index([2, 4])).is_ok());
    let reason = read_column_index(&index([1, 4])).err();
    assert_eq!(reason, Some("a page has a negative number of nulls"));
}

#[test]
fn a_cut_index_and_a_claimed_length_are_refused() {
    let offset_index = [0x19, 0x1c, 0x16, 8, 0x15, 20, 0x16, 0, 0, 0];
    assert_eq!(read_offset_index(&offset_index).unwrap().len(), 1);
    for end in 0..offset_index.len() {
        assert!(read_offset_index(&offset_index[..end]).is_err(), "{end}");
    }
    let claimed = [0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07];
    assert!(read_offset_index(&claimed).is_err());
    assert!(read_column_index(&claimed).is_err());
    // One page of nulls, but two smallest values.
    let uneven = [0x19, 0x11, 1, 0x19, 0x28, 0, 0, 0x19, 0x18, 0, 0x15, 0, 0];
    let reason = read_column_index(&uneven).err();
    assert_eq!(reason, Some("its lists have different lengths"));
}

#[test]
fn pages_that_do_not_fill_the_chunk_are_not_in_order() {
    let location = |offset, compressed_page_size, first_row_index| PageLocation {
        offset,
        compressed_page_size,
        first_row_index,
    };
    let good = vec![location(10, 5, 0), location(15, 5, 3)];
    assert_eq!(check_order(&good, &(4..20), 6), Some(4..10));
    assert_eq!(check_order(&good, &(10..20), 6), Some(10..10));
    for wrong in [
        vec![],
        vec![location(10, 5, 1), location(15, 5, 3)],
        vec![location(10, 5, 0), location(16, 4, 3)],
        vec![location(10, 5, 0), location(15, 4, 3)],
        vec![location(10, 5, 0), location(15, 5, 0)],
        vec![location(10, 5, 0), location(15, 5, 6)],
        vec![location(10, 0, 0), location(10, 10, 3)],
        vec![location(-10, 5, 0), location(15, 5, 3)],
        vec![location(3, 12, 0), location(15, 5, 3)],
        vec![location(i64::MAX, i32::MAX, 0), location(15, 5, 3)],
    ] {
        assert_eq!(check_order(&wrong, &(4..20), 6), None, "{wrong:?}");
    }
}
