//! Changes of a table's columns.
//!
//! Data files name columns by id, so no file is rewritten. A change is applied to the newest columns and never
//! conflicts. Refused with [`crate::ErrorKind::InvalidInput`]: a name that exists already, an unknown
//! column, a new column that is not nullable, dropping a column of the key or sort order or the last one,
//! a type that does not hold all values of the current one, and an order that is not of all columns.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::files::types::can_widen;
use crate::parquet::types::index_of;
use crate::parquet::writer::check_schema;
use crate::table::commit::Change;
use crate::table::format::{Base64, ColumnSchema, CommitOperation, TableManifest, TableSchema};
use crate::table::schema::encode_schema;

/// A change of a table's columns.
#[derive(Debug, Clone)]
pub enum Alter {
    /// Adds a nullable column after the others. It is null in existing rows.
    Add(Field),
    /// Renames a column.
    Rename {
        /// The current name.
        column: String,
        /// The new name.
        to: String,
    },
    /// Drops a column.
    Drop {
        /// The name of the column.
        column: String,
    },
    /// Changes a column's type to one that holds every value of the current type.
    Widen {
        /// The name of the column.
        column: String,
        /// The new type.
        to: DataType,
    },
    /// Changes the order of the columns.
    Reorder {
        /// The names of all columns in the new order.
        columns: Vec<String>,
    },
}

/// The columns that result from a change.
struct Draft {
    columns: Vec<(u32, FieldRef)>,
    last_id: u32,
}

impl Draft {
    fn column_index(&self, name: &str) -> Result<usize> {
        let fields: Vec<FieldRef> = self.columns.iter().map(|(_, f)| Arc::clone(f)).collect();
        index_of(&Schema::new(fields), name)
    }

    /// Refuses the name of an existing column.
    fn check_new(&self, name: &str) -> Result<()> {
        match self.column_index(name) {
            Ok(_) => Err(Error::invalid(format!("column {name:?} already exists"))),
            Err(_) => Ok(()),
        }
    }
}

impl Change for Alter {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        let current = TableColumns::from_manifest(base)?;
        let current_fields = current.schema.fields().iter().cloned();
        let mut draft = Draft {
            columns: current.ids.iter().copied().zip(current_fields).collect(),
            last_id: base.schema.last_id,
        };
        let operation = self.apply_to_draft(&mut draft, base)?;
        let fields: Vec<FieldRef> = draft.columns.iter().map(|(_, f)| Arc::clone(f)).collect();
        let schema = Schema::new_with_metadata(fields, current.schema.metadata().clone());
        check_schema(&Arc::new(schema.clone()))?;
        let column = |(id, field): &(u32, FieldRef)| ColumnSchema {
            id: *id,
            name: field.name().clone(),
            data_type: field.data_type().to_string(),
        };
        let mut next = base.clone();
        next.arrow_schema = Base64(encode_schema(&schema)?);
        next.schema = TableSchema {
            columns: draft.columns.iter().map(column).collect(),
            last_id: draft.last_id,
        };
        Ok((next, operation))
    }

    fn base_version(&self) -> Option<u64> {
        None
    }
}

impl Alter {
    fn apply_to_draft(&self, draft: &mut Draft, base: &TableManifest) -> Result<CommitOperation> {
        match self {
            Self::Add(field) => add_column(draft, field),
            Self::Rename { column, to } => {
                let index = draft.column_index(column)?;
                draft.check_new(to)?;
                let field = draft.columns[index].1.as_ref().clone();
                draft.columns[index].1 = Arc::new(field.with_name(to));
                Ok(column_operation("rename_column", column, "to", json!(to)))
            }
            Self::Drop { column } => drop_column(draft, column, base),
            Self::Widen { column, to } => widen_column(draft, column, to),
            Self::Reorder { columns } => reorder_columns(draft, columns),
        }
    }
}

fn column_operation(name: &str, column: &str, key: &str, value: Value) -> CommitOperation {
    CommitOperation::new(name, [("column", json!(column)), (key, value)])
}

fn add_column(draft: &mut Draft, field: &Field) -> Result<CommitOperation> {
    let name = field.name();
    draft.check_new(name)?;
    if !field.is_nullable() {
        let message =
            format!("column {name:?} must be nullable: existing rows have no value for it");
        return Err(Error::invalid(message));
    }
    draft.last_id = draft.last_id.saturating_add(1);
    draft.columns.push((draft.last_id, Arc::new(field.clone())));
    let data_type = json!(field.data_type().to_string());
    Ok(column_operation("add_column", name, "type", data_type))
}

fn drop_column(draft: &mut Draft, column: &str, base: &TableManifest) -> Result<CommitOperation> {
    let index = draft.column_index(column)?;
    let (id, _) = draft.columns[index];
    for (role, ids) in [("key", &base.key), ("sort_by", &base.sort_by)] {
        if ids.contains(&id) {
            let message =
                format!("column {column:?} cannot be dropped: it is part of the table's {role}");
            return Err(Error::invalid(message));
        }
    }
    if draft.columns.len() == 1 {
        let message = format!("column {column:?} cannot be dropped: it is the only column");
        return Err(Error::invalid(message));
    }
    draft.columns.remove(index);
    Ok(column_operation("drop_column", column, "id", json!(id)))
}

fn widen_column(draft: &mut Draft, column: &str, to: &DataType) -> Result<CommitOperation> {
    let index = draft.column_index(column)?;
    let field = draft.columns[index].1.as_ref().clone();
    let from = field.data_type();
    if from == to || !can_widen(from, to) {
        let message = format!(
            "the type of column {column:?} is {from} and cannot become {to}: a widened type differs and \
             holds every value of the current one"
        );
        return Err(Error::invalid(message));
    }
    draft.columns[index].1 = Arc::new(field.with_data_type(to.clone()));
    Ok(column_operation(
        "widen",
        column,
        "type",
        json!(to.to_string()),
    ))
}

fn reorder_columns(draft: &mut Draft, columns: &[String]) -> Result<CommitOperation> {
    let mut ordered = Vec::new();
    for name in columns {
        ordered.push(draft.columns.remove(draft.column_index(name)?));
    }
    if let Some((_, missing_field)) = draft.columns.first() {
        let message = format!(
            "column {:?} is missing in the new order; pass all columns",
            missing_field.name()
        );
        return Err(Error::invalid(message));
    }
    draft.columns = ordered;
    Ok(CommitOperation::new(
        "reorder",
        [("columns", json!(columns))],
    ))
}
