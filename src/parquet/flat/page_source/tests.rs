//! Pages are compared with those that arrow-rs reads, as the oracle.

use std::io::Write;
use std::sync::Arc;

use flate2::write::GzEncoder;
use parquet::basic::{BrotliLevel, GzipLevel, ZstdLevel};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const ROWS: usize = 10_000;
/// Thrift types of fields.
const INTEGER: u8 = 5;
const STRUCT: u8 = 12;

/// A struct in Thrift's compact protocol.
#[derive(Default)]
struct ThriftWriter {
    bytes: Vec<u8>,
    last_field: u8,
}

impl ThriftWriter {
    fn field(&mut self, field: u8, field_type: u8) {
        self.bytes.push((field - self.last_field) << 4 | field_type);
        self.last_field = field;
    }

    fn number(&mut self, field: u8, number: usize) {
        self.field(field, INTEGER);
        let mut rest = number << 1;
        while rest >= 0x80 {
            self.bytes.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        self.bytes.push(u8::try_from(rest).unwrap());
    }

    fn close(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// The fields of a page's header.
#[derive(Debug)]
struct PageFields {
    kind: usize,
    uncompressed: usize,
    compressed: usize,
    /// The fields of the header of the kind, and whether the values of a page of version 2 are compressed.
    numbers: Vec<(u8, usize)>,
    is_compressed: Option<bool>,
}

impl PageFields {
    fn write(&self) -> Vec<u8> {
        let mut of_kind = ThriftWriter::default();
        for (field, number) in &self.numbers {
            of_kind.number(*field, *number);
        }
        if let Some(is_compressed) = self.is_compressed {
            of_kind.field(7, if is_compressed { 1 } else { 2 });
        }
        let mut header = ThriftWriter::default();
        header.number(1, self.kind);
        header.number(2, self.uncompressed);
        header.number(3, self.compressed);
        header.field([5, 6, 7, 8][self.kind], STRUCT);
        header.bytes.extend(of_kind.close());
        header.close()
    }
}

fn compress(bytes: &[u8], column: &ColumnChunkMetaData) -> Vec<u8> {
    match column.compression() {
        Compression::ZSTD(_) => zstd::bulk::compress(bytes, 1).unwrap(),
        Compression::GZIP(_) => {
            let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Compression::BROTLI(_) => {
            let mut compressed = Vec::new();
            let mut encoder = brotli::CompressorWriter::new(&mut compressed, 4096, 1, 22);
            encoder.write_all(bytes).unwrap();
            drop(encoder);
            compressed
        }
        _ => bytes.to_vec(),
    }
}

/// A page, valid but for its values, which are random.
fn page(random: &mut StdRng, column: &ColumnChunkMetaData) -> Vec<u8> {
    let longest = [0, 5, 2000, 100_000][random.random_range(0..4)];
    let length = random.random_range(0..=longest);
    let values: Vec<u8> = (0..length).map(|_| random.random_range(0..4)).collect();
    let levels: Vec<u8> = (0..random.random_range(0..9)).collect();
    let rows = random.random_range(0..ROWS);
    let encoding = [0, 2, 8][random.random_range(0..3)];
    let mut fields = PageFields {
        kind: [0, 2, 3][random.random_range(0..3)],
        uncompressed: 0,
        compressed: 0,
        numbers: vec![(1, rows), (2, encoding)],
        is_compressed: None,
    };
    let body = match fields.kind {
        0 => {
            fields.numbers.extend([(3, 3), (4, 3)]);
            let mut bytes = Vec::new();
            if column.column_descr().max_def_level() > 0 {
                bytes.extend(u32::try_from(levels.len()).unwrap().to_le_bytes());
                bytes.extend(&levels);
            }
            bytes.extend(&values);
            fields.uncompressed = bytes.len();
            compress(&bytes, column)
        }
        2 => {
            fields.numbers[1].1 = encoding.min(2);
            fields.uncompressed = values.len();
            compress(&values, column)
        }
        _ => {
            let numbers = [(2, 0), (3, rows), (4, encoding), (5, levels.len()), (6, 0)];
            fields.numbers.truncate(1);
            fields.numbers.extend(numbers);
            fields.is_compressed = [None, Some(true), Some(false)][random.random_range(0..3)];
            fields.uncompressed = levels.len() + values.len();
            let stored = match fields.is_compressed {
                Some(false) => values,
                _ if values.is_empty() => values,
                _ => compress(&values, column),
            };
            [levels, stored].concat()
        }
    };
    fields.compressed = body.len();
    [fields.write(), body].concat()
}

fn column(random: &mut StdRng, bytes: usize) -> ColumnChunkMetaData {
    let repetition = ["required", "optional"][random.random_range(0..2)];
    let schema = format!("message m {{ {repetition} int32 x; }}");
    let schema = parse_message_type(&schema).unwrap();
    let schema = SchemaDescriptor::new(Arc::new(schema));
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
    ];
    let chunk = ColumnChunkMetaData::builder(schema.column(0))
        .set_compression(codecs[random.random_range(0..4)])
        .set_data_page_offset(0)
        .set_total_compressed_size(i64::try_from(bytes).unwrap());
    chunk.build().unwrap()
}

/// Compares pages until there are no more, or one is left to arrow-rs; returns how many there were.
fn compare(bytes: &Bytes, column: &ColumnChunkMetaData, context: &str) -> usize {
    let column = column.clone().into_builder();
    let length = i64::try_from(bytes.len()).unwrap();
    let column = column.set_total_compressed_size(length).build().unwrap();
    let mut direct = PageSource::open(bytes.clone(), &column, ROWS, None).unwrap();
    assert!(matches!(direct, PageSource::Direct(_)));
    let mut general = GeneralPages::open(bytes.clone(), &column, ROWS, None).unwrap();
    PageBuffer::with(|buffer| {
        let mut compared = 0;
        while let Ok(page) = direct.next_page(buffer) {
            // Of damaged headers arrow-rs refuses some for what is not used here.
            let Ok(expected) = general.next_page() else {
                break;
            };
            assert!(page == expected, "{context}, page {compared}");
            compared += 1;
        }
        compared
    })
}

#[test]
fn pages_are_those_of_the_general_reader() {
    let mut seen = 0;
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let column = column(&mut random, 0);
        let pages: Vec<_> = (0..5).map(|_| page(&mut random, &column)).collect();
        let bytes = Bytes::from(pages.concat());
        let context = format!("seed {seed}, {:?}", column.compression());
        assert_eq!(compare(&bytes, &column, &context), pages.len(), "{context}");
        for _ in 0..100 {
            let mut damaged = bytes.to_vec();
            // Most of it near the header of a page.
            let page = random.random_range(0..pages.len());
            let begin: usize = pages[..page].iter().map(Vec::len).sum();
            let near = random.random_range(0..40.min(bytes.len() - begin));
            let anywhere = random.random_range(0..bytes.len());
            let at = if random.random() {
                begin + near
            } else {
                anywhere
            };
            damaged[at] ^= 1 << random.random_range(0..8);
            if random.random_ratio(1, 10) {
                damaged.truncate(at);
            }
            let context = format!("{context}, byte {at} of {}", bytes.len());
            seen += compare(&damaged.into(), &column, &context);
        }
    }
    assert!(seen > 10_000, "{seen}");
}
