//! Columns of a table: its schema, and ids that outlive names.
//!
//! A data file has the ids as field ids of Parquet, so its columns are found after a rename.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_schema::{FieldRef, Schema, SchemaRef};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;

use crate::error::{Error, Result};
use crate::parquet::types::index_of;

/// The columns of one snapshot.
#[derive(Debug, Clone)]
pub struct TableColumns {
    /// The columns as users see them, without ids.
    pub schema: SchemaRef,
    /// The id of each column.
    pub ids: Arc<[u32]>,
}

impl TableColumns {
    /// The schema of a data file: the table's, with the ids of the columns as field ids.
    pub(crate) fn file_schema(&self) -> SchemaRef {
        let with_id = |(field, id): (&FieldRef, &u32)| {
            let mut metadata = field.metadata().clone();
            metadata.insert(PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_string());
            Arc::new(field.as_ref().clone().with_metadata(metadata))
        };
        let pairs = self.schema.fields().iter().zip(self.ids.iter());
        let fields: Vec<FieldRef> = pairs.map(with_id).collect();
        Arc::new(Schema::new_with_metadata(
            fields,
            self.schema.metadata().clone(),
        ))
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
