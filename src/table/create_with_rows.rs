//! Creates a table with rows: its first version lists their files, so a reader sees all of them or no table.
//!
//! Crash points: before the manifest is created, files of base version 0 are left, which a vacuum of a later table
//! removes; after it, the table is there. Two writers: one creates the table, the other fails and removes its files. A drop
//! of what was there before may take the files of a table that is about to be created; so they are listed once it is.

use arrow_array::RecordBatchReader;
use serde_json::json;

use super::actions::NewTable;
use super::format::{CommitOperation, DataFile, TableManifest};
use super::write::upload;
use super::{Snapshot, Table, TableColumns, TableWriteOptions, names};
use crate::error::{Error, ErrorKind, Result};
use crate::files::align_to_schema;
use crate::versions::{
    Transaction, check_creatable, check_idempotency_key, create_checked, is_not_created,
    list_objects, remove,
};

/// Creates a table with the rows of `input`. Returns its first snapshot and the files. Errors are those of
/// [`super::actions::create`] and [`super::write()`]; after one there is no table, unless the outcome is unknown.
pub async fn create_with_rows(
    table: &Table,
    new_table: NewTable,
    input: Box<dyn RecordBatchReader + Send>,
    options: &TableWriteOptions,
) -> Result<(Snapshot, Vec<DataFile>)> {
    check_idempotency_key(options.idempotency_key.as_deref())?;
    new_table.check_names()?;
    let draft = new_table.draft();
    // Before the rows are uploaded.
    check_creatable(table).await?;
    let aligned = align_to_schema(input, &TableColumns::from_manifest(&draft)?.schema)?;
    let files = upload(table, &draft, aligned, options).await?;
    let created = create_checked(table, |commit_id, created_at| {
        let manifest = new_table.into_manifest(commit_id, created_at);
        with_rows(manifest, &files, options.idempotency_key.as_deref())
    });
    match Box::pin(created).await {
        Ok(snapshot) => {
            check_present(table, &files).await?;
            Ok((snapshot, files))
        }
        Err(e) => {
            if is_not_created(&e) {
                let paths: Vec<String> = files.iter().map(|f| f.path.clone()).collect();
                remove(table, &paths).await;
            }
            Err(e)
        }
    }
}

/// Checks that the files of a table that was just created are there: another process may have dropped a table of this place
/// between the upload and the creation, and all of its objects. The table stays: others may have committed to it. Where the
/// files cannot be listed, the creation stands, and a read notices what is missing.
async fn check_present(table: &Table, files: &[DataFile]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let listed = match list_objects(table, names::DATA).await {
        Ok(listed) => listed,
        Err(e) => {
            log::warn!(
                "the files of the new table {:?} were not listed: {e}",
                table.root()
            );
            return Ok(());
        }
    };
    let Some(lost) = files.iter().find(|file| !listed.contains_key(&file.path)) else {
        return Ok(());
    };
    let message = format!(
        "another process dropped what was at {:?} while the rows of the new table were written, and {} with it; drop the \
         new table and write again",
        table.root(),
        lost.path
    );
    Err(Error::new(ErrorKind::PartCorrupted, message).with_path(table.root()))
}

/// The first version, with files.
fn with_rows(
    mut manifest: TableManifest,
    files: &[DataFile],
    idempotency_key: Option<&str>,
) -> TableManifest {
    let total = |count_of: fn(&DataFile) -> u64| files.iter().map(count_of).sum::<u64>();
    manifest.operation = CommitOperation::new(
        "create",
        [
            ("files", json!(files.len())),
            ("rows", json!(total(|f| f.total_rows))),
            ("bytes", json!(total(|f| f.size_bytes))),
        ],
    );
    manifest.added_at = (!files.is_empty()).then_some(manifest.version);
    if let Some(key) = idempotency_key {
        let transaction = Transaction {
            version: manifest.version,
            commit_id: manifest.commit_id.clone(),
            created_at: manifest.created_at,
        };
        manifest.transactions.insert(key.to_owned(), transaction);
    }
    manifest.data_files = files.to_vec();
    manifest
}
