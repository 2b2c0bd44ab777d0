//! The change that appends data files together with the columns that they brought.
//!
//! The files are written with ids that the columns get in a draft of the manifest. Where a concurrent commit has given
//! one of these ids away, or has added a column of the same name, the entries of the files name their columns instead.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{Field, Schema};
use serde_json::json;

use super::Append;
use super::alter::add_columns;
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::table::changes::check_not_reserved;
use crate::table::format::{CommitOperation, DataFile, TableManifest};
use crate::table::schema::check_not_empty;
use crate::versions::{Change, GroupChange};

/// The columns of a stream that a table does not have.
#[derive(Debug, Clone)]
pub struct NewColumns {
    /// The snapshot with these columns, of which the data files are.
    pub draft: Arc<TableManifest>,
    fields: Vec<Field>,
}

impl NewColumns {
    /// The columns of `schema` that `base` does not have, as nullable ones; None if it has all of them.
    pub fn find(schema: &Schema, base: &TableManifest) -> Result<Option<Self>> {
        let known = TableColumns::from_manifest(base)?.schema;
        let unknown = schema.fields().iter();
        let unknown = unknown.filter(|field| known.index_of(field.name()).is_err());
        let fields: Vec<Field> = unknown
            .map(|field| Field::clone(field).with_nullable(true))
            .collect();
        if fields.is_empty() {
            return Ok(None);
        }
        for field in &fields {
            check_not_empty(field.name())?;
            check_not_reserved(field.name())?;
        }
        let draft = Arc::new(add_columns(base, &fields)?);
        Ok(Some(Self { draft, fields }))
    }

    /// The columns of these names, which a draft has and its version does not.
    pub fn of_draft(draft: Arc<TableManifest>, names: &[String]) -> Result<Self> {
        let schema = TableColumns::from_manifest(&draft)?.schema;
        let fields = names.iter().map(|name| {
            let field = schema.field_with_name(name).map_err(Error::from_cause)?;
            Ok::<_, Error>(field.clone())
        });
        let fields = fields.collect::<Result<_>>()?;
        Ok(Self { draft, fields })
    }
}

/// Adds columns and uploaded data files that have them.
#[derive(Debug, Clone)]
pub struct AppendWithColumns {
    /// The files, written for the draft of `columns`.
    pub append: Append,
    /// The columns to add.
    pub columns: NewColumns,
}

impl Change<TableManifest> for AppendWithColumns {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        self.append.check(base)?;
        let current = TableColumns::from_manifest(base)?.schema;
        let mut missing = Vec::new();
        for field in &self.columns.fields {
            match current.field_with_name(field.name()) {
                Err(_) => missing.push(field.clone()),
                Ok(_) if self.was_renamed(base, field.name()) => {
                    let message = format!(
                        "column {:?} got its name by another commit; write again",
                        field.name()
                    );
                    return Err(Error::new(ErrorKind::TransactionExpired, message));
                }
                Ok(added)
                    if added.is_nullable()
                        && added.data_type().equals_datatype(field.data_type()) => {}
                Ok(added) => {
                    let message = format!(
                        "column {:?} was added as {} by another commit, and the rows have {}; write again",
                        field.name(),
                        added.data_type(),
                        field.data_type()
                    );
                    return Err(Error::new(ErrorKind::TransactionExpired, message));
                }
            }
        }
        let with_columns = if missing.is_empty() {
            base.clone()
        } else {
            add_columns(base, &missing)?
        };
        let append = Append {
            files: self.rename_ids(&with_columns),
            ..self.append.clone()
        };
        let (next, mut operation) = Append::apply_all(&[&append], &with_columns);
        let names: Vec<&String> = missing.iter().map(Field::name).collect();
        if !names.is_empty() {
            let details = &mut operation.details;
            details.insert("columns_added".to_owned(), json!(names));
        }
        Ok((next, operation))
    }

    fn base_version(&self) -> Option<u64> {
        self.append.base_version()
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.append.idempotency_key()
    }
}

impl AppendWithColumns {
    /// Whether `name`, which was to be added, is now that of a column that the rows have under another name.
    fn was_renamed(&self, base: &TableManifest, name: &str) -> bool {
        let mut columns = base.schema.columns.iter();
        let id = columns.find(|c| c.name == name).map(|c| c.id);
        let draft = &self.columns.draft.schema.columns;
        let mut others = draft.iter().filter(|c| c.name != name);
        others.any(|c| Some(c.id) == id && !self.is_new(&c.name))
    }

    fn is_new(&self, name: &str) -> bool {
        let mut fields = self.columns.fields.iter();
        fields.any(|field| field.name() == name)
    }

    /// The files with the ids that the columns have in `next`.
    fn rename_ids(&self, next: &TableManifest) -> Vec<DataFile> {
        let id_of = |name: &str| {
            let mut columns = next.schema.columns.iter();
            columns.find(|c| c.name == name).map(|c| c.id)
        };
        let draft = &self.columns.draft.schema.columns;
        let new_ids: BTreeMap<u32, u32> = draft
            .iter()
            .map(|column| {
                let new_id = id_of(&column.name).filter(|_| self.is_new(&column.name));
                (column.id, new_id.unwrap_or(column.id))
            })
            .collect();
        if new_ids.iter().all(|(old, new)| old == new) {
            return self.append.files.clone();
        }
        let stored = draft
            .iter()
            .map(|c| (new_ids[&c.id], c.stored_name().to_owned()));
        let names: BTreeMap<u32, String> = stored.collect();
        let files = self.append.files.iter().map(|file| DataFile {
            min: rename(&file.min, &new_ids),
            max: rename(&file.max, &new_ids),
            null_counts: rename(&file.null_counts, &new_ids),
            columns: Some(names.clone()),
            ..file.clone()
        });
        files.collect()
    }
}

fn rename<T: Clone>(values: &BTreeMap<u32, T>, ids: &BTreeMap<u32, u32>) -> BTreeMap<u32, T> {
    let renamed = values
        .iter()
        .filter_map(|(id, value)| Some((*ids.get(id)?, value.clone())));
    renamed.collect()
}
