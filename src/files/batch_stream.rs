//! A stream of record batches and the task that produces them.
//!
//! A stream ends only where its task says so: one whose task was dropped, or that failed, fails at every later call.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Whether the task has sent all of them.
    is_complete: Arc<AtomicBool>,
    /// The text of the error that was returned.
    failure: Option<String>,
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
        let is_complete = Arc::new(AtomicBool::new(false));
        let task_is_complete = Arc::clone(&is_complete);
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
            match result {
                // The channel is closed after this.
                Ok(()) => task_is_complete.store(true, Ordering::Release),
                Err(error) => {
                    // Sending fails only after the consumer was dropped.
                    let _ = sender.send(Err(error)).await;
                }
            }
        });
        Self {
            schema,
            batches,
            is_complete,
            failure: None,
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
            if stream.failure.is_some() {
                return stream.after(None);
            }
            let received = stream.batches.blocking_recv();
            stream.after(received)
        });
        let batches = received.map(|b| b.map_err(|e| ArrowError::ExternalError(Box::new(e))));
        RecordBatchIterator::new(batches, schema)
    }

    /// The next batch or the error; None at the end. After an error, every later call returns one.
    pub async fn next(&mut self) -> Option<Result<RecordBatch>> {
        if self.failure.is_some() {
            return self.after(None);
        }
        let received = self.batches.recv().await;
        self.after(received)
    }

    /// What a call returns that received this.
    fn after(&mut self, received: Option<Result<RecordBatch>>) -> Option<Result<RecordBatch>> {
        if let Some(failure) = &self.failure {
            let message = format!("rows cannot be read on after an error, scan anew: {failure}");
            return Some(Err(Error::invalid(message)));
        }
        let received = match received {
            None if !self.is_complete.load(Ordering::Acquire) => Err(Error::other(
                "the task that reads the rows was stopped before their end",
            )),
            received => received?,
        };
        self.failure = received.as_ref().err().map(Error::to_string);
        Some(received)
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Int64Array;
    use arrow_schema::{DataType, Field, Schema};
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// Sends a batch, and ends with `last` or waits for ever.
    fn stream(last: Option<Result<()>>) -> BatchStream {
        let fields = vec![Field::new("n", DataType::Int64, false)];
        let schema = Arc::new(Schema::new(fields));
        let column = Arc::new(Int64Array::from(vec![1, 2]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap();
        BatchStream::spawn(schema, &Cancel::default(), |sender| async move {
            sender.send(Ok(batch)).await.unwrap();
            match last {
                Some(last) => last,
                None => std::future::pending().await,
            }
        })
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    /// Whether each of four reads was a batch, an error or the end.
    async fn read(mut batches: BatchStream) -> Vec<Option<bool>> {
        let mut outcomes = Vec::new();
        for _ in 0..4 {
            outcomes.push(batches.next().await.map(|batch| batch.is_ok()));
        }
        outcomes
    }

    #[test]
    fn an_end_stays_an_end_and_a_failure_a_failure() {
        let ended = runtime().block_on(async { read(stream(Some(Ok(())))).await });
        assert_eq!(ended, [Some(true), None, None, None]);
        let broken = || Some(Err(Error::other("broken")));
        let failed = runtime().block_on(async { read(stream(broken())).await });
        assert_eq!(failed, [Some(true), Some(false), Some(false), Some(false)]);
    }

    #[test]
    fn a_reader_fails_as_its_stream_does() {
        let runtime = Builder::new_multi_thread().build().unwrap();
        let batches = runtime.block_on(async { stream(Some(Err(Error::other("broken")))) });
        let outcomes: Vec<_> = batches.into_reader().take(4).collect();
        let is_ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
        assert_eq!(is_ok, [true, false, false, false]);
        let later = outcomes[2].as_ref().unwrap_err().to_string();
        assert!(later.contains("scan anew: broken"), "{later}");
    }

    #[test]
    fn a_task_that_was_stopped_is_no_end() {
        let runtime = runtime();
        let batches = runtime.block_on(async {
            let mut batches = stream(None);
            assert!(batches.next().await.unwrap().is_ok());
            batches
        });
        drop(runtime);
        let error = batches.into_reader().next().unwrap().unwrap_err();
        assert!(error.to_string().contains("was stopped"), "{error}");
    }
}
