//! Counting the rows of a stream for the progress of the operation that writes them.

use arrow_array::{RecordBatchIterator, RecordBatchReader};

use crate::sync::progress;

/// The same batches; their rows count as done when they are read. Before the first batch the operation is in the phase
/// `first_phase`, and then in the phase `write`.
pub(crate) fn count_rows(
    input: Box<dyn RecordBatchReader + Send>,
    first_phase: &str,
) -> Box<dyn RecordBatchReader + Send> {
    let Some(progress) = progress::current() else {
        return input;
    };
    progress.begin_phase(first_phase);
    let schema = input.schema();
    let batches = input.inspect(move |batch| {
        if let Ok(batch) = batch {
            progress.begin_phase("write");
            progress.add_rows(batch.num_rows() as u64);
        }
    });
    Box::new(RecordBatchIterator::new(batches, schema))
}
