//! Data files that were not written for the table: how their columns are read, and their entries.
//!
//! Such files have no ids in their fields, another Arrow schema or none, and timestamps of 96 bits. Both ways to add
//! them, `add_files` and `import_files`, check a file here before they list it, and scans read it with the same types
//! (`crate::files::with_types_of`). Bounds are listed only where they are known to hold for the column.

use std::collections::{BTreeMap, HashMap};

use arrow_schema::{DataType, TimeUnit};
use parquet::basic::Repetition;

use super::format::{DataFile, FileChecksum};
use super::partitions::{self, PartitionValues};
use crate::error::{Error, ErrorKind, Result};
use crate::files::expr::Statistics;
use crate::files::types::can_widen;
use crate::files::{OpenPart, TableColumns};
use crate::parquet::file::ENCRYPTED;

/// The id of fields of a file that are no columns of the table.
const NO_COLUMN: u32 = u32::MAX;

/// Says that a file that is to be added is encrypted, not that it is corrupted.
pub(super) fn refuse_encrypted(error: Error) -> Error {
    if error.detail() == Some(ENCRYPTED) {
        error.with_kind(ErrorKind::InvalidInput)
    } else {
        error
    }
}

/// Refuses fields of a file that are encrypted, and those with values that their columns' types may not have.
pub(super) fn check_types(
    part: &OpenPart,
    columns: &TableColumns,
    fields: &HashMap<u32, usize>,
) -> Result<()> {
    let file = &part.file;
    for (column, id) in columns.schema.fields().iter().zip(columns.ids.iter()) {
        let Some(index) = fields.get(id) else {
            continue;
        };
        for leaf in file.leaves(*index) {
            file.check_not_encrypted(leaf).map_err(refuse_encrypted)?;
        }
        let (file_type, column_type) = (file.schema.field(*index).data_type(), column.data_type());
        // Milliseconds would cut them, and nanoseconds wrap around.
        if file.is_int96(*index)
            && !matches!(column_type, DataType::Timestamp(TimeUnit::Microsecond, _))
        {
            let message = format!(
                "column {:?} is {column_type} in the table, and the file has timestamps of 96 bits, which only \
                 microseconds hold; rewrite the file, or make the column one of microseconds",
                column.name(),
            );
            return Err(Error::invalid(message));
        }
        if !can_widen(file_type, column_type) {
            let message = format!(
                "column {:?} is {column_type} in the table and {file_type} in the file; rewrite the file with the \
                 table's type",
                column.name(),
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// The entry of a file, with an empty path; `fields` has the index of a column's field by the id.
pub(super) fn file_entry(
    part: &OpenPart,
    columns: &TableColumns,
    fields: &HashMap<u32, usize>,
    values: &PartitionValues,
) -> Result<DataFile> {
    let file = &part.file;
    let mut ids = vec![NO_COLUMN; file.schema.fields().len()];
    let mut names = BTreeMap::new();
    for (id, index) in fields {
        ids[*index] = *id;
        names.insert(*id, file.schema.field(*index).name().clone());
    }
    let mut bounds = Statistics::from_footer(file.metadata(), file.stored_schema(), &ids);
    bounds.forget(NO_COLUMN);
    let constants = partitions::constants(values, columns, &names, file.rows(), &mut bounds)?;
    for (field, id) in columns.schema.fields().iter().zip(columns.ids.iter()) {
        // A repeated field is a list that is empty where it has no values, never null.
        let is_required = fields.get(id).is_some_and(|index| {
            let info = file.stored_type(*index).get_basic_info();
            info.repetition() != Repetition::OPTIONAL
        });
        let has_none = is_required || bounds.null_counts.get(id) == Some(&0);
        if !field.is_nullable() && file.rows() > 0 && !has_none {
            let message = format!(
                "column {:?} may not be null in the table, but {:?} has nulls or no null count for it",
                field.name(),
                part.path
            );
            return Err(Error::invalid(message));
        }
    }
    let mut entry = DataFile {
        path: String::new(),
        size_bytes: file.length,
        // Unknown: readers find the footer by its length at the end of the file.
        footer_size: 0,
        row_group_count: file.metadata().num_row_groups() as u64,
        total_rows: file.rows(),
        min: bounds.min,
        max: bounds.max,
        null_counts: bounds.null_counts,
        columns: Some(names),
        constants,
        checksum: Some(FileChecksum(file.checksum)),
    };
    for (field, id) in columns.schema.fields().iter().zip(columns.ids.iter()) {
        if !entry.knows_bounds(*id, field.data_type()) {
            entry.min.remove(id);
            entry.max.remove(id);
        }
    }
    Ok(entry)
}
