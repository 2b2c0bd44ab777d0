//! The entry of a data file in a list of files.

use std::collections::BTreeMap;
use std::fmt;

use arrow_schema::{DataType, TimeUnit};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::parquet::file::TAIL_BYTES;

/// Least number of bytes to read for a footer, whatever size the entry gives.
const MIN_FOOTER_BYTES: u64 = 64;
/// A footer above this is read in two requests.
const MAX_FOOTER_BYTES: u64 = 16 << 20;

/// A data file of a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFile {
    /// The path relative to the table.
    pub path: String,
    /// The size of the object in bytes.
    pub size_bytes: u64,
    /// The size of the Parquet footer in bytes, so that one request reads it; 0 if it is not known.
    pub footer_size: u64,
    /// The number of row groups.
    pub row_group_count: u64,
    /// The number of rows, deleted ones included.
    pub total_rows: u64,
    /// The smallest values by column id; columns without exact bounds are missing.
    #[serde(default)]
    pub min: BTreeMap<u32, Value>,
    /// The largest values by column id.
    #[serde(default)]
    pub max: BTreeMap<u32, Value>,
    /// The numbers of nulls by column id.
    #[serde(default)]
    pub null_counts: BTreeMap<u32, u64>,
    /// The file's column names by column id, for a file that does not hold the ids itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<BTreeMap<u32, String>>,
    /// The values of columns that the file does not hold, by column id: the same value in every row.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub constants: BTreeMap<u32, Value>,
    /// What tells the file from others of its size; earlier versions did not list it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<FileChecksum>,
}

/// The hash of a file's seal, or that of its footer if it has no seal; as text 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileChecksum(pub u64);

impl FileChecksum {
    const DIGITS: usize = 16;

    /// Parses [`Self::DIGITS`] lower-case digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_checksum = text.len() == Self::DIGITS && text.bytes().all(is_digit);
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_checksum);
        number.map(Self)
    }
}

impl fmt::Display for FileChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for FileChecksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileChecksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom("expected 16 hexadecimal digits"))
    }
}

impl DataFile {
    /// Whether an entry of the same path gives the same rows, whatever statistics it has.
    pub(crate) fn has_rows_of(&self, other: &Self) -> bool {
        let checksums = self.checksum.zip(other.checksum);
        checksums.is_none_or(|(own, other)| own == other)
            && (self.size_bytes, self.total_rows) == (other.size_bytes, other.total_rows)
            && self.columns == other.columns
            && self.constants == other.constants
    }

    /// Whether the listed bounds of a column of this type are those of its values. Earlier versions read what other
    /// writers store as a number of seconds as milliseconds, and listed such bounds.
    pub(crate) fn knows_bounds(&self, id: u32, data_type: &DataType) -> bool {
        let value_type = match data_type {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let has_seconds = matches!(
            value_type,
            DataType::Timestamp(TimeUnit::Second, _) | DataType::Time32(TimeUnit::Second)
        );
        // The value of a path was never read as anything else.
        let is_of_others = self.columns.is_some() && !self.constants.contains_key(&id);
        !(has_seconds && is_of_others)
    }

    /// How many bytes at the end of the file are read to open it: its footer, or all of a small file.
    pub(crate) fn tail_bytes(&self) -> u64 {
        match self.footer_size {
            _ if self.size_bytes <= TAIL_BYTES => self.size_bytes.max(MIN_FOOTER_BYTES),
            0 => TAIL_BYTES,
            footer_size => footer_size.clamp(MIN_FOOTER_BYTES, MAX_FOOTER_BYTES),
        }
    }
}
