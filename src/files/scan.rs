//! A stream of record batches and the task that produces them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::error::{Error, Result};
use crate::parquet::{Cancel, CancelOnDrop, panic_text};

/// Number of decoded batches that wait for the consumer.
const BATCHES_AHEAD: usize = 2;

/// A stream of record batches; dropping it ends the task that produces them.
#[derive(Debug)]
pub struct BatchStream {
    /// The schema of the batches.
    pub schema: SchemaRef,
    batches: mpsc::Receiver<Result<RecordBatch>>,
    _work: JoinSet<()>,
    _cancel: CancelOnDrop,
}

/// Sends batches to a [`BatchStream`].
pub(crate) type BatchSender = mpsc::Sender<Result<RecordBatch>>;

impl BatchStream {
    /// Spawns `work` and streams what it sends; its error, or a panic as an error, comes last.
    pub(crate) fn spawn<F>(
        schema: SchemaRef,
        cancel: &Cancel,
        work: impl FnOnce(BatchSender) -> F,
    ) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Self::spawn_ahead(schema, cancel, BATCHES_AHEAD, work)
    }

    /// As [`Self::spawn`]; `ahead` batches wait for the consumer, and one more to be sent.
    pub(crate) fn spawn_ahead<F>(
        schema: SchemaRef,
        cancel: &Cancel,
        ahead: usize,
        work: impl FnOnce(BatchSender) -> F,
    ) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (sender, batches) = mpsc::channel(ahead);
        let future = work(sender.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // After a panic, a stream that only ended would look complete.
            let outcome = AssertUnwindSafe(future).catch_unwind().await;
            let result = outcome.unwrap_or_else(|panic| {
                Err(Error::other(format!(
                    "reader task panicked: {}",
                    panic_text(panic.as_ref())
                )))
            });
            if let Err(error) = result {
                // Sending fails only after the consumer was dropped.
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

    /// The stream as a reader that blocks, for a thread that may, such as a writer's.
    pub(crate) fn into_reader(self) -> impl RecordBatchReader + Send {
        let schema = Arc::clone(&self.schema);
        let mut stream = self;
        let received = std::iter::from_fn(move || {
            // Captures the whole stream: dropping the rest of it would end the task.
            let stream = &mut stream;
            stream.batches.blocking_recv()
        });
        let batches = received.map(|b| b.map_err(|e| ArrowError::ExternalError(Box::new(e))));
        RecordBatchIterator::new(batches, schema)
    }

    /// The next batch or the error; None at the end.
    pub async fn next(&mut self) -> Option<Result<RecordBatch>> {
        self.batches.recv().await
    }
}
