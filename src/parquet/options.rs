//! The options with which Parquet is written.

use std::sync::Arc;

use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, Type, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{
    DEFAULT_DICTIONARY_PAGE_SIZE_LIMIT, EnabledStatistics, WriterProperties, WriterPropertiesPtr,
    WriterVersion,
};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};

use crate::error::{Error, Result};

/// The default for the most rows of a row group; the same as pyarrow's.
pub const DEFAULT_ROW_GROUP_ROWS: usize = 1 << 20;
/// The most rows of a page: one of them is below 1 % of a column of a full row group, and is what one key costs.
const DEFAULT_PAGE_ROWS: usize = 8 << 10;
/// The default memory limit of a write, in bytes.
pub const DEFAULT_MEMORY_LIMIT_BYTES: usize = 512 << 20;
/// The lowest memory limit, in bytes. Less does not hold one row group's dictionaries and the upload parts in flight.
pub const MIN_MEMORY_LIMIT_BYTES: usize = 32 << 20;

/// Checked options of a writer.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// The codec's name as it was given; the names are pyarrow's.
    pub codec: String,
    /// The codec with its level.
    pub compression: Compression,
    /// The most rows of a row group.
    pub row_group_rows: usize,
    /// The most rows of a file; None for any number.
    pub rows_per_file: Option<u64>,
    /// The most rows of a page.
    pub page_rows: usize,
    /// The most bytes of the dictionary of a column chunk, which everyone reads who reads one of its pages; None for the
    /// default of Parquet's writers, 1 MiB.
    pub dictionary_bytes: Option<usize>,
    /// Whether integers, dates and times that outgrow a dictionary are stored as packed differences, which take fewer
    /// bytes than compressed values and are decoded faster.
    pub packs_integers: bool,
    /// The limit for the memory of encoders and of bytes in flight together.
    pub memory_limit_bytes: usize,
}

impl WriteOptions {
    /// Checks the options of a user; None means the default. An error names the option.
    pub fn new(
        codec: &str,
        level: Option<i32>,
        row_group_rows: Option<i64>,
        rows_per_file: Option<i64>,
        memory_limit_bytes: Option<i64>,
    ) -> Result<Self> {
        let memory_limit_bytes = check_positive("memory_limit", memory_limit_bytes)?
            .map_or(DEFAULT_MEMORY_LIMIT_BYTES, |n| {
                usize::try_from(n).unwrap_or(usize::MAX)
            });
        if memory_limit_bytes < MIN_MEMORY_LIMIT_BYTES {
            return Err(Error::invalid(format!(
                "memory_limit must be at least {MIN_MEMORY_LIMIT_BYTES} bytes, not {memory_limit_bytes}"
            )));
        }
        Ok(Self {
            codec: codec.to_owned(),
            compression: parse_compression(codec, level)?,
            row_group_rows: check_positive("row_group_size", row_group_rows)?
                .map_or(DEFAULT_ROW_GROUP_ROWS, |n| {
                    usize::try_from(n).unwrap_or(usize::MAX)
                }),
            rows_per_file: check_positive("max_rows_per_file", rows_per_file)?,
            page_rows: DEFAULT_PAGE_ROWS,
            dictionary_bytes: None,
            packs_integers: false,
            memory_limit_bytes,
        })
    }

    /// The properties for the writers of the parquet crate, of files of a schema.
    pub(super) fn writer_properties(
        &self,
        schema: &SchemaDescriptor,
        metadata: Vec<KeyValue>,
    ) -> WriterPropertiesPtr {
        let created_by = concat!(
            "pds version ",
            env!("CARGO_PKG_VERSION"),
            " (build parquet-rs)"
        );
        let mut properties = WriterProperties::builder()
            .set_created_by(created_by.to_owned())
            .set_writer_version(WriterVersion::PARQUET_1_0)
            .set_compression(self.compression)
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_coerce_types(true)
            .set_data_page_row_count_limit(self.page_rows)
            .set_dictionary_page_size_limit(
                self.dictionary_bytes
                    .unwrap_or(DEFAULT_DICTIONARY_PAGE_SIZE_LIMIT),
            )
            .set_max_row_group_row_count(None)
            .set_key_value_metadata(Some(metadata));
        let packs = |column: &&ColumnDescPtr| {
            self.packs_integers && matches!(column.physical_type(), Type::INT32 | Type::INT64)
        };
        for column in schema.columns().iter().filter(packs) {
            let path = column.path().clone();
            properties = properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
        Arc::new(properties.build())
    }
}

fn check_positive(name: &str, value: Option<i64>) -> Result<Option<u64>> {
    match value {
        None => Ok(None),
        Some(n) if n > 0 => Ok(Some(n.unsigned_abs())),
        Some(n) => Err(Error::invalid(format!("{name} must be positive, not {n}"))),
    }
}

fn parse_compression(codec: &str, level: Option<i32>) -> Result<Compression> {
    let out_of_range = |e: parquet::errors::ParquetError| {
        Error::invalid(format!(
            "compression_level {} is not valid for {codec}: {e}",
            level.unwrap_or_default()
        ))
    };
    let unsigned = |level: i32| u32::try_from(level).unwrap_or(u32::MAX);
    let compression = match codec.to_ascii_lowercase().as_str() {
        "zstd" => Compression::ZSTD(
            level
                .map_or(Ok(ZstdLevel::default()), ZstdLevel::try_new)
                .map_err(out_of_range)?,
        ),
        "gzip" => Compression::GZIP(
            level
                .map_or(Ok(GzipLevel::default()), |l| {
                    GzipLevel::try_new(unsigned(l))
                })
                .map_err(out_of_range)?,
        ),
        "brotli" => Compression::BROTLI(
            level
                .map_or(Ok(BrotliLevel::default()), |l| {
                    BrotliLevel::try_new(unsigned(l))
                })
                .map_err(out_of_range)?,
        ),
        "snappy" => Compression::SNAPPY,
        "lz4" | "lz4_raw" => Compression::LZ4_RAW,
        "none" | "uncompressed" => Compression::UNCOMPRESSED,
        _ => {
            return Err(Error::invalid(format!(
                "unknown compression {codec:?}; there are zstd, snappy, gzip, brotli, lz4 and none"
            )));
        }
    };
    let takes_level = matches!(
        compression,
        Compression::ZSTD(_) | Compression::GZIP(_) | Compression::BROTLI(_)
    );
    if level.is_some() && !takes_level {
        return Err(Error::invalid(format!(
            "compression {codec:?} has no levels; leave out compression_level"
        )));
    }
    Ok(compression)
}
