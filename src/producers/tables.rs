//! The tables of sources and stages: their columns, their order, and which of their rows a newer run replaces.
//!
//! A `TableShape` is what the code of lookups, merges and writes needs to know of a table; the module of producers
//! lists the tables. `KeyAndValue` are the fields of one source or stage as they were declared, which is what a
//! manifest stores; the shapes of all its tables follow from them. Stored columns are nullable, whatever was declared,
//! and columns that readers do not see are behind the others; `read` returns the declared types.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::format::{NodeEntry, ValueOrder};
use super::keys::nullable;
use super::source_keys::{SOURCE_KEY, split_source_key};
use crate::error::{Result, corrupted_error};
use crate::files::{EncodedSchema, SortColumn, SortKeys};
use crate::run::KeyColumn;

/// The column with the state of each key of a stage that is folded. Readers do not see it.
pub(super) const STATE: &str = "state";
/// The column that says whether a row of a run deletes: 1, else 0.
pub(super) const OP: &str = "op";

/// The column of key mappings with the order of the values, where a stage has one. Readers do not see it.
const ORDER: &str = "order";

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

    /// The rows as joins see them: key, identity (what else tells which rows a newer run replaces) and value.
    pub(super) fn identified(&self) -> Self {
        let field = |at: usize, name: &str| self.schema.field(at).clone().with_name(name);
        let identity = self.wins_by - 1;
        let columns = vec![
            field(0, "key"),
            field(identity, "id"),
            field(self.visible - 1, "value"),
        ];
        let order = [0, identity].map(|at| self.order[at].descending);
        Self::new(columns, &order, 2)
    }

    /// The first columns of the order alone, which decide together.
    pub(super) fn first_columns(&self, columns: usize) -> Self {
        let fields = self.schema.fields()[..columns].to_vec();
        Self {
            schema: Arc::new(Schema::new(fields)),
            order: self.order[..columns].to_vec(),
            wins_by: columns,
            visible: columns,
        }
    }

    /// The same table with a column that readers do not see.
    fn with_hidden(self, column: Field) -> Self {
        let mut fields: Vec<_> = self.schema.fields().iter().cloned().collect();
        fields.push(Arc::new(column));
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
        let columns = order.map(|(index, column)| SortColumn::new(index, column.options()));
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
    /// The source key as the content has it, where that is not the key of the feeders alone.
    pub(super) source_key: Option<Field>,
    /// The order of the values of a key. Then the source key has it.
    pub(super) order_by: Option<ValueOrder>,
}

/// The source keys of a stage.
#[derive(Debug, Clone)]
pub(super) struct SourceKeys {
    /// As readers see them.
    pub(super) key: Field,
    descending: bool,
    /// As the content has them.
    identity: Field,
    identity_descending: bool,
}

impl KeyAndValue {
    pub(super) fn from_entry(entry: &NodeEntry) -> Result<Self> {
        let damaged = |reason: &str| {
            let name = &entry.name;
            corrupted_error("the manifest", &format!("the schema of {name:?} {reason}"))
        };
        let schema = entry
            .arrow_schema
            .decode()
            .map_err(|e| damaged("cannot be decoded").with_source(e))?;
        let [key, value, other @ ..] = schema.fields().as_ref() else {
            return Err(damaged("does not have the columns key and value"));
        };
        let (has_state, source_key) = match other {
            [] => (false, None),
            [state] if state.name() == STATE && *state.data_type() == DataType::Binary => {
                (true, None)
            }
            [source_key] if source_key.name() == SOURCE_KEY => (false, Some(source_key)),
            _ => {
                return Err(damaged(
                    "has other columns than key, value and state or source_key",
                ));
            }
        };
        if entry.order_by.is_some() && source_key.is_none_or(|f| split_source_key(f).is_none()) {
            return Err(damaged("has no source_key with the order of its values"));
        }
        Ok(Self {
            key: key.as_ref().clone(),
            value: value.as_ref().clone(),
            descending: entry.descending,
            has_state,
            source_key: source_key.map(|field| field.as_ref().clone()),
            order_by: entry.order_by.clone(),
        })
    }

    /// The source keys of a stage with these columns, of which `feeder` is the first feeder.
    pub(super) fn source_keys(&self, feeder: &Self) -> SourceKeys {
        let (key, descending) = match (&self.source_key, &self.order_by) {
            (Some(source_key), None) => (source_key, false),
            _ => (&feeder.key, feeder.descending),
        };
        SourceKeys {
            key: key.clone(),
            descending,
            identity: self.source_key.as_ref().unwrap_or(key).clone(),
            identity_descending: match &self.order_by {
                Some(order) => order.descending,
                None => descending,
            },
        }
    }

    /// The schema as it is stored.
    pub(super) fn encode(&self) -> Result<EncodedSchema> {
        let mut fields = vec![
            self.key.clone().with_name("key"),
            self.value.clone().with_name("value"),
        ];
        if self.has_state {
            fields.push(Field::new(STATE, DataType::Binary, false));
        }
        if let Some(source_key) = &self.source_key {
            fields.push(source_key.clone().with_name(SOURCE_KEY));
        }
        EncodedSchema::new(&Schema::new(fields))
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

    /// The content of a stage that has this key and value, and these source keys.
    pub(super) fn content(&self, sources: &SourceKeys) -> TableShape {
        let columns = vec![
            nullable(&self.key, "target_key"),
            nullable(&sources.identity, SOURCE_KEY),
            nullable(&self.value, "value"),
        ];
        let order = [self.descending, sources.identity_descending];
        let content = TableShape::new(columns, &order, 2);
        if self.has_state {
            content.with_hidden(Field::new(STATE, DataType::Binary, true))
        } else {
            content
        }
    }

    /// The key mappings of such a stage.
    pub(super) fn mappings(&self, sources: &SourceKeys) -> TableShape {
        let columns = vec![
            nullable(&sources.key, SOURCE_KEY),
            nullable(&self.key, "target_key"),
        ];
        let mappings = TableShape::new(columns, &[sources.descending, self.descending], 1);
        match (&self.order_by, split_source_key(&sources.identity)) {
            (Some(_), Some((order, _))) => {
                let order = DataType::Struct(order.to_vec().into());
                mappings.with_hidden(Field::new(ORDER, order, true))
            }
            _ => mappings,
        }
    }
}
