//! The tables of sources and stages: their columns, their order, and which of their rows a newer run replaces.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::format::NodeEntry;
use super::keys::nullable;
use crate::error::{Result, corrupted_error};
use crate::files::{SortColumn, SortKeys};
use crate::run::KeyColumn;
use crate::table::{decode_schema, encode_schema};

/// The column with the state of each key of a stage that is folded. Readers do not see it.
pub(super) const STATE: &str = "state";
/// The column that says whether a row of a run deletes: 1, else 0.
pub(super) const OP: &str = "op";

/// A table: the columns of its runs without [`OP`], all of them nullable.
#[derive(Debug, Clone)]
pub(super) struct TableShape {
    /// The columns; those of the order come first.
    pub(super) schema: SchemaRef,
    /// The columns that rows are in the order of.
    pub(super) order: Vec<KeyColumn>,
    /// A newer run replaces the rows that are equal in so many of the first columns.
    pub(super) wins_by: usize,
    /// So many of the first columns are the rows that readers see.
    pub(super) visible: usize,
}

impl TableShape {
    fn new(columns: Vec<Field>, order: &[bool], wins_by: usize) -> Self {
        let ordered = columns.iter().zip(order);
        let order = ordered.map(|(column, descending)| KeyColumn {
            name: column.name().clone(),
            descending: *descending,
        });
        Self {
            order: order.collect(),
            visible: columns.len(),
            schema: Arc::new(Schema::new(columns)),
            wins_by,
        }
    }

    /// The same table with a column that readers do not see.
    fn with_state(self) -> Self {
        let mut fields: Vec<_> = self.schema.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(STATE, DataType::Binary, true)));
        Self {
            schema: Arc::new(Schema::new(fields)),
            ..self
        }
    }

    /// The columns of runs that delete.
    pub(super) fn schema_with_op(&self) -> SchemaRef {
        let mut fields: Vec<_> = self.schema.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(OP, DataType::Int8, false)));
        Arc::new(Schema::new(fields))
    }

    /// The first columns of the order, and how they are sorted.
    pub(super) fn sort_columns(&self, columns: usize) -> Vec<SortColumn> {
        let order = self.order.iter().take(columns).enumerate();
        let columns = order.map(|(index, column)| SortColumn {
            index,
            options: column.options(),
        });
        columns.collect()
    }

    /// The keys of the first columns.
    pub(super) fn keys(&self, columns: usize) -> Result<Arc<SortKeys>> {
        let by = self.sort_columns(columns);
        SortKeys::new(&self.schema, &by).map(Arc::new)
    }
}

/// The declared fields and order of a source's or a stage's key and value.
#[derive(Debug, Clone)]
pub(super) struct KeyAndValue {
    pub(super) key: Field,
    pub(super) value: Field,
    pub(super) descending: bool,
    /// Whether the content has the column [`STATE`].
    pub(super) has_state: bool,
}

impl KeyAndValue {
    pub(super) fn from_entry(entry: &NodeEntry) -> Result<Self> {
        let damaged = |reason: &str| {
            let name = &entry.name;
            corrupted_error("the manifest", &format!("the schema of {name:?} {reason}"))
        };
        let schema = decode_schema(&entry.arrow_schema.0)
            .map_err(|e| damaged("cannot be decoded").with_source(e))?;
        let [key, value, state @ ..] = schema.fields().as_ref() else {
            return Err(damaged("does not have the columns key and value"));
        };
        let has_state = match state {
            [] => false,
            [state] if state.name() == STATE && *state.data_type() == DataType::Binary => true,
            _ => return Err(damaged("has other columns than key, value and state")),
        };
        Ok(Self {
            key: key.as_ref().clone(),
            value: value.as_ref().clone(),
            descending: entry.descending,
            has_state,
        })
    }

    /// The schema as it is stored.
    pub(super) fn encode(&self) -> Result<bytes::Bytes> {
        let mut fields = vec![
            self.key.clone().with_name("key"),
            self.value.clone().with_name("value"),
        ];
        if self.has_state {
            fields.push(Field::new(STATE, DataType::Binary, false));
        }
        encode_schema(&Schema::new(fields))
    }

    /// The columns `key` and `value`, as they are stored.
    pub(super) fn pairs(&self) -> SchemaRef {
        let fields = vec![nullable(&self.key, "key"), nullable(&self.value, "value")];
        Arc::new(Schema::new(fields))
    }

    /// The rows of a source.
    pub(super) fn source(&self) -> TableShape {
        let columns = vec![nullable(&self.key, "key"), nullable(&self.value, "value")];
        TableShape::new(columns, &[self.descending], 1)
    }

    /// The keys that an update changed, and how: [`super::diff::ChangeType`].
    pub(super) fn update(&self) -> TableShape {
        let columns = vec![
            nullable(&self.key, "key"),
            Field::new("type", DataType::Int32, true),
        ];
        TableShape::new(columns, &[self.descending], 1)
    }

    /// The content of a stage that has this key and value, fed by `feeder`.
    pub(super) fn content(&self, feeder: &Self) -> TableShape {
        let columns = vec![
            nullable(&self.key, "target_key"),
            nullable(&feeder.key, "source_key"),
            nullable(&self.value, "value"),
        ];
        let content = TableShape::new(columns, &[self.descending, feeder.descending], 2);
        if self.has_state {
            content.with_state()
        } else {
            content
        }
    }

    /// The key mappings of such a stage.
    pub(super) fn mappings(&self, feeder: &Self) -> TableShape {
        let columns = vec![
            nullable(&feeder.key, "source_key"),
            nullable(&self.key, "target_key"),
        ];
        TableShape::new(columns, &[feeder.descending, self.descending], 1)
    }
}
