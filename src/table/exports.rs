//! The formats to which each commit of a table is exported.
//!
//! The manifest names them, so that every writer exports after its commits. An export is no part of the commit: one that
//! fails, or a writer that ends before it, leaves the export at an older version, and the next one writes all versions since.

use std::collections::BTreeSet;

use serde_json::json;

use super::actions::NewTable;
use super::export::ExportFormat;
use super::format::{CommitOperation, TableManifest};
use super::{delta_log, iceberg};
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::versions::Change;

impl NewTable {
    /// The table with exports after each commit. Refuses formats that are not known, and columns that one of them lacks.
    pub fn with_exports(mut self, formats: &[String]) -> Result<Self> {
        self.exports = parse_formats(formats)?;
        let draft = self.draft();
        let columns = TableColumns::from_manifest(&draft)?;
        for format in ExportFormat::ALL {
            if self.exports.contains(format.name()) {
                match format {
                    ExportFormat::Delta => delta_log::check_columns(&draft, &columns)?,
                    ExportFormat::Iceberg => iceberg::check_columns(&draft, &columns)?,
                }
            }
        }
        Ok(self)
    }
}

fn known_formats() -> [&'static str; 2] {
    ExportFormat::ALL.map(ExportFormat::name)
}

fn parse_formats(formats: &[String]) -> Result<BTreeSet<String>> {
    let known = known_formats();
    if let Some(unknown) = formats.iter().find(|f| !known.contains(&f.as_str())) {
        return Err(Error::invalid(format!(
            "exports must be some of {known:?}, not {unknown:?}"
        )));
    }
    Ok(formats.iter().cloned().collect())
}

/// The change that sets the formats. Those that only a newer writer knows stay.
#[derive(Debug, Clone)]
pub struct SetExports {
    formats: BTreeSet<String>,
}

impl SetExports {
    /// Refuses formats that are not known.
    pub fn new(formats: &[String]) -> Result<Self> {
        let formats = parse_formats(formats)?;
        Ok(Self { formats })
    }
}

impl Change<TableManifest> for SetExports {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        let mut next = base.clone();
        let known = known_formats();
        next.exports
            .retain(|format| !known.contains(&format.as_str()));
        next.exports.extend(self.formats.iter().cloned());
        let details = [("exports", json!(self.formats))];
        Ok((next, CommitOperation::new("set_exports", details)))
    }

    fn base_version(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest_with(exports: &[&str]) -> TableManifest {
        let json = json!({
            "format": 2, "version": 9, "previous": 8, "commit_id": "0".repeat(32),
            "created_at": "2026-11-28T00:00:00.000000Z", "operation": {"name": "append"},
            "schema": {"columns": [], "last_id": 0}, "arrow_schema": "", "data_files": [],
            "tombstones": [], "oldest_version": 1, "gc_floor": 0, "exports": exports,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn formats_of_newer_writers_stay() {
        let base = manifest_with(&["delta", "other"]);
        let change = SetExports::new(&["iceberg".to_owned()]).unwrap();
        let (next, _) = change.apply(&base).unwrap();
        assert_eq!(next, manifest_with_rest(&base, &["iceberg", "other"]));
    }

    fn manifest_with_rest(base: &TableManifest, exports: &[&str]) -> TableManifest {
        let exports = exports.iter().map(|format| (*format).to_owned()).collect();
        TableManifest {
            exports,
            ..base.clone()
        }
    }

    #[test]
    fn unknown_formats_are_refused() {
        let error = SetExports::new(&["hudi".to_owned()]).unwrap_err();
        assert!(error.message().contains("hudi"));
    }
}
