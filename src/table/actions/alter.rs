//! Other columns. Data files name columns by identity, so none is written again.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::parquet::types::index_of;
use crate::parquet::writer::check_schema;
use crate::table::commit::Change;
use crate::table::format::{Base64, Column, Manifest, Operation, TableSchema};
use crate::table::schema::{TableColumns, encode_schema};
use crate::table::types::can_widen;

/// A change of a table's columns. Rows that were written before have nulls in columns that were added.
#[derive(Debug, Clone)]
pub enum Alter {
    /// One more, which may be null, behind the others.
    Add(Field),
    /// Another name.
    Rename {
        /// The name it has.
        column: String,
        /// The name it gets.
        to: String,
    },
    /// One less.
    Drop {
        /// Its name.
        column: String,
    },
    /// A type that holds every value of the one it has.
    Widen {
        /// Its name.
        column: String,
        /// The type it gets.
        to: DataType,
    },
    /// Another order.
    Reorder {
        /// All names.
        columns: Vec<String>,
    },
}

/// The columns while they are changed.
struct Draft {
    columns: Vec<(u32, FieldRef)>,
    last_id: u32,
}

impl Draft {
    fn place(&self, name: &str) -> Result<usize> {
        let fields: Vec<FieldRef> = self.columns.iter().map(|(_, f)| Arc::clone(f)).collect();
        index_of(&Schema::new(fields), name)
    }

    /// Refuses a name that is taken.
    fn check_new(&self, name: &str) -> Result<()> {
        match self.place(name) {
            Ok(_) => Err(Error::invalid(format!(
                "there is a column {name:?} already"
            ))),
            Err(_) => Ok(()),
        }
    }
}

impl Change for Alter {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        let before = TableColumns::from_manifest(base)?;
        let fields = before.schema.fields().iter().cloned();
        let mut draft = Draft {
            columns: before.ids.iter().copied().zip(fields).collect(),
            last_id: base.schema.last_id,
        };
        let operation = self.change(&mut draft, base)?;
        let fields: Vec<FieldRef> = draft.columns.iter().map(|(_, f)| Arc::clone(f)).collect();
        let schema = Schema::new_with_metadata(fields, before.schema.metadata().clone());
        check_schema(&Arc::new(schema.clone()))?;
        let column = |(id, field): &(u32, FieldRef)| Column {
            id: *id,
            name: field.name().clone(),
            kind: field.data_type().to_string(),
        };
        let mut next = base.clone();
        next.arrow_schema = Base64(encode_schema(&schema)?);
        next.schema = TableSchema {
            columns: draft.columns.iter().map(column).collect(),
            last_id: draft.last_id,
        };
        Ok((next, operation))
    }

    fn began_at(&self) -> Option<u64> {
        None
    }
}

impl Alter {
    fn change(&self, draft: &mut Draft, base: &Manifest) -> Result<Operation> {
        match self {
            Self::Add(field) => add(draft, field),
            Self::Rename { column, to } => {
                let place = draft.place(column)?;
                draft.check_new(to)?;
                let field = draft.columns[place].1.as_ref().clone();
                draft.columns[place].1 = Arc::new(field.with_name(to));
                Ok(told("rename_column", column, "to", json!(to)))
            }
            Self::Drop { column } => drop_column(draft, column, base),
            Self::Widen { column, to } => widen(draft, column, to),
            Self::Reorder { columns } => reorder(draft, columns),
        }
    }
}

fn told(name: &str, column: &str, what: &str, detail: Value) -> Operation {
    Operation::new(name, [("column", json!(column)), (what, detail)])
}

fn add(draft: &mut Draft, field: &Field) -> Result<Operation> {
    let name = field.name();
    draft.check_new(name)?;
    if !field.is_nullable() {
        let message =
            format!("column {name:?} must be nullable: the rows there are have no value for it");
        return Err(Error::invalid(message));
    }
    draft.last_id = draft.last_id.saturating_add(1);
    draft.columns.push((draft.last_id, Arc::new(field.clone())));
    let kind = json!(field.data_type().to_string());
    Ok(told("add_column", name, "type", kind))
}

fn drop_column(draft: &mut Draft, column: &str, base: &Manifest) -> Result<Operation> {
    let place = draft.place(column)?;
    let (id, _) = draft.columns[place];
    for (what, ids) in [("key", &base.key), ("sort_by", &base.sort_by)] {
        if ids.contains(&id) {
            let message =
                format!("column {column:?} cannot be dropped: it is of the table's {what}");
            return Err(Error::invalid(message));
        }
    }
    if draft.columns.len() == 1 {
        let message = format!("column {column:?} cannot be dropped: it is the only one");
        return Err(Error::invalid(message));
    }
    draft.columns.remove(place);
    Ok(told("drop_column", column, "id", json!(id)))
}

fn widen(draft: &mut Draft, column: &str, to: &DataType) -> Result<Operation> {
    let place = draft.place(column)?;
    let field = draft.columns[place].1.as_ref().clone();
    let from = field.data_type();
    if from == to || !can_widen(from, to) {
        let message = format!("column {column:?} is {from}, which cannot become {to}");
        return Err(Error::invalid(message));
    }
    draft.columns[place].1 = Arc::new(field.with_data_type(to.clone()));
    Ok(told("widen", column, "type", json!(to.to_string())))
}

fn reorder(draft: &mut Draft, columns: &[String]) -> Result<Operation> {
    let mut ordered = Vec::new();
    for name in columns {
        ordered.push(draft.columns.remove(draft.place(name)?));
    }
    if let Some((_, left)) = draft.columns.first() {
        let message = format!("column {:?} is not among those to be ordered", left.name());
        return Err(Error::invalid(message));
    }
    draft.columns = ordered;
    Ok(Operation::new("reorder", [("columns", json!(columns))]))
}
