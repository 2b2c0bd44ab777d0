//! The paths of a pipeline's objects, relative to its folder; those of the pointer and of manifests are in
//! [`crate::versions::names`].

use crate::versions::names::{parse_base_version, transactions_base_version, with_base_version};

const RUNS: &str = "run";

/// The lease of an update, while updates come in each other's way ([`super::update_lease`]).
pub(super) const UPDATE_LEASE: &str = "_update_lease";

/// The folders of the files of runs.
pub(super) const FOLDERS: [&str; 1] = [RUNS];

/// The path of a new file of a run, by a writer that began at version `base`.
pub(super) fn run_file(base: u64, id: u128) -> String {
    format!("{RUNS}/{}.parquet", with_base_version(base, id))
}

/// The version at which the writer of an object began; `None` for paths that no version of pds gives.
pub(super) fn base_version(path: &str) -> Option<u64> {
    if let Some(version) = transactions_base_version(path) {
        return Some(version);
    }
    let name = path.strip_prefix(RUNS)?.strip_prefix('/')?;
    parse_base_version(name.strip_suffix(".parquet")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_recognised() {
        for base in [0, 7, 99_999_999, 123_456_789_012] {
            assert_eq!(base_version(&run_file(base, 4)), Some(base));
        }
        assert_eq!(base_version("run/b00000001-x.parquet"), None);
        assert_eq!(base_version("run/2026/a.parquet"), None);
        assert_eq!(base_version("manifest/v00000001.json"), None);
    }
}
