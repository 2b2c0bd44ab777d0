//! The columns of the snapshot that a caller has read: what names mean in its filters, keys, clauses and rows.
//!
//! A write is applied to newer snapshots, where a column may have another name, and another column its name. So what a
//! caller passes is bound to a newer snapshot under the names that its columns had ([`OpenedColumns::rename`]). A column
//! that the caller has not read goes by its own name, or by none that is a word if the caller's snapshot has that name.
//! A table that was created anew has its own names.
//!
//! [`ErrorKind::CommitConflict`]: a column that the caller names was dropped since, or got a type with which a filter may
//! select other rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_schema::{Field, Schema};

use super::Table;
use super::format::TableManifest;
use super::spark_fields::rename_described;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::files::expr::{Filter, Predicate};
use crate::files::types::keeps_meaning;
use crate::files::{EncodedSchema, TableColumns};
use crate::versions::Ancestor;

/// The columns that a caller has read. By default those of the first snapshot that an operation uses.
#[derive(Debug, Clone, Default)]
pub struct OpenedColumns(Option<Arc<TableManifest>>);

/// Whether a snapshot is of the table that a caller has read.
enum Lineage {
    Same,
    CreatedAnew,
    /// More commits lie between them than a manifest lists.
    Unknown,
}

impl OpenedColumns {
    /// The columns of a snapshot.
    pub fn of(manifest: &Arc<TableManifest>) -> Self {
        Self(Some(Arc::clone(manifest)))
    }

    /// The snapshot under the names that its columns had when the caller read them. Nothing of it may be committed but
    /// files, which do not depend on names.
    pub async fn rename(
        &mut self,
        table: &Table,
        manifest: &Arc<TableManifest>,
    ) -> Result<Arc<TableManifest>> {
        let Some(opened) = &self.0 else {
            *self = Self::of(manifest);
            return Ok(Arc::clone(manifest));
        };
        let Some(names) = names_of(opened, manifest) else {
            return Ok(Arc::clone(manifest));
        };
        match find_lineage(opened, manifest) {
            Lineage::Same => {}
            Lineage::CreatedAnew => {
                *self = Self::of(manifest);
                return Ok(Arc::clone(manifest));
            }
            Lineage::Unknown => {
                if Box::pin(table.read_manifest(opened.version))
                    .await?
                    .is_none()
                {
                    return Err(lost_lineage_error(opened));
                }
                let begun = Ancestor::of(&**opened);
                Box::pin(begun.check_descends(table, &**manifest)).await?;
            }
        }
        with_names(manifest, names).map(Arc::new)
    }

    /// The name that a column of the caller has in a snapshot now; a name that the caller has not read stays.
    pub(super) fn current_name(&self, name: &str, manifest: &TableManifest) -> Result<String> {
        let Some(opened) = &self.0 else {
            return Ok(name.to_owned());
        };
        let Some(id) = find_id(opened, name) else {
            return Ok(name.to_owned());
        };
        let mut columns = manifest.schema.columns.iter();
        let current = columns.find(|column| column.id == id);
        if current.is_some_and(|column| column.name == name) {
            return Ok(name.to_owned());
        }
        match (find_lineage(opened, manifest), current) {
            (Lineage::CreatedAnew, _) => Ok(name.to_owned()),
            (Lineage::Same, Some(column)) => Ok(column.name.clone()),
            (Lineage::Same, None) => Err(dropped_error(opened, name)),
            (Lineage::Unknown, _) => {
                let message = format!(
                    "column {name:?} of version {} was renamed or dropped by another commit; {AGAIN}",
                    opened.version
                );
                Err(conflict(message))
            }
        }
    }

    /// As [`Self::current_name`], for several columns.
    pub(super) fn current_names(
        &self,
        names: &[String],
        manifest: &TableManifest,
    ) -> Result<Vec<String>> {
        let current = names.iter().map(|name| self.current_name(name, manifest));
        current.collect()
    }

