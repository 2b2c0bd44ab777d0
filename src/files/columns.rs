//! Columns of a table: its schema, and ids that outlive names.
//!
//! A data file has the ids as field ids of Parquet, so its columns are found after a rename.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_schema::{FieldRef, Schema, SchemaRef};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;

use super::field_ids::with_field_ids;
use crate::error::{Error, Result};
use crate::parquet::types::{index_of, storage_schema};

/// The columns of one snapshot.
#[derive(Debug, Clone)]
pub struct TableColumns {
    /// The columns as users see them, without ids.
    pub schema: SchemaRef,
    /// The id of each column.
    pub ids: Arc<[u32]>,
    stored: Arc<[StoredField]>,
}

/// What a column is called in data files.
#[derive(Debug, Clone)]
pub(crate) struct StoredField {
    /// The name, which may differ from the column's.
    pub(crate) name: String,
    /// The ids of the fields nested in it.
    pub(crate) nested_ids: Vec<u32>,
}

/// The schemas of a data file.
#[derive(Debug)]
pub(crate) struct FileSchemas {
    /// What is kept as its Arrow schema.
    pub(crate) arrow: SchemaRef,
    /// What its Parquet schema is made of.
    pub(crate) parquet: SchemaRef,
    /// The types in which values are stored.
    pub(crate) storage: SchemaRef,
}

impl TableColumns {
    /// Columns with an id and a stored field for each field of `schema`.
    pub(crate) fn new(schema: SchemaRef, ids: Arc<[u32]>, stored: Arc<[StoredField]>) -> Self {
        Self {
            schema,
            ids,
            stored,
        }
    }

    /// The columns of files without ids, such as the parts of a dataset: each is numbered by its position.
    pub(crate) fn numbered(schema: SchemaRef) -> Self {
        let ids = (0..).take(schema.fields().len()).collect();
        let stored = schema.fields().iter().map(|field| StoredField {
            name: field.name().clone(),
            nested_ids: Vec::new(),
        });
        let stored = stored.collect();
        Self::new(schema, ids, stored)
    }

    /// The names of the columns by their ids.
    pub(crate) fn names_by_id(&self) -> BTreeMap<u32, String> {
        let fields = self.iter();
        fields
            .map(|(field, id, _)| (id, field.name().clone()))
            .collect()
    }

    /// The schemas of a data file: the columns by their stored names, with ids as field ids. Its Parquet
    /// schema has ids on nested fields too; its Arrow schema has not, so that types are the table's.
    pub(crate) fn file_schemas(&self) -> Result<FileSchemas> {
        let stored_fields: Vec<FieldRef> = self
            .iter()
            .map(|(field, id, stored)| {
                let named = Arc::new(field.as_ref().clone().with_name(&stored.name));
                with_field_ids(&named, id, &[])
            })
            .collect();
        let arrow = Schema::new_with_metadata(stored_fields, self.schema.metadata().clone());
        let storage = storage_schema(&arrow)?;
        let numbered = storage.fields().iter().zip(self.iter());
        let parquet: Vec<FieldRef> = numbered
            .map(|(field, (_, id, stored))| with_field_ids(field, id, &stored.nested_ids))
            .collect();
        Ok(FileSchemas {
            arrow: Arc::new(arrow),
            parquet: Arc::new(Schema::new(parquet)),
            storage,
        })
    }

    /// The fields, as users see them, with the ids of columns and of the fields nested in them.
    pub(crate) fn fields_with_ids(&self) -> Vec<FieldRef> {
        let fields = self.iter();
        fields
            .map(|(field, id, stored)| with_field_ids(field, id, &stored.nested_ids))
            .collect()
    }

    fn iter(&self) -> impl Iterator<Item = (&FieldRef, u32, &StoredField)> {
        let fields = self.schema.fields().iter();
        fields
            .zip(self.ids.iter())
            .zip(self.stored.iter())
            .map(|((field, id), stored)| (field, *id, stored))
    }

    /// The ids of the named columns. Fails if a name is unknown or given twice.
    pub(crate) fn ids_of(&self, names: &[String]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for name in names {
            let id = self.ids[index_of(&self.schema, name)?];
            if ids.contains(&id) {
                return Err(Error::invalid(format!("duplicate column {name:?}")));
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// The positions of the named columns, or of all. Fails if a name is unknown.
    pub(crate) fn project(&self, names: Option<&[String]>) -> Result<Vec<usize>> {
        match names {
            None => Ok((0..self.ids.len()).collect()),
            Some(names) => names.iter().map(|n| index_of(&self.schema, n)).collect(),
        }
    }
}

/// The fields of a data file by the ids of their columns: by the names that they have there, or by the ids in the file.
pub(crate) fn field_indices(
    file: &Schema,
    names: Option<&BTreeMap<u32, String>>,
) -> HashMap<u32, usize> {
    match names {
        Some(names) => field_indices_by_name(file, names),
        None => field_indices_by_id(file),
    }
}

/// The fields of a data file by the ids of their columns.
pub(crate) fn field_indices_by_id(file: &Schema) -> HashMap<u32, usize> {
    let ids = file
        .fields()
        .iter()
        .enumerate()
        .filter_map(|(field_index, field)| {
            let id = field.metadata().get(PARQUET_FIELD_ID_META_KEY)?;
            Some((id.parse().ok()?, field_index))
        });
    ids.collect()
}

/// The fields of a data file by the ids of the columns that have these names in it.
pub(crate) fn field_indices_by_name(
    file: &Schema,
    names: &BTreeMap<u32, String>,
) -> HashMap<u32, usize> {
    let named_columns = names.iter();
    let field_indices =
        named_columns.filter_map(|(id, name)| Some((*id, file.index_of(name).ok()?)));
    field_indices.collect()
}
