//! The columns by which rows are matched: those that a caller names, or the table's key.

use arrow_schema::Schema;

use super::format::TableManifest;
use crate::error::{Error, Result};
use crate::files::TableColumns;

/// The positions of the named columns, in the order of the table. Fails if no column is named, or if a
/// name is unknown or given twice.
fn resolve_columns(schema: &Schema, on: &[String]) -> Result<Vec<usize>> {
    let mut positions = Vec::new();
    for name in on {
        let position = crate::parquet::types::index_of(schema, name)?;
        if positions.contains(&position) {
            return Err(Error::invalid(format!("duplicate key column {name:?}")));
        }
        positions.push(position);
    }
    if positions.is_empty() {
        return Err(Error::invalid("no merge key: on= names no column"));
    }
    positions.sort_unstable();
    Ok(positions)
}

/// The positions of the columns that rows are matched by: those in `on`, or else the table's key.
pub(super) fn resolve_match_columns(
    on: Option<&[String]>,
    base: &TableManifest,
    columns: &TableColumns,
) -> Result<Vec<usize>> {
    if let Some(on) = on {
        return resolve_columns(&columns.schema, on);
    }
    let fields = columns.schema.fields().iter().zip(columns.ids.iter());
    let key_fields = fields.filter(|(_, id)| base.key.contains(id));
    let key: Vec<String> = key_fields.map(|(field, _)| field.name().clone()).collect();
    if key.is_empty() {
        let message = "no merge key: the table has no key; name the columns with on=";
        return Err(Error::invalid(message));
    }
    resolve_columns(&columns.schema, &key)
}
