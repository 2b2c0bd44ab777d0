//! What an update asks of an engine.

use std::fmt::Debug;

use crate::error::Result;

/// Runs tasks.
pub trait Engine: Debug + Send + Sync {
    /// The most bytes of work of a stage that is computed in the process of the update.
    fn local_bytes(&self) -> u64;

    /// About the bytes of work of a task.
    fn task_bytes(&self) -> u64;

    /// Calls [`super::run_task`] for the tasks of a job of a stage, each with its number, and returns a result of each, in
    /// their order, or its error.
    fn run(&self, stage: &str, job: Vec<u8>, tasks: usize) -> Result<Vec<Result<Vec<u8>>>>;
}
