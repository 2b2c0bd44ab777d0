//! The format of tombstone files: JSON lines that say which rows of which data files are deleted.
//!
//! A line ([`TombstoneLine`]) deletes rows of one file: a whole row group, rows of a row group (few as a
//! list, many as a Roaring bitmap in its portable format), or the rows whose key lies in a closed range. Lines
//! add up ([`Deletions`]), so two deletes never undo one another. A file of 4 KiB or more is compressed with zstd
//! if that makes it smaller.
//!
//! A line that cannot be parsed, has fields that do not fit together or references a path outside the
//! table, and a file that decompresses to more than a limit, are
//! [`crate::ErrorKind::ManifestCorrupted`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use bytes::Bytes;
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::{Base64, corrupted_error};
use super::names;
use crate::error::{Error, Result};
pub use crate::files::Deletions;

/// The maximum number of rows that a line lists by number; more are a bitmap.
const MAX_LISTED_ROWS: u64 = 16;
/// A shorter file is not compressed, so that people can read it.
const COMPRESSION_THRESHOLD_BYTES: usize = 4 << 10;
const ZSTD_LEVEL: i32 = 3;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The maximum size of a tombstone file, compressed or decompressed.
pub(super) const MAX_TOMBSTONE_BYTES: u64 = 1 << 30;

/// Deleted rows of one data file.
#[derive(Debug, Clone, PartialEq)]
pub struct TombstoneLine {
    /// The path of the data file, relative to the table.
    pub file: String,
    /// The deleted rows.
    pub deleted: TombstoneScope,
}

/// Which rows of a data file are deleted.
#[derive(Debug, Clone, PartialEq)]
pub enum TombstoneScope {
    /// All rows of a row group.
    RowGroup(u32),
    /// Some rows of a row group, numbered from 0 within it.
    Rows(u32, RoaringBitmap),
    /// The rows with a key from the first value to the second, both included.
    Keys(Value, Value),
}

#[derive(Serialize, Deserialize)]
struct JsonLine {
    file: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row_group: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pk_min: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pk_max: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deleted_rows: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    roaring: Option<Base64>,
}

impl JsonLine {
    fn from_line(line: &TombstoneLine) -> Self {
        let mut json_line = Self {
            file: line.file.clone(),
            row_group: None,
            pk_min: None,
            pk_max: None,
            deleted_rows: None,
            roaring: None,
        };
        match &line.deleted {
            TombstoneScope::RowGroup(group) => json_line.row_group = Some(*group),
            TombstoneScope::Rows(group, rows) => {
                json_line.row_group = Some(*group);
                if rows.len() <= MAX_LISTED_ROWS {
                    json_line.deleted_rows = Some(rows.iter().collect());
                } else {
                    json_line.roaring = Some(Base64(to_portable(rows)));
                }
            }
            TombstoneScope::Keys(min, max) => {
                (json_line.pk_min, json_line.pk_max) = (Some(min.clone()), Some(max.clone()));
            }
        }
        json_line
    }

    /// Returns None if the fields do not fit together.
    fn into_line(self) -> Option<TombstoneLine> {
        let deleted = match (self.row_group, self.deleted_rows, self.roaring) {
            (Some(group), None, None) => TombstoneScope::RowGroup(group),
            (Some(group), Some(rows), None) => {
                TombstoneScope::Rows(group, rows.into_iter().collect())
            }
            (Some(group), None, Some(Base64(bytes))) => {
                TombstoneScope::Rows(group, RoaringBitmap::deserialize_from(&bytes[..]).ok()?)
            }
            (None, None, None) => TombstoneScope::Keys(self.pk_min.clone()?, self.pk_max.clone()?),
            _ => return None,
        };
        let by_key = matches!(deleted, TombstoneScope::Keys(..));
        if !by_key && (self.pk_min.is_some() || self.pk_max.is_some()) {
            return None;
        }
        names::is_inside(&self.file).then_some(TombstoneLine {
            file: self.file,
            deleted,
        })
    }
}

fn to_portable(rows: &RoaringBitmap) -> Bytes {
    let mut runs = rows.clone();
    runs.optimize();
    let mut bytes = Vec::with_capacity(runs.serialized_size());
    // Serializing plain data into memory cannot fail.
    let _ = runs.serialize_into(&mut bytes);
    bytes.into()
}

