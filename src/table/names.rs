//! The paths of a table's objects, relative to the table's folder.
//!
//! The names of data files, tombstones and lists contain the base version of their writer (`b…`): an
//! object that no version references and whose base version is below the floor of a vacuum can be
//! removed without comparing clocks.

use chrono::{DateTime, Utc};

use crate::store::path;

/// The pointer: the object that names the newest manifest.
pub(super) const POINTER: &str = "_latest_manifest";
pub(super) const MANIFESTS: &str = "manifest";
const SEGMENTS: &str = "manifest/segments/";
const TRANSACTIONS: &str = "manifest/transactions/";
const DATA: &str = "data";
const TOMBSTONES: &str = "tombstone";
/// Versions are padded to this number of digits, so that names sort like numbers.
const DIGITS: usize = 8;

/// The folders of data files and tombstones.
pub(super) const FOLDERS: [&str; 2] = [DATA, TOMBSTONES];

/// The path of a version's manifest.
pub(super) fn manifest(version: u64) -> String {
    format!("{MANIFESTS}/v{version:0DIGITS$}.json")
}

/// The version whose manifest has this path; `None` for other paths.
pub(super) fn manifest_version(path: &str) -> Option<u64> {
    let digits = path
        .strip_prefix(MANIFESTS)?
        .strip_prefix("/v")?
        .strip_suffix(".json")?;
    parse_version(digits)
}

/// The path of a new data file of a writer that began at version `base`.
pub fn data_file(created_at: DateTime<Utc>, base: u64, id: u128) -> String {
    object(DATA, created_at, base, id, "parquet")
}

/// The path of a new tombstone file of a writer that began at version `base`.
pub fn tombstones(created_at: DateTime<Utc>, base: u64, id: u128) -> String {
    object(TOMBSTONES, created_at, base, id, "del")
}

/// The path of a new segment of a writer that began at version `base`.
pub(super) fn segment(base: u64, id: u128) -> String {
    format!("{SEGMENTS}b{base:0DIGITS$}-{id:032x}.parquet")
}

/// The path of a new list of older transactions of a writer that began at version `base`.
pub(super) fn transactions(base: u64, id: u128) -> String {
    format!("{TRANSACTIONS}b{base:0DIGITS$}-{id:032x}.bin")
}

fn object(folder: &str, created_at: DateTime<Utc>, base: u64, id: u128, extension: &str) -> String {
    let hour = created_at.format("%Y/%m/%d/%H");
    format!("{folder}/{hour}/b{base:0DIGITS$}-{id:032x}.{extension}")
}

/// The version at which the writer of an object began; `None` for paths that no version of pds gives.
pub(super) fn base_version(path: &str) -> Option<u64> {
    if let Some(name) = path.strip_prefix(SEGMENTS) {
        return parse_base_version(name.strip_suffix(".parquet")?);
    }
    if let Some(name) = path.strip_prefix(TRANSACTIONS) {
        return parse_base_version(name.strip_suffix(".bin")?);
    }
    let mut parts = path.split('/');
    let folder = parts.next()?;
    let extension = match folder {
        DATA => ".parquet",
        TOMBSTONES => ".del",
        _ => return None,
    };
    for digits in [4, 2, 2, 2] {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
    }
    let name = parts.next()?.strip_suffix(extension)?;
    if parts.next().is_some() {
        return None;
    }
    parse_base_version(name)
}

/// The version in a name without its extension.
fn parse_base_version(name: &str) -> Option<u64> {
    let (base, id) = name.strip_prefix('b')?.split_once('-')?;
    let is_id = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| parse_version(base))?
}

fn parse_version(digits: &str) -> Option<u64> {
    let plain = digits.len() >= DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    // Only the form that pds writes: `v000000012` is another name than `v00000012`.
    let number: u64 = plain.then(|| digits.parse().ok())??;
    (format!("{number:0DIGITS$}") == digits).then_some(number)
}

/// Whether a path in a manifest stays within the table's folder and is not the pointer.
pub(super) fn is_inside(reference: &str) -> bool {
    path::parse(reference).is_ok() && reference != POINTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_recognised() {
        let at = DateTime::from_timestamp(1_795_000_000, 0).unwrap();
        for base in [0, 7, 99_999_999, 123_456_789_012] {
            assert_eq!(base_version(&data_file(at, base, 5)), Some(base));
            assert_eq!(base_version(&tombstones(at, base, u128::MAX)), Some(base));
            assert_eq!(base_version(&segment(base, 3)), Some(base));
            assert_eq!(base_version(&transactions(base, 4)), Some(base));
            assert_eq!(manifest_version(&segment(base, 3)), None);
            assert_eq!(manifest_version(&transactions(base, 4)), None);
            assert_eq!(manifest_version(&manifest(base)), Some(base));
        }
    }

    #[test]
    fn foreign_names_are_left_alone() {
        let id = "0123456789abcdef0123456789abcdef";
        for path in [
            format!("data/2026/11/21/08/b00000001-{id}.del"),
            format!("data/2026/11/21/08/b1-{id}.parquet"),
            format!("data/2026/11/21/08/b000000001-{id}.parquet"),
            format!("data/2026/11/21/8/b00000001-{id}.parquet"),
            format!("data/2026/11/21/08/more/b00000001-{id}.parquet"),
            format!("other/2026/11/21/08/b00000001-{id}.parquet"),
            "data/2026/11/21/08/b00000001-x.parquet".to_owned(),
            "data/mine.parquet".to_owned(),
        ] {
            assert_eq!(base_version(&path), None, "{path}");
        }
        assert_eq!(manifest_version("manifest/v000000012.json"), None);
        assert_eq!(manifest_version("manifest/v00000012.json.bak"), None);
    }
}
