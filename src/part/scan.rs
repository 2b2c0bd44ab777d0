//! A stream of batches and the work behind it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::parquet::{Cancel, CancelOnDrop, panic_text};

/// Decoded batches that wait to be taken.
const BATCHES_AHEAD: usize = 2;

/// A stream of batches; dropping it ends the work behind it.
#[derive(Debug)]
pub struct BatchStream {
    /// The schema as it was written, projected.
    pub schema: SchemaRef,
    batches: mpsc::Receiver<Result<RecordBatch>>,
    _work: JoinSet<()>,
    _cancel: CancelOnDrop,
}

/// Where the work's batches go.
pub(crate) type BatchSender = mpsc::Sender<Result<RecordBatch>>;

impl BatchStream {
    /// A stream of what `work` sends, and of its error.
    pub(crate) fn spawn<F>(
        schema: SchemaRef,
        cancel: &Cancel,
        work: impl FnOnce(BatchSender) -> F,
    ) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let future = work(sender.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // A stream that only stopped would look as if that was all.
            let outcome = AssertUnwindSafe(future).catch_unwind().await;
            let result = outcome.unwrap_or_else(|panic| {
                Err(Error::other(format!(
                    "the read stopped: {}",
                    panic_text(panic.as_ref())
                )))
            });
            if let Err(error) = result {
                // The consumer has gone if nobody takes the error.
                let _ = sender.send(Err(error)).await;
            }
        });
        Self {
            schema,
            batches,
            _work: tasks,
            _cancel: cancel.guard(),
        }
    }

    /// The stream for a thread that may wait, as a writer's is.
    pub(crate) fn into_reader(self) -> impl RecordBatchReader + Send {
        let schema = Arc::clone(&self.schema);
        let mut stream = self;
        let received = std::iter::from_fn(move || {
            // All of it, since the work behind the stream ends with it.
            let stream = &mut stream;
            stream.batches.blocking_recv()
        });
        let batches = received.map(|b| b.map_err(|e| ArrowError::ExternalError(Box::new(e))));
        RecordBatchIterator::new(batches, schema)
    }

    /// The next batch; None at the end.
    pub async fn next(&mut self) -> Option<Result<RecordBatch>> {
        self.batches.recv().await
    }
}