/// Encodes a tombstone file. Refuses one that readers would refuse.
pub fn encode(lines: &[TombstoneLine]) -> Result<Bytes> {
    encode_within(lines, MAX_TOMBSTONE_BYTES)
}

fn encode_within(lines: &[TombstoneLine], max_bytes: u64) -> Result<Bytes> {
    let mut bytes = Vec::new();
    for line in lines {
        // Serializing plain data into memory cannot fail.
        let _ = serde_json::to_writer(&mut bytes, &JsonLine::from_line(line));
        bytes.push(b'\n');
        if bytes.len() as u64 > max_bytes {
            return Err(Error::invalid(format!(
                "the rows that this commit deletes take more than {max_bytes} bytes to list; nothing was committed: \
                 delete or replace fewer at a time, such as a range of the key"
            )));
        }
    }
    if bytes.len() < COMPRESSION_THRESHOLD_BYTES {
        return Ok(bytes.into());
    }
    // Base64 makes bitmaps a third longer than their binary form.
    Ok(match zstd::bulk::compress(&bytes, ZSTD_LEVEL) {
        Ok(compressed) if compressed.len() < bytes.len() => compressed.into(),
        _ => bytes.into(),
    })
}

/// Decompresses a file if it is compressed.
fn decompress<'b>(bytes: &'b [u8], name: &str) -> Result<Cow<'b, [u8]>> {
    if !bytes.starts_with(&ZSTD_MAGIC) {
        return Ok(Cow::Borrowed(bytes));
    }
    let decompress_error =
        |e: std::io::Error| corrupted_error(name, "it cannot be decompressed").with_source(e);
    let mut decompressed = Vec::new();
    let decoder = zstd::Decoder::new(bytes).map_err(decompress_error)?;
    let read_result = decoder
        .take(MAX_TOMBSTONE_BYTES + 1)
        .read_to_end(&mut decompressed);
    if read_result.map_err(decompress_error)? as u64 > MAX_TOMBSTONE_BYTES {
        let reason =
            format!("it decompresses to more than the maximum of {MAX_TOMBSTONE_BYTES} bytes");
        return Err(corrupted_error(name, &reason));
    }
    Ok(Cow::Owned(decompressed))
}

/// Parses the tombstone file `name`.
pub fn parse(bytes: &[u8], name: &str) -> Result<Vec<TombstoneLine>> {
    let text = decompress(bytes, name)?;
    let lines = text.split(|b| *b == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            let reason = || format!("line {} is invalid", index + 1);
            let json_line: JsonLine = serde_json::from_slice(line)
                .map_err(|e| corrupted_error(name, &reason()).with_source(e))?;
            json_line
                .into_line()
                .ok_or_else(|| corrupted_error(name, &reason()))
        })
        .collect()
}

impl Deletions {
    /// Adds the rows of one line.
    pub fn add(&mut self, deleted: &TombstoneScope) {
        match deleted {
            TombstoneScope::RowGroup(group) => {
                self.groups.insert(*group);
                self.rows.remove(group);
            }
            TombstoneScope::Rows(group, rows) if !self.groups.contains(group) => {
                *self.rows.entry(*group).or_default() |= rows;
            }
            TombstoneScope::Rows(..) => {}
            TombstoneScope::Keys(min, max) => {
                self.keys.push((min.clone(), max.clone()));
            }
        }
    }

    /// Whether these are all deletions of `other`, and perhaps more rows by number. Ranges of keys must be the
    /// same, because the rows that they delete are not known here.
    pub(super) fn includes(&self, other: &Self) -> bool {
        let includes_rows = |(group, rows): (&u32, &RoaringBitmap)| {
            let deleted = self.rows.get(group);
            self.groups.contains(group) || deleted.is_some_and(|deleted| rows.is_subset(deleted))
        };
        self.groups.is_superset(&other.groups)
            && other.rows.iter().all(includes_rows)
            && merge_ranges(&self.keys) == merge_ranges(&other.keys)
    }