    /// Fails if the caller has read columns of these names that a snapshot, whose columns go by the caller's names, does
    /// not have any more; or if some are newer names, in `newest`, of columns that the caller has read.
    pub fn check_names<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
        renamed: &TableManifest,
        newest: &TableManifest,
    ) -> Result<()> {
        let Some(opened) = &self.0 else {
            return Ok(());
        };
        for name in names {
            if find_id(renamed, name).is_some() {
                continue;
            }
            if find_id(opened, name).is_some() {
                return Err(dropped_error(opened, name));
            }
            let id = find_id(newest, name);
            let mut columns = opened.schema.columns.iter();
            if let Some(column) = columns.find(|column| Some(column.id) == id) {
                let message = format!(
                    "column {name:?} is the column {:?} of version {}, renamed by another commit; {AGAIN}",
                    column.name, opened.version
                );
                return Err(conflict(message));
            }
        }
        Ok(())
    }

    /// Makes something of the columns of a snapshot, which go by the caller's names. If it can be made of those that the
    /// caller has read alone, it is a conflict.
    pub(super) fn bind<T>(
        &self,
        manifest: &TableManifest,
        make: impl Fn(&TableManifest) -> Result<T>,
    ) -> Result<T> {
        make(manifest).map_err(|error| match &self.0 {
            Some(opened) if error.kind() == ErrorKind::InvalidInput => {
                if make(opened).is_ok() {
                    changed_columns_error(error)
                } else if opened.version < manifest.version {
                    error.with_hint(format!(
                        "columns have their names of version {}; refresh the table for newer ones",
                        opened.version
                    ))
                } else {
                    error
                }
            }
            _ => error,
        })
    }

    /// Binds a predicate to the columns of a snapshot, which go by the caller's names.
    pub fn bind_filter(
        &self,
        predicate: &Predicate,
        manifest: &TableManifest,
        clock: &dyn Clock,
    ) -> Result<Filter> {
        let filter = self.bind(manifest, |manifest| {
            predicate.bind(&TableColumns::from_manifest(manifest)?, clock)
        })?;
        self.check_types(filter.columns(), manifest)?;
        Ok(filter)
    }

    /// Fails if columns of a snapshot, by their positions, have types with which expressions may have other values than
    /// with those that the caller has read.
    pub(super) fn check_types(&self, positions: &[usize], manifest: &TableManifest) -> Result<()> {
        let Some(opened) = self
            .0
            .as_ref()
            .filter(|opened| opened.arrow_schema != manifest.arrow_schema && !positions.is_empty())
        else {
            return Ok(());
        };
        let (columns, before) = (
            TableColumns::from_manifest(manifest)?,
            TableColumns::from_manifest(opened)?,
        );
        for position in positions {
            let (id, field) = (columns.ids[*position], columns.schema.field(*position));
            let mut ids = before.ids.iter();
            let Some(old) = ids.position(|old| *old == id) else {
                continue;
            };
            let (from, to) = (before.schema.field(old).data_type(), field.data_type());
            if !keeps_meaning(from, to) {
                let message = format!(
                    "another commit changed the type of column {:?} from {from}, as in version {}, to {to}, with which \
                     the same expression may select other rows; {AGAIN}",
                    field.name(),
                    opened.version
                );
                return Err(conflict(message));
            }
        }
        Ok(())
    }

    /// Fails if one of the names, of columns of a snapshot, was that of another column when the caller read it.
    pub fn check_unchanged<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
        newest: &TableManifest,
    ) -> Result<()> {
        for name in names {
            let current = self.current_name(name, newest)?;
            if current != *name {
                let message = format!(
                    "column {name:?} was renamed to {current:?} by another commit; {AGAIN}"
                );
                return Err(conflict(message));
            }
        }
        Ok(())
    }

    /// Fails if a name of a column that the caller has read is now that of another one; and if the columns of a predicate
    /// have other names now.
    pub fn check_same_names(
        &self,
        predicate: Option<&Predicate>,
        newest: &TableManifest,
        clock: &dyn Clock,
    ) -> Result<()> {
        let Some(opened) = &self.0 else {
            return Ok(());
        };
        let read_columns = opened.schema.columns.iter();
        let is_reused = |name: &&String| find_id(newest, name).is_some();
        let reused = read_columns.map(|column| &column.name).filter(is_reused);
        self.check_unchanged(reused, newest)?;
        if let Some(predicate) = predicate {
            let filter = self.bind_filter(predicate, newest, clock)?;
            let names = filter.column_ids(&TableColumns::from_manifest(newest)?);
            self.check_unchanged(names.keys(), newest)?;
        }
        Ok(())
    }
}

