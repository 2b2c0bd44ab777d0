//! Rows of one group that are read more than once: in memory while they are few, else in a spill.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};

use super::cursor::Picker;
use crate::files::{Spill, SpillWriter};

/// The most rows, and batches that they are of, in memory. Streams hold a batch themselves.
const MAX_ROWS: usize = 4096;
const MAX_BATCHES: usize = 2;

/// A list of rows.
pub(super) struct RowList {
    schema: SchemaRef,
    memory_bytes: usize,
    rows: Vec<(Arc<RecordBatch>, usize)>,
    batches: usize,
    /// Where they are many: the rows before those that the picker has.
    writer: Option<(SpillWriter, Picker)>,
    spill: Option<Spill>,
}

impl RowList {
    pub(super) fn new(schema: &SchemaRef, memory_bytes: usize) -> Self {
        Self {
            schema: Arc::clone(schema),
            memory_bytes,
            rows: Vec::new(),
            batches: 0,
            writer: None,
            spill: None,
        }
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.batches = 0;
        (self.writer, self.spill) = (None, None);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.spill.is_none() && self.writer.is_none()
    }

    /// Adds a row.
    pub(super) fn push(
        &mut self,
        (batch, row): (&Arc<RecordBatch>, usize),
    ) -> Result<(), ArrowError> {
        if self.writer.is_none() {
            let is_last = |last: &(Arc<RecordBatch>, usize)| Arc::ptr_eq(&last.0, batch);
            if !self.rows.last().is_some_and(is_last) {
                self.batches += 1;
            }
            if self.rows.len() < MAX_ROWS && self.batches <= MAX_BATCHES {
                self.rows.push((Arc::clone(batch), row));
                return Ok(());
            }
            let mut writer = (
                SpillWriter::new(&self.schema, self.memory_bytes),
                Picker::default(),
            );
            for (batch, row) in self.rows.drain(..) {
                write(&mut writer, &batch, row)?;
            }
            self.writer = Some(writer);
        }
        match &mut self.writer {
            Some(writer) => write(writer, batch, row),
            None => Ok(()),
        }
    }

    /// Ends the list, so that it can be read.
    pub(super) fn finish(&mut self) -> Result<(), ArrowError> {
        if let Some((mut writer, mut picker)) = self.writer.take() {
            picker
                .take()?
                .into_iter()
                .try_for_each(|b| writer.push(b))?;
            self.spill = Some(writer.finish()?);
        }
        Ok(())
    }

    /// Calls a function for each row, in their order.
    pub(super) fn for_each(
        &self,
        mut function: impl FnMut((&Arc<RecordBatch>, usize)) -> Result<(), ArrowError>,
    ) -> Result<(), ArrowError> {
        for (batch, row) in &self.rows {
            function((batch, *row))?;
        }
        if let Some(spill) = &self.spill {
            for batch in spill.read()? {
                let batch = Arc::new(batch?);
                for row in 0..batch.num_rows() {
                    function((&batch, row))?;
                }
            }
        }
        Ok(())
    }
}

fn write(
    (writer, picker): &mut (SpillWriter, Picker),
    batch: &Arc<RecordBatch>,
    row: usize,
) -> Result<(), ArrowError> {
    picker.pick(batch, row);
    if picker.is_full() {
        picker
            .take()?
            .into_iter()
            .try_for_each(|b| writer.push(b))?;
    }
    Ok(())
}
