//! Whether readers of Delta read a data file rightly: they look its columns up by name, and know nothing of ids.

use super::schema::{DeltaColumn, DeltaSchema};
use super::types::{can_widen, new_type};
use crate::error::{Error, Result};
use crate::files::{field_indices_by_id, field_indices_by_name};
use crate::parquet::written_schema::parquet_fields;
use crate::table::export::ExportType;
use crate::table::snapshot_reader::SnapshotReader;

/// Reads a file's footer and refuses the file if a reader of Delta would read other values than this library.
pub(super) async fn check_file(
    reader: &SnapshotReader,
    file: usize,
    schema: &DeltaSchema,
    allows_narrower: bool,
) -> Result<()> {
    let listed = &reader.files[file].file;
    let refuse = |reason: String| {
        let message = format!(
            "the file {:?} cannot be exported to Delta: {reason}; rewrite it, for example by `optimize.sort`",
            listed.path
        );
        Err(Error::invalid(message))
    };
    let opened = reader.open_file(file).await?;
    let stored = &opened.file.schema;
    let fields = parquet_fields(opened.file.metadata(), &opened.file.schema)?;
    let field_indices = match &listed.columns {
        Some(names) => field_indices_by_name(stored, names),
        None => field_indices_by_id(stored),
    };
    for column in &schema.columns {
        let exported = &column.exported;
        let (name, stored_name) = (&exported.name, &exported.stored);
        let Some(index) = field_indices.get(&exported.id) else {
            if listed.constants.contains_key(&exported.id) {
                return refuse(format!("it does not hold the values of column {name:?}"));
            }
            let mut names = stored.fields().iter().map(|field| field.name());
            if names.any(|other| other.eq_ignore_ascii_case(stored_name)) {
                return refuse(format!(
                    "it has another column with the name {stored_name:?}"
                ));
            }
            continue;
        };
        let field = &fields[*index];
        if field.name() != stored_name {
            let other_name = field.name();
            return refuse(format!(
                "it has column {name:?} under the name {other_name:?}, not {stored_name:?}"
            ));
        }
        if opened.file.is_int96(*index) {
            return refuse(format!("it has timestamps of 96 bits in column {name:?}"));
        }
        match new_type(field) {
            Err(reason) => return refuse(format!("column {name:?}: {reason}")),
            Ok(data_type) if !fits(&data_type, column, allows_narrower) => {
                let (data_type, current) = (field.data_type(), &exported.arrow_type);
                return refuse(format!(
                    "it has column {name:?} as {data_type}, and the table has {current}"
                ));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Whether readers give values of this type as those of the column.
fn fits(stored: &ExportType, column: &DeltaColumn, allows_narrower: bool) -> bool {
    let text = stored.to_string();
    if text == column.exported.data_type.to_string() {
        return true;
    }
    let is_known = column.narrower.iter().any(|known| known.is(&text));
    is_known && allows_narrower && can_widen(stored, &column.exported.data_type)
}
