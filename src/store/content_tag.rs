//! Tags of contents: what stands for a version where a store has none.

use twox_hash::XxHash3_64;

/// A version made of a hash and the length of the content, for file systems, which have no versions.
pub fn content_tag(bytes: &[u8]) -> String {
    format!(
        "content-{:016x}-{}",
        XxHash3_64::oneshot(bytes),
        bytes.len()
    )
}
