//! Which columns of a file can be read: not those that are encrypted, or whose encoding or codec is not known.

use super::file::{ParquetFile, corruption, encrypted_error};
use crate::error::Result;

impl ParquetFile {
    /// Whether the pages of a leaf column can be read, as far as the footer says.
    pub(super) fn is_readable(&self, leaf: usize) -> bool {
        !self.unreadable.encrypted.contains(&leaf) && !self.unreadable.unknown.contains_key(&leaf)
    }

    /// Refuses a leaf column that is encrypted.
    pub(crate) fn check_not_encrypted(&self, leaf: usize) -> Result<()> {
        if !self.unreadable.encrypted.contains(&leaf) {
            return Ok(());
        }
        let path = self.leaf_path(leaf);
        Err(encrypted_error(&format!("column {path:?} is")))
    }

    /// Refuses a leaf column that is encrypted, or has an encoding or a codec that is not known.
    pub(super) fn check_readable(&self, leaf: usize) -> Result<()> {
        self.check_not_encrypted(leaf)?;
        let Some(format) = self.unreadable.unknown.get(&leaf) else {
            return Ok(());
        };
        let path = self.leaf_path(leaf);
        let message = format!("column {path:?} has the {format}, which pds cannot read");
        Err(corruption(message).with_hint(
            "read the other columns, or write the file again with another encoding and codec",
        ))
    }

    fn leaf_path(&self, leaf: usize) -> String {
        let descriptor = self.metadata().file_metadata().schema_descr();
        descriptor.column(leaf).path().string()
    }
}
