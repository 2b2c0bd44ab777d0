//! Names of hidden files, which hold what is not visible to readers yet.
//!
//! A name begins with [`TEMP_PREFIX`] and the tag of its owner: a process ([`ProcessId::tag`]) or a write. By that tag
//! [`is_abandoned`] knows the files that nobody will finish.

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;

use super::process_id::ProcessId;
use super::{Store, path};

/// Prefix of the names of hidden files.
pub const TEMP_PREFIX: &str = ".pds-";

/// The name of a hidden file whose owner is `tag`.
pub(super) fn temp_name(tag: &str, id: u128) -> String {
    format!("{TEMP_PREFIX}{tag}-{id:032x}.tmp")
}

/// A path in `folder` for a hidden object that has no final name yet.
pub fn temp_path_in(store: &Store, folder: &str, tag: &str) -> String {
    path::join(folder, &temp_name(tag, store.clock().new_id()))
}

/// A new path in `folder` for the object that a probe of the store writes and removes.
pub fn probe_path(store: &Store, folder: &str) -> String {
    // The name is hidden, and its tag shows that the object is abandoned once this process has ended.
    let (tag, id) = (ProcessId::current().tag(), store.clock().new_id());
    path::join(folder, &format!("{TEMP_PREFIX}{tag}-_probe-{id:032x}.tmp"))
}

/// Whether a file name is that of a hidden file whose process has certainly ended.
pub fn is_abandoned(name: &str) -> bool {
    name.strip_prefix(TEMP_PREFIX)
        .is_some_and(ProcessId::is_stale_tag)
}

/// Whether a path is that of a hidden file.
pub fn is_hidden(path: &str) -> bool {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    name.starts_with(TEMP_PREFIX)
}

/// Whether `object` is a hidden file that nobody will finish: its process has ended, or it is as old as `cutoff` and
/// its process is not known to be alive.
pub fn is_stale(object: &ObjectMeta, cutoff: DateTime<Utc>) -> bool {
    let name = object.location.filename().unwrap_or_default();
    name.strip_prefix(TEMP_PREFIX).is_some_and(|tag| {
        let is_old = object.last_modified <= cutoff;
        ProcessId::is_stale_tag(tag) || is_old && !ProcessId::is_live_tag(tag)
    })
}
