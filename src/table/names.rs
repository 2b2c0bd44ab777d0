//! The paths of a table's objects, relative to the table's folder; those of the pointer and of manifests are in
//! [`crate::versions::names`].

use chrono::{DateTime, Utc};

pub(super) use crate::versions::names::{MANIFESTS, POINTER, is_inside, manifest};
use crate::versions::names::{parse_base_version, transactions_base_version, with_base_version};

const SEGMENTS: &str = "manifest/segments/";
pub(super) const DATA: &str = "data";
const TOMBSTONES: &str = "tombstone";

/// The folders of data files and tombstones.
pub(super) const FOLDERS: [&str; 2] = [DATA, TOMBSTONES];

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
    format!("{SEGMENTS}{}.parquet", with_base_version(base, id))
}

fn object(folder: &str, created_at: DateTime<Utc>, base: u64, id: u128, extension: &str) -> String {
    let hour = created_at.format("%Y/%m/%d/%H");
    let name = with_base_version(base, id);
    format!("{folder}/{hour}/{name}.{extension}")
}

/// The version at which the writer of an object began; `None` for paths that no version of pds gives.
pub(super) fn base_version(path: &str) -> Option<u64> {
    if let Some(name) = path.strip_prefix(SEGMENTS) {
        return parse_base_version(name.strip_suffix(".parquet")?);
    }
    if let Some(version) = transactions_base_version(path) {
        return Some(version);
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

/// The lowest of a version and those at which the writers of some objects began.
pub(super) fn lowest_base_version<'a>(
    version: u64,
    paths: impl IntoIterator<Item = &'a String>,
) -> u64 {
    let bases = paths.into_iter().filter_map(|path| base_version(path));
    bases.min().map_or(version, |base| base.min(version))
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
    }
}