/// What to do about a change of columns.
const AGAIN: &str = "refresh the table and write again";

fn conflict(message: String) -> Error {
    Error::new(ErrorKind::CommitConflict, message)
}

fn dropped_error(opened: &TableManifest, name: &str) -> Error {
    conflict(format!(
        "column {name:?} of version {} was dropped by another commit; {AGAIN}",
        opened.version
    ))
}

/// The error of an operation that fitted the columns of the table until another commit changed them.
pub(super) fn changed_columns_error(error: Error) -> Error {
    let reason = error.message();
    conflict(format!(
        "a concurrent commit changed a column that this write is about; {AGAIN} ({reason})"
    ))
    .with_source(error)
}

fn find_id(manifest: &TableManifest, name: &str) -> Option<u32> {
    let mut columns = manifest.schema.columns.iter();
    Some(columns.find(|column| column.name == name)?.id)
}

/// The error where a vacuum has removed the version whose names the caller has read.
fn lost_lineage_error(opened: &TableManifest) -> Error {
    conflict(format!(
        "columns were changed since version {}, which is too old to follow them; {AGAIN}",
        opened.version
    ))
}

fn find_lineage(opened: &TableManifest, manifest: &TableManifest) -> Lineage {
    match manifest.commit_id_of(opened.version) {
        Some(commit_id) if *commit_id == opened.commit_id => Lineage::Same,
        None if manifest.version > opened.version => Lineage::Unknown,
        _ => Lineage::CreatedAnew,
    }
}

/// The names of the columns of a snapshot for a caller who has read another; None if these are its own.
fn names_of(opened: &TableManifest, manifest: &TableManifest) -> Option<Vec<String>> {
    let columns = &manifest.schema.columns;
    if *columns == opened.schema.columns {
        return None;
    }
    let opened_columns = opened.schema.columns.iter();
    let by_id: HashMap<u32, &str> = opened_columns.map(|c| (c.id, &*c.name)).collect();
    let opened_names: HashSet<&str> = by_id.values().copied().collect();
    let is_same = columns.iter().all(|column| match by_id.get(&column.id) {
        Some(name) => *name == column.name,
        None => !opened_names.contains(&*column.name),
    });
    if is_same {
        return None;
    }
    let mut used = opened_names.clone();
    used.extend(columns.iter().map(|column| &*column.name));
    let names = columns.iter().map(|column| match by_id.get(&column.id) {
        Some(name) => (*name).to_owned(),
        None if opened_names.contains(&*column.name) => {
            let mut unused = format!("{} (column {})", column.name, column.id);
            while used.contains(&*unused) {
                unused.push(' ');
            }
            unused
        }
        None => column.name.clone(),
    });
    Some(names.collect())
}

/// A snapshot whose columns have other names.
fn with_names(manifest: &TableManifest, names: Vec<String>) -> Result<TableManifest> {
    let current = TableColumns::from_manifest(manifest)?.schema;
    let mut renamed = manifest.clone();
    let mut metadata = current.metadata().clone();
    rename_described(&mut metadata, |described| {
        let position = current.index_of(described);
        Some(position.map_or_else(|_| described.to_owned(), |position| names[position].clone()))
    });
    let mut fields: Vec<Field> = Vec::new();
    let columns = renamed.schema.columns.iter_mut().zip(current.fields());
    for ((column, field), name) in columns.zip(names) {
        fields.push(field.as_ref().clone().with_name(&name));
        column.rename(name);
    }
    renamed.arrow_schema = EncodedSchema::new(&Schema::new_with_metadata(fields, metadata))?;
    Ok(renamed)
}