    /// Returns as few lines as possible that delete these rows of `file`.
    pub fn to_lines(&self, file: &str) -> Vec<TombstoneLine> {
        let groups = self
            .groups
            .iter()
            .map(|group| TombstoneScope::RowGroup(*group));
        let rows = self
            .rows
            .iter()
            .map(|(group, rows)| TombstoneScope::Rows(*group, rows.clone()));
        let keys = merge_ranges(&self.keys)
            .into_iter()
            .map(|(min, max)| TombstoneScope::Keys(min, max));
        let line = |deleted| TombstoneLine {
            file: file.to_owned(),
            deleted,
        };
        groups.chain(rows).chain(keys).map(line).collect()
    }

    /// Adds up lines by the path of their data file.
    pub fn by_file<'a>(
        lines: impl IntoIterator<Item = &'a TombstoneLine>,
    ) -> BTreeMap<String, Self> {
        let mut by_path: BTreeMap<String, Self> = BTreeMap::new();
        for line in lines {
            by_path
                .entry(line.file.clone())
                .or_default()
                .add(&line.deleted);
        }
        by_path
    }
}

/// Returns every range once; ranges of integers that overlap or touch are merged, empty ones left out.
fn merge_ranges(ranges: &[(Value, Value)]) -> Vec<(Value, Value)> {
    let mut integers: Vec<(i64, i64)> = Vec::new();
    let mut other_ranges: BTreeMap<String, (Value, Value)> = BTreeMap::new();
    for (min, max) in ranges {
        if let (Some(min), Some(max)) = (min.as_i64(), max.as_i64()) {
            integers.push((min, max));
        } else {
            let range = (min.clone(), max.clone());
            other_ranges.insert(format!("{min} {max}"), range);
        }
    }
    integers.retain(|(min, max)| min <= max);
    integers.sort_unstable();
    let mut merged: Vec<(i64, i64)> = Vec::new();
    for (min, max) in integers {
        match merged.last_mut() {
            Some((_, last)) if min <= last.saturating_add(1) => *last = max.max(*last),
            _ => merged.push((min, max)),
        }
    }
    merged
        .into_iter()
        .map(|(min, max)| (Value::from(min), Value::from(max)))
        .chain(other_ranges.into_values())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use serde_json::json;

    use super::*;

    fn line(deleted: TombstoneScope) -> TombstoneLine {
        TombstoneLine {
            file: "data/a.parquet".to_owned(),
            deleted,
        }
    }

    #[test]
    fn long_files_are_packed_and_damage_to_them_is_noticed() {
        let mut random = StdRng::seed_from_u64(2);
        let rows: RoaringBitmap = (0..60_000)
            .map(|_| random.random_range(0..6_000_000))
            .collect();
        let lines = [line(TombstoneScope::Rows(0, rows.clone()))];
        let packed = encode(&lines).unwrap();
        assert!(packed.starts_with(&ZSTD_MAGIC));
        // Little more than the bitmap itself.
        assert!(packed.len() < rows.serialized_size() * 21 / 20);
        assert_eq!(parse(&packed, "t").unwrap(), lines);
        for length in [4, 100, packed.len() / 2, packed.len() - 1] {
            assert!(parse(&packed[..length], "t").is_err(), "{length} bytes");
        }
        let few = encode(&[line(TombstoneScope::RowGroup(1))]).unwrap();
        assert!(few.starts_with(b"{"));
    }

    #[test]
    fn reads_what_it_wrote() {
        let mut random = StdRng::seed_from_u64(1);
        let some: RoaringBitmap = (0..5000)
            .map(|_| random.random_range(0..1_000_000))
            .collect();
        let lines = [
            line(TombstoneScope::RowGroup(3)),
            line(TombstoneScope::Rows(0, (5..9).collect())),
            line(TombstoneScope::Rows(1, some)),
            line(TombstoneScope::Keys(json!(-5), json!("z"))),
        ];
        assert_eq!(parse(&encode(&lines).unwrap(), "t").unwrap(), lines);
        let text = String::from_utf8(encode(&lines[..2]).unwrap().to_vec()).unwrap();
        let expected = "{\"file\":\"data/a.parquet\",\"row_group\":3}\n\
                        {\"file\":\"data/a.parquet\",\"row_group\":0,\"deleted_rows\":[5,6,7,8]}\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_file_that_readers_would_refuse_is_not_encoded() {
        let lines = [
            line(TombstoneScope::RowGroup(1)),
            line(TombstoneScope::RowGroup(2)),
        ];
        let bytes = encode(&lines).unwrap();
        let limit = bytes.len() as u64;
        assert_eq!(encode_within(&lines, limit).unwrap(), bytes);
        let error = encode_within(&lines, limit - 1).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_million_rows_in_a_run_are_few_bytes() {
        let mut run = RoaringBitmap::new();
        run.insert_range(17..1_000_017);
        let bytes = encode(&[line(TombstoneScope::Rows(0, run))]).unwrap();
        assert!(bytes.len() <= 4096, "{} bytes", bytes.len());
    }

    #[test]
    fn deletions_add_up() {
        let lines = [
            line(TombstoneScope::Rows(0, (0..3).collect())),
            line(TombstoneScope::Rows(0, (2..5).collect())),
            line(TombstoneScope::Rows(1, (0..2).collect())),
            line(TombstoneScope::RowGroup(1)),
            line(TombstoneScope::Rows(1, (7..9).collect())),
            line(TombstoneScope::Keys(json!(1), json!(2))),
            line(TombstoneScope::Keys(json!(9), json!(8))),
            line(TombstoneScope::Keys(json!("a"), json!("b"))),
            line(TombstoneScope::Keys(json!(3), json!(5))),
            line(TombstoneScope::Keys(json!("a"), json!("b"))),
            line(TombstoneScope::Keys(json!(7), json!(7))),
        ];
        let all = &Deletions::by_file(&lines)["data/a.parquet"];
        assert_eq!(all.groups, BTreeSet::from([1]));
        assert_eq!(all.rows, BTreeMap::from([(0, (0..5).collect())]));
        let fewer = [
            line(TombstoneScope::RowGroup(1)),
            line(TombstoneScope::Rows(0, (0..5).collect())),
            line(TombstoneScope::Keys(json!(1), json!(5))),
            line(TombstoneScope::Keys(json!(7), json!(7))),
            line(TombstoneScope::Keys(json!("a"), json!("b"))),
        ];
        assert_eq!(all.to_lines("data/a.parquet"), fewer);
    }

    #[test]
    fn deletions_include_fewer_of_them() {
        let deletions = |scopes: &[TombstoneScope]| {
            let mut deletions = Deletions::default();
            for scope in scopes {
                deletions.add(scope);
            }
            deletions
        };
        let rows = |rows: &[u32]| TombstoneScope::Rows(0, rows.iter().collect());
        let keys = |min: i64, max: i64| TombstoneScope::Keys(json!(min), json!(max));
        let none = deletions(&[]);
        for (more, fewer, expected) in [
            (vec![rows(&[1, 2])], vec![rows(&[1])], true),
            (vec![rows(&[1])], vec![rows(&[1, 2])], false),
            (vec![TombstoneScope::RowGroup(0)], vec![rows(&[1, 2])], true),
            (
                vec![rows(&[1, 2])],
                vec![TombstoneScope::RowGroup(0)],
                false,
            ),
            (
                vec![TombstoneScope::RowGroup(0)],
                vec![TombstoneScope::RowGroup(1)],
                false,
            ),
            // The same range, in other pieces; and one more, whose rows are not known.
            (vec![keys(1, 9)], vec![keys(5, 9), keys(1, 4)], true),
            (vec![keys(1, 9), rows(&[1])], vec![keys(1, 9)], true),
            (vec![keys(1, 9)], vec![], false),
            (vec![keys(1, 9)], vec![keys(1, 8)], false),
        ] {
            let (more, fewer) = (deletions(&more), deletions(&fewer));
            assert_eq!(more.includes(&fewer), expected, "{more:?} {fewer:?}");
            assert!(more.includes(&more) && more.keys.is_empty() == more.includes(&none));
        }
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        for text in [
            "{}",
            r#"{"file":"a"}"#,
            r#"{"file":"a","pk_min":1}"#,
            r#"{"file":"a","row_group":1,"pk_min":1,"pk_max":2}"#,
            r#"{"file":"a","row_group":1,"deleted_rows":[1],"roaring":""}"#,
            r#"{"file":"a","deleted_rows":[1]}"#,
            r#"{"file":"a","row_group":1,"roaring":"AAAA"}"#,
            r#"{"file":"a","row_group":-1}"#,
            r#"{"file":"../a","row_group":1}"#,
            "[",
            "\u{0}",
        ] {
            assert!(parse(text.as_bytes(), "t").is_err(), "{text}");
        }
    }
}
