//! The columns of a version as a format has them.

use arrow_schema::{DataType, Field};

use super::leave_out::first_ambiguous;
use super::types::ExportType;
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::table::format::{ColumnSchema, TableManifest};

/// An exported column.
#[derive(Debug)]
pub(in crate::table) struct ExportColumn {
    pub(in crate::table) id: u32,
    pub(in crate::table) name: String,
    /// The name in data files.
    pub(in crate::table) stored: String,
    /// The type in the table.
    pub(in crate::table) arrow_type: DataType,
    /// The type in the format.
    pub(in crate::table) data_type: ExportType,
    /// The ids of nested fields, each before those within it.
    pub(in crate::table) nested_ids: Vec<u32>,
    pub(in crate::table) nullable: bool,
}

/// The columns that are not left out, each with its entry in the manifest. Refuses types that the format lacks, as
/// `new_type` does, and names that differ only in case.
pub(in crate::table) fn export_columns<'m>(
    format: &str,
    manifest: &'m TableManifest,
    columns: &TableColumns,
    left_out: &[u32],
    new_type: impl Fn(&Field) -> Result<ExportType, String>,
) -> Result<Vec<(ExportColumn, &'m ColumnSchema)>> {
    let fields = columns.fields_with_ids();
    let mut exported = Vec::new();
    for (field, entry) in fields.iter().zip(&manifest.schema.columns) {
        if left_out.contains(&entry.id) {
            continue;
        }
        let data_type = new_type(field.as_ref()).map_err(|reason| {
            let message = format!(
                "column {:?} of type {} cannot be exported to {format}: {reason}; name it in leave_out to leave it out",
                entry.name, entry.data_type,
            );
            Error::invalid(message)
        })?;
        let column = ExportColumn {
            id: entry.id,
            name: entry.name.clone(),
            stored: entry.stored_name().to_owned(),
            arrow_type: field.data_type().clone(),
            data_type,
            nested_ids: entry.nested_ids.clone(),
            nullable: field.is_nullable(),
        };
        exported.push((column, entry));
    }
    let names = exported.iter().map(|(column, _)| column.name.as_str());
    if let Some(name) = first_ambiguous(names) {
        return Err(Error::invalid(format!(
            "the names of two columns differ only in case from {name:?}, which readers of {format} do not tell apart; \
             rename one, or name it in leave_out"
        )));
    }
    Ok(exported)
}
