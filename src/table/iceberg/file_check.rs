//! Whether readers of Iceberg read a data file rightly: they look its columns up by field ids, and by name in a file
//! without any.

use arrow_schema::Field;
use parquet::basic::{ConvertedType, LogicalType};
use parquet::schema::types::Type;

use super::schema::IcebergSchema;
use super::types::{can_promote, new_type};
use crate::error::{Error, Result};
use crate::files::{DataFile, OpenPart, field_id, field_indices_by_id, field_indices_by_name};
use crate::parquet::written_schema::parquet_fields;
use crate::table::export::{ExportColumn, ExportType, needs_encoding};
use crate::table::snapshot_reader::SnapshotReader;

/// Reads a file's footer and refuses the file if a reader of Iceberg would read other values than this library.
pub(super) async fn check_file(
    reader: &SnapshotReader,
    file: usize,
    schema: &IcebergSchema,
) -> Result<()> {
    let listed = &reader.files[file].file;
    let checked = if needs_encoding(&listed.path) {
        Err("its name has characters that readers do not agree about".to_owned())
    } else {
        let opened = reader.open_file(file).await?;
        let fields = parquet_fields(opened.file.metadata(), &opened.file.schema)?;
        check_columns(&opened, &fields, listed, schema)
    };
    checked.map_err(|reason| {
        let message = format!(
            "the file {:?} cannot be exported to Iceberg: {reason}; rewrite it, for example by `optimize.sort`",
            listed.path
        );
        Error::invalid(message)
    })
}

fn check_columns(
    opened: &OpenPart,
    fields: &[Field],
    listed: &DataFile,
    schema: &IcebergSchema,
) -> Result<(), String> {
    let stored = &opened.file.schema;
    let metadata = opened.file.metadata().file_metadata();
    let stored_types = metadata.schema_descr().root_schema().get_fields();
    let has_ids = listed.columns.is_none();
    if !has_ids && stored_types.iter().any(|field| has_any_id(field)) {
        return Err("it has field ids of another table".to_owned());
    }
    let field_indices = match &listed.columns {
        Some(names) => field_indices_by_name(stored, names),
        None => field_indices_by_id(stored),
    };
    for column in &schema.columns {
        let (name, stored_name) = (&column.name, &column.stored);
        if let Some(index) = field_indices.get(&column.id) {
            if opened.file.is_int96(*index) {
                return Err(format!("it has timestamps of 96 bits in column {name:?}"));
            }
            let ids = stored_types.get(*index).map(|field| nested_ids(field));
            let has_own_ids = ids.is_some_and(|ids| are_of(&ids, column));
            check_column(&fields[*index], column, has_ids, has_own_ids)?;
            continue;
        }
        if listed.constants.contains_key(&column.id) {
            return Err(format!("it does not hold the values of column {name:?}"));
        }
        let mut names = stored.fields().iter().map(|field| field.name());
        if !has_ids && names.any(|other| other.eq_ignore_ascii_case(stored_name)) {
            return Err(format!(
                "it has another column with the name {stored_name:?}"
            ));
        }
    }
    Ok(())
}

/// Refuses a column of a file, which has field ids or none, that is not read as the column of the table.
fn check_column(
    field: &Field,
    column: &ExportColumn,
    has_ids: bool,
    has_own_ids: bool,
) -> Result<(), String> {
    let (name, stored_name) = (&column.name, &column.stored);
    if has_ids && !has_own_ids {
        return Err(format!(
            "it has column {name:?} without the ids of its fields"
        ));
    }
    if !has_ids && field.name() != stored_name {
        let other_name = field.name();
        return Err(format!(
            "it has column {name:?} under the name {other_name:?}, not {stored_name:?}"
        ));
    }
    let data_type = new_type(field).map_err(|e| format!("column {name:?}: {e}"))?;
    if fits(&data_type, column) {
        return Ok(());
    }
    let (data_type, current) = (field.data_type(), &column.arrow_type);
    Err(format!(
        "it has column {name:?} as {data_type}, and the table has {current}"
    ))
}

/// Whether readers give values of this type as those of the column.
fn fits(stored: &ExportType, column: &ExportColumn) -> bool {
    stored.to_string() == column.data_type.to_string() || can_promote(stored, &column.data_type)
}

fn are_of(ids: &[Option<i32>], column: &ExportColumn) -> bool {
    let ids = ids
        .iter()
        .map(|id| id.and_then(|id| u32::try_from(id).ok()));
    ids.eq(column.nested_ids.iter().map(|id| Some(*id)))
}

fn has_any_id(field: &Type) -> bool {
    let is_within = || field.get_fields().iter().any(|field| has_any_id(field));
    field_id(field).is_some() || (field.is_group() && is_within())
}

/// The ids of the fields within a field, each before those within it. Lists and maps have a group between them and their
/// elements, keys and values, which is no field.
fn nested_ids(field: &Type) -> Vec<Option<i32>> {
    if !field.is_group() {
        return Vec::new();
    }
    let info = field.get_basic_info();
    let is_collection = matches!(
        info.logical_type_ref(),
        Some(LogicalType::List | LogicalType::Map)
    ) || matches!(
        info.converted_type(),
        ConvertedType::LIST | ConvertedType::MAP
    );
    let mut ids = Vec::new();
    for inner in field.get_fields() {
        if !is_collection {
            ids.push(field_id(inner));
        }
        ids.extend(nested_ids(inner));
    }
    ids
}
