//! The change that appends data files.
//!
//! An append applies to every snapshot, unless a restore has brought older columns back since it started.

use serde_json::json;

use crate::error::Result;
use crate::table::format::{CommitOperation, DataFile, TableManifest};
use crate::versions::Change;
use crate::versions::GroupChange;

/// Adds uploaded data files.
#[derive(Debug, Clone)]
pub struct Append {
    /// The files to add.
    pub files: Vec<DataFile>,
    /// The version at which the writer of the files started.
    pub base_version: u64,
    /// A second append with the same key adds nothing.
    pub idempotency_key: Option<String>,
}

impl GroupChange<TableManifest> for Append {
    /// Refuses a snapshot whose columns may not fit the files.
    fn check(&self, base: &TableManifest) -> Result<()> {
        base.schema_conflict_since(self.base_version)
            .map_or(Ok(()), Err)
    }

    fn apply_all(appends: &[&Self], base: &TableManifest) -> (TableManifest, CommitOperation) {
        let files = || appends.iter().flat_map(|append| &append.files);
        let total =
            |count_of: fn(&DataFile) -> u64| files().map(count_of).fold(0, u64::saturating_add);
        let mut next = base.clone();
        next.data_files.extend(files().cloned());
        if files().next().is_some() {
            next.added_at = Some(base.version + 1);
        }
        let mut operation = CommitOperation::new(
            "append",
            [
                ("files", json!(files().count())),
                ("rows", json!(total(|f| f.total_rows))),
                ("bytes", json!(total(|f| f.size_bytes))),
            ],
        );
        if appends.len() > 1 {
            let name = "appends".to_owned();
            operation.details.insert(name, json!(appends.len()));
        }
        (next, operation)
    }
}

impl Change<TableManifest> for Append {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        self.check(base)?;
        Ok(Self::apply_all(&[self], base))
    }

    fn base_version(&self) -> Option<u64> {
        Some(self.base_version)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use bytes::Bytes;
    use futures::FutureExt;
    use object_store::PutMode;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::error::Error;
    use crate::store::{Store, StoreBuilder};
    use crate::table::actions::{NewTable, create};
    use crate::table::format::TableSchema;
    use crate::table::{Committed, Snapshot, Staged, Table};
    use crate::testing::{faulty_memory, test_store};
    use crate::versions::{Ancestor, CommitError, CommitOutcome, commit_batched};

    const TIMEOUT: Duration = Duration::from_mins(1);

    type Commit = Pin<Box<dyn Future<Output = CommitOutcome<Committed>> + Send>>;

    async fn create_table(path: &str) -> (Table, Snapshot) {
        let builder = StoreBuilder::parse("memory://", &BTreeMap::new());
        create_in(builder.unwrap().build().unwrap(), path).await
    }

    async fn create_in(store: Store, path: &str) -> (Table, Snapshot) {
        let table = Table::new(store, path).unwrap();
        let new_table = NewTable {
            schema: TableSchema::default(),
            arrow_schema: Bytes::new().into(),
            key: Vec::new(),
            sort_by: Vec::new(),
            exports: BTreeSet::new(),
        };
        let newest = create(&table, new_table).await.unwrap();
        (table, newest)
    }

    fn empty_append(newest: &Snapshot) -> (Append, Ancestor) {
        let append = Append {
            files: Vec::new(),
            base_version: 1,
            idempotency_key: None,
        };
        (append, Ancestor::of(&*newest.manifest))
    }

    fn runtime() -> Runtime {
        let mut builder = Builder::new_current_thread();
        builder.enable_time().build().unwrap()
    }

    #[test]
    fn an_append_whose_commit_does_not_begin_is_not_committed() {
        let runtime = runtime();
        let (table, newest) = runtime.block_on(create_table("no_thread"));
        let (change, staged) = (empty_append(&newest), Staged::new(&table));
        let commit = commit_batched(&table, change, staged, Some(newest), TIMEOUT);
        let mut commit = Box::pin(commit);
        let entered = runtime.enter();
        assert!((&mut commit).now_or_never().is_none());
        drop(entered);
        // The task of the commit ends before it began.
        drop(runtime);
        let error = commit.now_or_never().unwrap().unwrap_err();
        assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
        assert!(Error::from(error).message().contains("no thread"));
    }

    #[test]
    fn a_cancelled_append_that_waits_for_another_leaves_no_files() {
        let runtime = runtime();
        let (table, newest) = runtime.block_on(create_table("cancelled"));
        let paths = ["data/leading", "data/waiting"];
        let mut commits = Vec::new();
        for path in paths {
            let location = table.path(path);
            let put = table
                .store()
                .put(&location, Bytes::new(), PutMode::Overwrite);
            runtime.block_on(put).unwrap();
            let mut staged = Staged::new(&table);
            staged.add([path.to_owned()]);
            let change = empty_append(&newest);
            let snapshot = Some(newest.clone());
            commits.push(Box::pin(commit_batched(
                &table, change, staged, snapshot, TIMEOUT,
            )));
        }
        let entered = runtime.enter();
        for commit in &mut commits {
            assert!(commit.now_or_never().is_none());
        }
        drop(commits);
        drop(entered);
        runtime.block_on(async {
            let [leading, waiting] = paths.map(|path| table.path(path));
            while table.store().is_file(&waiting).await.unwrap() {
                tokio::task::yield_now().await;
            }
            // The other one is committed all the same: its task had it already.
            while table.newest().await.unwrap().manifest.version == 1 {
                tokio::task::yield_now().await;
            }
            assert!(table.store().is_file(&leading).await.unwrap());
        });
    }

    /// An append is committed alone, then one that is refused together with one that is not. Gives the number of requests
    /// for these, and whether the last one had its reply before the answer to `request`.
    fn commit_beside_refused(request: usize) -> (usize, bool) {
        let (runtime, objects) = (runtime(), faulty_memory());
        let create_at = |path| runtime.block_on(create_in(test_store(&objects, true), path));
        let (table, newest) = create_at("t");
        let (_, of_other_table) = create_at("other");
        let begin = |begun_with: &Snapshot, path: &str| -> Commit {
            let (table, change) = (table.clone(), empty_append(begun_with));
            let mut staged = Staged::new(&table);
            staged.add([path.to_owned()]);
            let work = async move { commit_batched(&table, change, staged, None, TIMEOUT).await };
            let mut commit: Commit = Box::pin(work);
            assert!(commit.as_mut().now_or_never().is_none());
            commit
        };
        let entered = runtime.enter();
        let _first = begin(&newest, "data/first");
        let refused = begin(&of_other_table, "data/refused");
        let mut accepted = begin(&newest, "data/accepted");
        drop(entered);
        let had_reply = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&had_reply);
        objects.interrupt(request, move || {
            let reply = accepted.as_mut().now_or_never();
            noted.store(reply.is_some_and(|reply| reply.is_ok()), Ordering::SeqCst);
        });
        runtime.block_on(refused).unwrap_err();
        (objects.requests(), had_reply.load(Ordering::SeqCst))
    }

    #[test]
    fn an_append_does_not_wait_until_the_files_of_another_are_removed() {
        let (requests, _) = commit_beside_refused(usize::MAX);
        // The last request is the removal.
        let (_, had_reply) = commit_beside_refused(requests - 1);
        assert!(had_reply);
    }
}
