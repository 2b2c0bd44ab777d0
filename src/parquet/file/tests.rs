use arrow_array::{Int64Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use parquet::arrow::ArrowWriter;

use super::*;
use crate::parquet::decode::{Chunks, RowGroupStream};

fn sample() -> Vec<u8> {
    let numbers: ArrayRef = Arc::new((0..50).map(Some).collect::<Int64Array>());
    let strings = (0..50).map(|i| (i % 5 != 0).then(|| format!("text {}", i % 7)));
    let texts: ArrayRef = Arc::new(strings.collect::<StringArray>());
    let field = Arc::new(Field::new("x", DataType::Int64, true));
    let nested = StructArray::from(vec![(field, Arc::clone(&numbers))]);
    let columns: [(&str, ArrayRef); 3] = [("n", numbers), ("t", texts), ("s", Arc::new(nested))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

/// The number of rows that can be read of a file.
fn read(bytes: &Bytes) -> Result<usize> {
    let FileOpenResult::Ready(file) = ParquetFile::open(bytes, bytes.len() as u64)? else {
        return Ok(0);
    };
    let mut chunks = Chunks::new();
    chunks.push(0, bytes.clone());
    let projection: Vec<usize> = (0..file.schema.fields().len()).collect();
    let mut rows = 0;
    for group in 0..file.metadata().num_row_groups() {
        let mut stream = RowGroupStream::open(&file, group, &projection, &chunks)?;
        // A footer may claim any number of rows.
        while let Some(batch) = stream.next_batch()?
            && rows < 1 << 20
        {
            rows += batch.num_rows();
        }
    }
    Ok(rows)
}

#[test]
fn a_changed_file_is_read_or_refused() {
    let good = sample();
    assert_eq!(read(&good.clone().into()).unwrap(), 50);
    let footer = u32::from_le_bytes(*good[good.len() - 8..].first_chunk().unwrap()) as usize;
    let footer_at = good.len() - 8 - footer;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 1).unwrap() % below
    };
    let mut refused = 0;
    for round in 0..4000 {
        let mut bytes = good.clone();
        // Mostly the footer, because it says how everything else is read.
        let (begin, length) = if round % 4 == 0 {
            (4, footer_at - 4)
        } else {
            (footer_at, footer)
        };
        for _ in 0..=random(3) {
            let at = begin + random(length);
            bytes[at] = [
                0,
                1,
                0x7f,
                0x80,
                0xff,
                bytes[at] ^ 1,
                bytes[at].wrapping_add(1),
            ][random(7)];
        }
        refused += usize::from(read(&bytes.into()).is_err());
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn a_file_that_is_cut_off_is_refused() {
    let good = Bytes::from(sample());
    for end in 0..good.len() {
        assert!(read(&good.slice(..end)).is_err(), "{end}");
    }
}
