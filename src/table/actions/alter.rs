//! Changes of a table's columns.
//!
//! Data files name columns by id, so no file is rewritten. A change is applied to the newest columns and never
//! conflicts, unless a column that a caller has read was dropped since ([`AlterOpened`]). Refused with
//! [`crate::ErrorKind::InvalidInput`]: a name that exists already or is empty, an unknown column, a new column that is
//! not nullable, dropping a column of the key or sort order or the last one, a type that does not hold all values of
//! the current one, a wider type of an extension type, and an order that is not of all columns.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::files::types::can_widen;
use crate::files::{EncodedSchema, TableColumns};
use crate::parquet::nested::child_fields;
use crate::parquet::types::index_of;
use crate::parquet::writer::check_schema;
use crate::table::changes::check_not_reserved;
use crate::table::format::{CommitOperation, TableManifest, TableSchema, Widened};
use crate::table::opened_columns::OpenedColumns;
use crate::table::schema::check_not_empty;
use crate::table::spark_fields::rename_described;
use crate::versions::Change;

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

/// The columns that result from a change: their entries in the manifest, and their Arrow fields in the same order.
struct Draft {
    schema: TableSchema,
    fields: Vec<FieldRef>,
    /// That of the Arrow schema.
    metadata: HashMap<String, String>,
}

impl Draft {
    fn column_index(&self, name: &str) -> Result<usize> {
        index_of(&Schema::new(self.fields.clone()), name)
    }

    /// Renames a column in Spark's description, or drops it from there. What that says of another column of the new
    /// name is about one that was dropped.
    fn describe(&mut self, column: &str, new_name: Option<&str>) {
        rename_described(&mut self.metadata, |name| {
            if name == column {
                new_name.map(str::to_owned)
            } else {
                (Some(name) != new_name).then(|| name.to_owned())
            }
        });
    }

    /// Refuses the name of an existing column.
    fn check_new(&self, name: &str) -> Result<()> {
        match self.column_index(name) {
            Ok(_) => Err(Error::invalid(format!("column {name:?} already exists"))),
            Err(_) => Ok(()),
        }
    }
}

/// A change of a table's columns under the names by which a caller has read them: it follows a column that was renamed.
/// [`crate::ErrorKind::CommitConflict`] if one was dropped.
#[derive(Debug, Clone)]
pub struct AlterOpened {
    /// The change.
    pub alter: Alter,
    /// The columns that the caller has read.
    pub opened: OpenedColumns,
}

impl Change<TableManifest> for AlterOpened {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        let current = |column: &String| self.opened.current_name(column, base);
        let alter = match &self.alter {
            Alter::Add(field) => Alter::Add(field.clone()),
            Alter::Rename { column, to } => Alter::Rename {
                column: current(column)?,
                to: to.clone(),
            },
            Alter::Drop { column } => Alter::Drop {
                column: current(column)?,
            },
            Alter::Widen { column, to } => Alter::Widen {
                column: current(column)?,
                to: to.clone(),
            },
            Alter::Reorder { columns } => Alter::Reorder {
                columns: columns.iter().map(current).collect::<Result<_>>()?,
            },
        };
        alter.apply(base)
    }

    fn base_version(&self) -> Option<u64> {
        None
    }
}

impl Change<TableManifest> for Alter {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        change_columns(base, |draft| self.apply_to_draft(draft, base))
    }

    fn base_version(&self) -> Option<u64> {
        None
    }
}

/// Adds nullable columns after the others.
pub(super) fn add_columns(base: &TableManifest, fields: &[Field]) -> Result<TableManifest> {
    let add_all = |draft: &mut Draft| {
        fields
            .iter()
            .try_for_each(|f| add_column(draft, f).map(drop))
    };
    Ok(change_columns(base, add_all)?.0)
}

/// The snapshot with other columns, and what their change returns.
fn change_columns<T>(
    base: &TableManifest,
    change: impl FnOnce(&mut Draft) -> Result<T>,
) -> Result<(TableManifest, T)> {
    let current = TableColumns::from_manifest(base)?;
    let mut draft = Draft {
        schema: base.schema.clone(),
        fields: current.schema.fields().to_vec(),
        metadata: current.schema.metadata().clone(),
    };
    let changed = change(&mut draft)?;
    let schema = Schema::new_with_metadata(draft.fields, draft.metadata);
    check_schema(&Arc::new(schema.clone()))?;
    let mut next = base.clone();
    next.arrow_schema = EncodedSchema::new(&schema)?;
    next.schema = draft.schema;
    Ok((next, changed))
}

impl Alter {
    fn apply_to_draft(&self, draft: &mut Draft, base: &TableManifest) -> Result<CommitOperation> {
        match self {
            Self::Add(field) => add_column(draft, field),
            Self::Rename { column, to } => rename_column(draft, column, to),
            Self::Drop { column } => drop_column(draft, column, base),
            Self::Widen { column, to } => widen_column(draft, column, to, base.version + 1),
            Self::Reorder { columns } => reorder_columns(draft, columns),
        }
    }
}

