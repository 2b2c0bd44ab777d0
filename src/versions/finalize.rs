//! What every commit sets in its manifest, whatever it changes.

use super::commit_id::{CommitId, TimestampMicros};
use super::folder::Folder;
use super::manifest::{CommitOperation, RECENT_COMMITS, Transaction, Versioned};

/// Sets the fields that every commit sets: version, commit id, time, operation and recent commits.
pub(super) fn finalize_manifest<M: Versioned>(
    folder: &Folder<M>,
    base: &M,
    next: &mut M,
    operation: CommitOperation,
    commit_id: &CommitId,
) {
    let base = base.header();
    if base.format < M::FORMAT {
        next.upgrade();
    }
    let now = TimestampMicros::new(folder.store.clock().now());
    let older = base.recent_commits.iter().take(RECENT_COMMITS - 1);
    let recent_commits = [base.commit_id].into_iter().chain(older);
    let next = next.header_mut();
    *next.format = M::FORMAT;
    *next.version = base.version + 1;
    *next.previous = Some(base.version);
    next.commit_id.clone_from(commit_id);
    *next.created_at = now.max(base.created_at.next_millisecond());
    *next.operation = operation;
    *next.recent_commits = recent_commits.cloned().collect();
}

/// Records the commit under its idempotency key.
pub(super) fn record_transaction<M: Versioned>(next: &mut M, key: Option<&str>) {
    if let Some(key) = key {
        let header = next.header();
        let transaction = Transaction {
            version: header.version,
            commit_id: header.commit_id.clone(),
            created_at: header.created_at,
        };
        let transactions = next.header_mut().transactions;
        transactions.insert(key.to_owned(), transaction);
    }
}
