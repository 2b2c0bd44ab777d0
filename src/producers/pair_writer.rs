//! The pairs of a join as rows of its content, or as the identities of such rows.
//!
//! What a join computes is rows of its content: target key, source key and value. The source key is a struct of what
//! identifies the rows of both sides, so each pair has a row of its own that later updates replace or delete. A side
//! without a partner is null. With the identities alone, the same code names the pairs that may have been.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int8Array, RecordBatch, StructArray, new_null_array};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use arrow_select::zip::zip;

use super::cursor::{Picker, aligned};
use super::emitted::check_emitted;
use super::graph::StageNode;
use super::keys::retype;
use super::layers::{to_arrow, to_error};
use super::lookup::StoredTable;
use super::operators::{JoinPlan, Side};
use crate::error::{Error, Result};
use crate::files::{Spill, SpillWriter};
use crate::parquet::Cancel;

type Row<'r> = (&'r Arc<RecordBatch>, usize);

/// Writes pairs of rows, with their values or without.
pub(super) struct PairWriter<'a> {
    stage: &'a StageNode,
    join: &'a JoinPlan,
    schema: SchemaRef,
    with_values: bool,
    cancel: Cancel,
    /// A row of nulls of each side.
    nulls: [Arc<RecordBatch>; 2],
    /// Batches and their identities alone, where no values are written.
    identities: Vec<(Arc<RecordBatch>, Arc<RecordBatch>)>,
    picked: [Picker; 2],
    sides: Vec<i8>,
    spill: SpillWriter,
}

impl<'a> PairWriter<'a> {
    /// For the content of `stage`; rows of the sides have these schemas.
    pub(super) fn new(
        stage: &'a StageNode,
        join: &'a JoinPlan,
        content: &StoredTable,
        sides: [&SchemaRef; 2],
        with_values: bool,
        memory_bytes: usize,
    ) -> Result<Self, ArrowError> {
        let schema = Self::schema(content, with_values);
        let nulls = |side: &SchemaRef| {
            let visible = if with_values { 3 } else { 2 };
            let schema = side.project(&(0..visible).collect::<Vec<_>>())?;
            let columns = schema
                .fields()
                .iter()
                .map(|field| new_null_array(field.data_type(), 1))
                .collect();
            RecordBatch::try_new(Arc::new(schema), columns).map(Arc::new)
        };
        let nulls = [nulls(sides[0])?, nulls(sides[1])?];
        Ok(Self {
            stage,
            join,
            spill: SpillWriter::new(&schema, memory_bytes),
            schema,
            with_values,
            cancel: content.cancel.clone(),
            nulls,
            identities: Vec::new(),
            picked: [Picker::default(), Picker::default()],
            sides: Vec::new(),
        })
    }

    /// The columns that it writes.
    pub(super) fn schema(content: &StoredTable, with_values: bool) -> SchemaRef {
        let all = &content.shape.schema;
        let fields = all.fields().iter().take(if with_values { 3 } else { 2 });
        Arc::new(arrow_schema::Schema::new(
            fields.cloned().collect::<Vec<_>>(),
        ))
    }

    /// Adds a pair, or a row that is alone.
    pub(super) fn pair(
        &mut self,
        left: Option<Row<'_>>,
        right: Option<Row<'_>>,
    ) -> Result<(), ArrowError> {
        let side = match (&left, &right) {
            (Some(_), Some(_)) => Side::Both,
            (_, None) => Side::Left,
            (None, _) => Side::Right,
        };
        for (at, row) in [left, right].into_iter().enumerate() {
            match row {
                None => self.picked[at].pick(&self.nulls[at], 0),
                Some((batch, row)) if self.with_values || batch.num_columns() == 2 => {
                    self.picked[at].pick(batch, row);
                }
                Some((batch, row)) => {
                    let known = self
                        .identities
                        .iter()
                        .rposition(|(b, _)| Arc::ptr_eq(b, batch));
                    let known = if let Some(known) = known {
                        known
                    } else {
                        let identities = Arc::new(batch.project(&[0, 1])?);
                        self.identities.push((Arc::clone(batch), identities));
                        self.identities.len() - 1
                    };
                    self.picked[at].pick(&self.identities[known].1, row);
                }
            }
        }
        self.sides.push(side as i8);
        if self.picked.iter().any(Picker::is_full) {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ArrowError> {
        self.cancel.check().map_err(to_arrow)?;
        self.identities.clear();
        let sides = Int8Array::from(std::mem::take(&mut self.sides));
        let [left, right] = &mut self.picked;
        let mut first = 0;
        for (left, right) in aligned(left.take()?, right.take()?) {
            let sides = sides.slice(first, left.num_rows());
            first += left.num_rows();
            let batch = self.batch(&left, &right, sides).map_err(to_arrow)?;
            self.spill.push(batch)?;
        }
        Ok(())
    }

    fn batch(
        &self,
        left: &RecordBatch,
        right: &RecordBatch,
        sides: Int8Array,
    ) -> Result<RecordBatch> {
        let is_left = sides.values().iter().map(|side| *side != Side::Right as i8);
        let is_left = BooleanArray::from(is_left.collect::<Vec<bool>>());
        let key = zip(&is_left, left.column(0), right.column(0)).map_err(to_error)?;
        let DataType::Struct(fields) = self.schema.field(1).data_type() else {
            return Err(Error::other(
                "internal error: the source key of a join is not a struct",
            ));
        };
        let parts: [&ArrayRef; 2] = [left.column(1), right.column(1)];
        let mut columns = parts
            .iter()
            .zip(fields)
            .map(|(part, field)| retype(part, field.data_type()))
            .collect::<Result<Vec<_>>>()?;
        columns.push(Arc::new(sides));
        let source = StructArray::try_new(fields.clone(), columns, None).map_err(to_error)?;
        let source: ArrayRef = Arc::new(source);
        if !self.with_values {
            let key = retype(&key, self.schema.field(0).data_type())?;
            return RecordBatch::try_new(Arc::clone(&self.schema), vec![key, source])
                .map_err(to_error);
        }
        let value = self.join.value_of(left.column(2), right.column(2))?;
        let emitted = [
            ("target_key", key, true),
            ("source_key", source, true),
            ("value", value, true),
        ];
        let emitted = RecordBatch::try_from_iter_with_nullable(emitted).map_err(to_error)?;
        check_emitted(&emitted, self.stage, &self.schema)
    }

    /// The pairs, in no order.
    pub(super) fn finish(mut self) -> Result<Spill, ArrowError> {
        self.flush()?;
        self.spill.finish()
    }
}