fn column_operation(name: &str, column: &str, key: &str, value: Value) -> CommitOperation {
    CommitOperation::new(name, [("column", json!(column)), (key, value)])
}

fn add_column(draft: &mut Draft, field: &Field) -> Result<CommitOperation> {
    let name = field.name();
    check_not_empty(name)?;
    draft.check_new(name)?;
    check_not_reserved(name)?;
    if !field.is_nullable() {
        let message =
            format!("column {name:?} must be nullable: existing rows have no value for it");
        return Err(Error::invalid(message));
    }
    draft.describe(name, None);
    draft.schema.push(field);
    draft.fields.push(Arc::new(field.clone()));
    let data_type = json!(field.data_type().to_string());
    Ok(column_operation("add_column", name, "type", data_type))
}

/// Renames a column in the manifest; in data files it keeps its name.
fn rename_column(draft: &mut Draft, column: &str, to: &str) -> Result<CommitOperation> {
    let index = draft.column_index(column)?;
    check_not_empty(to)?;
    draft.check_new(to)?;
    check_not_reserved(to)?;
    let renamed = draft.fields[index].as_ref().clone().with_name(to);
    draft.fields[index] = Arc::new(renamed);
    draft.schema.columns[index].rename(to.to_owned());
    draft.describe(column, Some(to));
    Ok(column_operation("rename_column", column, "to", json!(to)))
}

fn drop_column(draft: &mut Draft, column: &str, base: &TableManifest) -> Result<CommitOperation> {
    let index = draft.column_index(column)?;
    let id = draft.schema.columns[index].id;
    for (role, ids) in [("key", &base.key), ("sort_by", &base.sort_by)] {
        if ids.contains(&id) {
            let message =
                format!("column {column:?} cannot be dropped: it is part of the table's {role}");
            return Err(Error::invalid(message));
        }
    }
    if draft.fields.len() == 1 {
        let message = format!("column {column:?} cannot be dropped: it is the only column");
        return Err(Error::invalid(message));
    }
    draft.fields.remove(index);
    let dropped = draft.schema.columns.remove(index);
    draft.schema.retire(&dropped);
    draft.describe(column, None);
    Ok(column_operation("drop_column", column, "id", json!(id)))
}

/// Widens the type of a column; `version` is the version that this makes.
fn widen_column(
    draft: &mut Draft,
    column: &str,
    to: &DataType,
    version: u64,
) -> Result<CommitOperation> {
    let index = draft.column_index(column)?;
    let field = draft.fields[index].as_ref().clone();
    let from = field.data_type();
    if from == to || !can_widen(from, to) {
        let message = format!(
            "the type of column {column:?} is {from} and cannot become {to}: a widened type differs and \
             holds every value of the current one"
        );
        return Err(Error::invalid(message));
    }
    let widened = field.clone().with_data_type(to.clone());
    if let Some(extension) = find_changed_extension(&field, &widened) {
        let message = format!(
            "column {column:?} has the extension type {extension}, which prescribes how its values are stored, so it \
             cannot become {to}; add a column of the other type and write the values to it"
        );
        return Err(Error::invalid(message));
    }
    let entry = &mut draft.schema.columns[index];
    entry.widened.push(Widened {
        version,
        from: std::mem::replace(&mut entry.data_type, to.to_string()),
    });
    draft.fields[index] = Arc::new(widened);
    Ok(column_operation(
        "widen",
        column,
        "type",
        json!(to.to_string()),
    ))
}

/// The name of an extension type, of a field or of one nested in it, that changes with its storage type, or is added or
/// dropped.
fn find_changed_extension<'f>(from: &'f Field, to: &'f Field) -> Option<&'f str> {
    let extension = |field: &'f Field| {
        let name = field.extension_type_name()?;
        Some((name, field.extension_type_metadata().unwrap_or_default()))
    };
    let (before, after) = (extension(from), extension(to));
    let is_changed = before != after || from.data_type() != to.data_type();
    if let Some((name, _)) = before.or(after).filter(|_| is_changed) {
        return Some(name);
    }
    let nested = child_fields(from.data_type()).iter();
    let mut pairs = nested.zip(child_fields(to.data_type()));
    pairs.find_map(|(from, to)| find_changed_extension(from, to))
}

fn reorder_columns(draft: &mut Draft, columns: &[String]) -> Result<CommitOperation> {
    let (mut entries, mut fields) = (Vec::new(), Vec::new());
    for name in columns {
        let index = draft.column_index(name)?;
        entries.push(draft.schema.columns.remove(index));
        fields.push(draft.fields.remove(index));
    }
    if let Some(missing_field) = draft.fields.first() {
        let message = format!(
            "column {:?} is missing in the new order; pass all columns",
            missing_field.name()
        );
        return Err(Error::invalid(message));
    }
    (draft.schema.columns, draft.fields) = (entries, fields);
    Ok(CommitOperation::new(
        "reorder",
        [("columns", json!(columns))],
    ))
}
