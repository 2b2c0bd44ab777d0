//! The paths of the pointer, of manifests and of lists of older transactions, relative to the folder.
//!
//! The name of an object that a commit writes contains the base version of its writer (`b…`): an object that no
//! version references and whose base version is below the floor of a vacuum can be removed without comparing clocks.

use crate::store::path;

/// The pointer: the object that names the newest manifest.
pub(crate) const POINTER: &str = "_latest_manifest";
/// The head of an ODF chain. A folder has a chain, versions or a dataset.
pub(crate) const CHAIN_HEAD: &str = "refs/head";
/// The marker of a dataset, which has a folder of its own.
pub(crate) const DATASET_MARKER: &str = "_SUCCESS";
/// The folder of the manifests.
pub(crate) const MANIFESTS: &str = "manifest";
const TRANSACTIONS: &str = "manifest/transactions/";
/// Versions are padded to this number of digits, so that names sort like numbers.
const DIGITS: usize = 8;

/// The path of a version's manifest.
pub(crate) fn manifest(version: u64) -> String {
    format!("{MANIFESTS}/v{version:0DIGITS$}.json")
}

/// The version whose manifest has this path; `None` for other paths.
pub(crate) fn manifest_version(path: &str) -> Option<u64> {
    let digits = path
        .strip_prefix(MANIFESTS)?
        .strip_prefix("/v")?
        .strip_suffix(".json")?;
    parse_version(digits)
}

/// The path of a new list of older transactions of a writer that began at version `base`.
pub(super) fn transactions(base: u64, id: u128) -> String {
    format!("{TRANSACTIONS}{}.bin", with_base_version(base, id))
}

/// The version at which the writer of a list of older transactions began; `None` for other paths.
pub(crate) fn transactions_base_version(path: &str) -> Option<u64> {
    let name = path.strip_prefix(TRANSACTIONS)?;
    parse_base_version(name.strip_suffix(".bin")?)
}

/// The name, without an extension, of a new object of a writer that began at version `base`.
pub(crate) fn with_base_version(base: u64, id: u128) -> String {
    format!("b{base:0DIGITS$}-{id:032x}")
}

/// The version in a name without its extension.
pub(crate) fn parse_base_version(name: &str) -> Option<u64> {
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

/// Whether a path in a manifest stays within the folder and is not the pointer.
pub(crate) fn is_inside(reference: &str) -> bool {
    path::parse(reference).is_ok() && reference != POINTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_recognised() {
        for base in [0, 7, 99_999_999, 123_456_789_012] {
            let list = transactions(base, 4);
            assert_eq!(transactions_base_version(&list), Some(base));
            assert_eq!(manifest_version(&list), None);
            assert_eq!(manifest_version(&manifest(base)), Some(base));
        }
    }

    #[test]
    fn foreign_names_are_left_alone() {
        assert_eq!(manifest_version("manifest/v000000012.json"), None);
        assert_eq!(manifest_version("manifest/v00000012.json.bak"), None);
        let id = "0123456789abcdef0123456789abcdef";
        for name in [
            format!("b1-{id}"),
            format!("b000000001-{id}"),
            "b00000001-x".to_owned(),
        ] {
            assert_eq!(parse_base_version(&name), None, "{name}");
        }
    }
}
