//! Deletes from many files: what a commit writes stays short, and no file is forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use pds::table::actions::{Append, MergedTombstones, NewTable, Replace, create};
use pds::table::format::{DataFile, TableManifest};
use pds::table::{
    FileRef, OpenedColumns, Predicate, SnapshotFile, Table, Versioned, all_files, delete,
};
use pds::testing::{faulty_memory, test_store};
use pds::versions::commit::{DEFAULT_TIMEOUT, commit};

const FILES: u64 = 100_000;
const FILES_OF_COMMIT: u64 = 4000;

/// The entry of a file with keys from 0 to 999,999; nobody reads the file itself.
fn data_file(number: u64) -> DataFile {
    DataFile {
        path: format!("data/2026/11/21/08/b00000001-{number:032x}.parquet"),
        size_bytes: 1 << 20,
        footer_size: 4096,
        row_group_count: 1,
        total_rows: 100_000,
        min: BTreeMap::from([(1, 0.into())]),
        max: BTreeMap::from([(1, 999_999.into())]),
        null_counts: BTreeMap::from([(1, 0)]),
        columns: None,
        constants: BTreeMap::new(),
        checksum: None,
    }
}

async fn append(table: &Table, files: impl Iterator<Item = DataFile>) {
    let change = Append {
        files: files.collect(),
        base_version: table.newest().await.unwrap().manifest.version,
        idempotency_key: None,
    };
    commit(table, &change, DEFAULT_TIMEOUT).await.unwrap();
}

async fn newest(table: &Table) -> Arc<TableManifest> {
    table.newest().await.unwrap().manifest
}

fn target_count(manifest: &TableManifest) -> u64 {
    let entry = &manifest.tombstones[0];
    let positions = entry.positions.values().map(|positions| positions.0.len());
    entry.files.len() as u64 + positions.sum::<u64>()
}

#[tokio::test]
async fn a_delete_from_many_files_keeps_commits_short() {
    let table = Table::new(test_store(&faulty_memory(), true), "lake/events").unwrap();
    let schema = Schema::new(vec![Field::new("id", DataType::Int64, true)]);
    let new_table = NewTable::new(&Arc::new(schema), &["id".to_owned()], &[]).unwrap();
    create(&table, new_table).await.unwrap();
    for begin in (0..FILES).step_by(4000) {
        append(&table, (begin..begin + FILES_OF_COMMIT).map(data_file)).await;
    }
    let predicate: Predicate = "id >= 10 AND id <= 20".into();
    delete(
        &table,
        &predicate,
        OpenedColumns::default(),
        DEFAULT_TIMEOUT,
    )
    .await
    .unwrap();
    assert_eq!(target_count(&*newest(&table).await), FILES);
    // Files with targets move to segments, and from one to another.
    for number in FILES..FILES + 600 {
        append(&table, [data_file(number)].into_iter()).await;
        let manifest = newest(&table).await;
        assert_eq!(target_count(&manifest), FILES);
        let bytes = manifest.to_bytes().len();
        assert!(bytes <= 100_000, "{bytes} bytes");
    }
    let manifest = newest(&table).await;
    let files = all_files(&table, &manifest).await.unwrap();
    let every_hundredth = files.iter().step_by(100).map(SnapshotFile::to_file_ref);
    let removed: Vec<FileRef> = every_hundredth.collect();
    let replace = Replace {
        merged: MergedTombstones::default(),
        operation: "compact",
        applied_tombstones: vec![manifest.tombstones[0].path.clone()],
        removed,
        added: Vec::new(),
        base_version: manifest.version,
    };
    commit(&table, &replace, DEFAULT_TIMEOUT).await.unwrap();
    let manifest = newest(&table).await;
    assert_eq!(target_count(&manifest), FILES - FILES / 100);
    assert_eq!(manifest.file_count(), FILES + 600 - (FILES + 600) / 100);
}
