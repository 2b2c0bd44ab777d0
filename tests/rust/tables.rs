//! Tables on real stores: local files and memory; what is refused, and by which name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use pds::ErrorKind;
use pds::clock::SystemClock;
use pds::store::metrics::Metrics;
use pds::store::{Capabilities, Store, StoreBuilder};
use pds::table::actions::{Append, Delete, MergedTombstones, NewTable, Replace, Restore, create};
use pds::table::format::{CommitId, DataFile, FileChecksum, Segment, TableSchema};
use pds::table::{
    FileRef, ListingLimits, SnapshotFile, Table, Versioned, all_files, data_file_name,
};
use pds::testing::{faulty_memory, test_store};
use pds::versions::commit::{DEFAULT_TIMEOUT, commit, was_committed};
use pds::versions::vacuum::vacuum;

pub(crate) fn new_table() -> NewTable {
    NewTable {
        schema: TableSchema::default(),
        arrow_schema: Bytes::new().into(),
        key: Vec::new(),
        sort_by: Vec::new(),
        exports: std::collections::BTreeSet::new(),
    }
}

pub(crate) async fn upload(table: &Table, base: u64) -> DataFile {
    let clock = table.store().clock();
    let path = data_file_name(clock.now(), base, clock.new_id());
    let (location, bytes) = (table.path(&path), Bytes::from_static(b"rows"));
    let put = table.store().put(&location, bytes, PutMode::Overwrite);
    put.await.unwrap();
    DataFile {
        path,
        size_bytes: 4,
        footer_size: 0,
        row_group_count: 1,
        total_rows: 1,
        min: BTreeMap::new(),
        max: BTreeMap::new(),
        null_counts: BTreeMap::new(),
        columns: None,
        constants: BTreeMap::new(),
        checksum: None,
    }
}

pub(crate) fn append(file: DataFile, base_version: u64) -> Append {
    Append {
        files: vec![file],
        base_version,
        idempotency_key: None,
    }
}

fn open(url: &str) -> Store {
    StoreBuilder::parse(url, &BTreeMap::new())
        .unwrap()
        .build()
        .unwrap()
}

/// Memory of its own.
fn memory() -> Store {
    test_store(&faulty_memory(), true)
}

pub(crate) async fn create_table(store: Store) -> Table {
    let table = Table::new(store, "lake/events").unwrap();
    create(&table, new_table()).await.unwrap();
    table
}

/// Eight writers at once: every append lands, none twice.
async fn append_concurrently(store: Store) {
    const WRITERS: usize = 8;
    const APPENDS: usize = 10;
    let table = create_table(store).await;
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let table = table.clone();
        writers.spawn(async move {
            let mut versions = Vec::new();
            for _ in 0..APPENDS {
                let base = table.newest().await.unwrap().manifest.version;
                let change = append(upload(&table, base).await, base);
                let committed = commit(&table, &change, DEFAULT_TIMEOUT).await.unwrap();
                versions.push((committed.version, committed.commit_id));
            }
            versions
        });
    }
    let all: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    let newest = table.newest().await.unwrap().manifest;
    assert_eq!(newest.version, (WRITERS * APPENDS) as u64 + 1);
    assert_eq!(newest.data_files.len(), WRITERS * APPENDS);
    for (version, commit_id) in all {
        assert_eq!(
            table.manifest_at(version).await.unwrap().commit_id,
            commit_id
        );
        let committed_version = was_committed(&table, &commit_id).await.unwrap();
        assert_eq!(committed_version, Some(version));
    }
    let unknown_commit = CommitId::new(7);
    assert_eq!(was_committed(&table, &unknown_commit).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_appends_all_commit_in_memory() {
    append_concurrently(memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_appends_all_commit_in_local_files() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    append_concurrently(open(&url)).await;
}

#[tokio::test]
async fn a_table_is_created_once() {
    let store = memory();
    let missing = Table::new(store.clone(), "lake/none").unwrap();
    assert_eq!(
        missing.newest().await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let table = create_table(store).await;
    let error = create(&table, new_table()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn an_idempotency_key_commits_once() {
    let table = create_table(memory()).await;
    let mut first = append(upload(&table, 1).await, 1);
    first.idempotency_key = Some("day-7".to_owned());
    let mut second = append(upload(&table, 1).await, 1);
    second.idempotency_key = Some("day-7".to_owned());
    let committed = commit(&table, &first, DEFAULT_TIMEOUT).await.unwrap();
    let replay = commit(&table, &second, DEFAULT_TIMEOUT).await.unwrap();
    assert!(replay.replayed && !committed.replayed);
    assert_eq!(
        (replay.version, replay.commit_id),
        (committed.version, committed.commit_id)
    );
    assert_eq!(
        table.newest().await.unwrap().manifest.data_files,
        first.files
    );
}

#[tokio::test]
async fn vacuum_keeps_retained_versions() {
    let table = create_table(memory()).await;
    let old = upload(&table, 1).await;
    let committed = commit(&table, &append(old.clone(), 1), DEFAULT_TIMEOUT).await;
    assert_eq!(committed.unwrap().version, 2);
    let change = Replace {
        merged: MergedTombstones::default(),
        operation: "compact",
        removed: vec![FileRef::inline(&old.path)],
        applied_tombstones: Vec::new(),
        added: vec![upload(&table, 2).await],
        base_version: 2,
    };
    commit(&table, &change, DEFAULT_TIMEOUT).await.unwrap();
    let late = append(upload(&table, 2).await, 2);

    let hour = Duration::from_hours(1);
    let retained = vacuum(&table, hour, false, DEFAULT_TIMEOUT).await.unwrap();
    assert_eq!((retained.oldest_version, retained.files.len()), (1, 0));

    let dry_run = vacuum(&table, Duration::ZERO, true, DEFAULT_TIMEOUT)
        .await
        .unwrap();
    let removed = vacuum(&table, Duration::ZERO, false, DEFAULT_TIMEOUT)
        .await
        .unwrap();
    assert_eq!(dry_run.files, removed.files);
    assert!(removed.files.contains(&old.path));
    let expired = table.manifest_at(2).await.unwrap_err();
    assert_eq!(expired.kind(), ErrorKind::VersionExpired);
    let refused = commit(&table, &late, DEFAULT_TIMEOUT).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TransactionExpired);
    let replace_error = commit(&table, &change, DEFAULT_TIMEOUT).await.unwrap_err();
    assert_eq!(replace_error.kind(), ErrorKind::TransactionExpired);
}

#[tokio::test]
async fn corrupt_pointers_and_outside_paths_are_rejected() {
    let cases: [(&str, ErrorKind); 5] = [
        (r#"{"format": 99}"#, ErrorKind::FormatNotSupported),
        ("{}", ErrorKind::ManifestCorrupted),
        ("\u{0}", ErrorKind::ManifestCorrupted),
        (
            r#"{"format":1,"version":18446744073709551615,"commit_id":"00000000000000000000000000000000","manifest":"manifest/v18446744073709551615.json","oldest_version":1}"#,
            ErrorKind::ManifestCorrupted,
        ),
        (
            r#"{"format":1,"version":1,"commit_id":"x","manifest":"manifest/v00000001.json","oldest_version":1}"#,
            ErrorKind::ManifestCorrupted,
        ),
    ];
    for (text, kind) in cases {
        let table = create_table(memory()).await;
        let path = table.path("_latest_manifest");
        let bytes = Bytes::from(text.to_owned());
        let put = table.store().put(&path, bytes, PutMode::Overwrite);
        put.await.unwrap();
        assert_eq!(table.newest().await.unwrap_err().kind(), kind, "{text}");
    }
    let table = create_table(memory()).await;
    let outside = append(
        DataFile {
            path: "../elsewhere".to_owned(),
            ..upload(&table, 1).await
        },
        1,
    );
    let refused = commit(&table, &outside, DEFAULT_TIMEOUT).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert_eq!(table.newest().await.unwrap().manifest.version, 1);
}

/// Memory that takes every write, whatever its condition.
#[derive(Debug)]
struct UnconditionalStore(InMemory);

impl fmt::Display for UnconditionalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("careless")
    }
}

#[async_trait]
impl ObjectStore for UnconditionalStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        _: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.0
            .put_opts(location, payload, PutOptions::default())
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.0.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_rejected() {
    let store = Store::from_object_store(
        "careless",
        Arc::new(UnconditionalStore(InMemory::new())),
        Capabilities::FULL,
        Arc::new(Metrics::default()),
        Arc::new(SystemClock),
    );
    let table = Table::new(store.clone(), "lake/events").unwrap();
    let refused = create(&table, new_table()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UnsafeStore);
    assert!(
        store.list("").await.unwrap().is_empty(),
        "nothing is left behind"
    );
}

/// What was planned before an older version came back may not meet the rows that came back.
#[tokio::test]
async fn a_restore_conflicts_with_changes_planned_before_it() {
    let table = create_table(memory()).await;
    let first = append(upload(&table, 1).await, 1);
    commit(&table, &first, DEFAULT_TIMEOUT).await.unwrap();
    let second = append(upload(&table, 2).await, 2);
    commit(&table, &second, DEFAULT_TIMEOUT).await.unwrap();
    let replace = Replace {
        removed: vec![FileRef::inline(&first.files[0].path)],
        applied_tombstones: Vec::new(),
        added: vec![upload(&table, 3).await],
        merged: MergedTombstones::default(),
        operation: "compact",
        base_version: 3,
    };
    let delete = Delete {
        filter: "true".to_owned(),
        removed: vec![FileRef::inline(&first.files[0].path)],
        tombstones: None,
        scanned_files: Vec::new(),
        base_tombstones: Vec::new(),
        rows: Some(1),
        base_version: 3,
    };
    let from = table.manifest_at(3).await.unwrap();
    commit(&table, &Restore { from }, DEFAULT_TIMEOUT)
        .await
        .unwrap();
    let refused = commit(&table, &replace, DEFAULT_TIMEOUT).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CommitConflict);
    let refused = commit(&table, &delete, DEFAULT_TIMEOUT).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::CommitConflict);
    // Planned on what is there now they go through.
    let delete = Delete {
        base_version: 4,
        ..delete
    };
    commit(&table, &delete, DEFAULT_TIMEOUT).await.unwrap();
    let newest = table.newest().await.unwrap().manifest;
    assert_eq!(newest.data_files, second.files);
}

async fn list_file_paths(table: &Table) -> Vec<String> {
    let newest = table.newest().await.unwrap().manifest;
    let files = all_files(table, &newest).await.unwrap();
    files.into_iter().map(|listed| listed.file.path).collect()
}

/// Manifests stay short, and files keep their order, wherever they are listed.
#[tokio::test]
async fn older_files_move_to_segments() {
    let mut table = create_table(memory()).await;
    table.limits = ListingLimits {
        max_inline_files: 4,
        max_segment_files: 20,
        merge_factor: 3,
        ..ListingLimits::default()
    };
    let mut expected = Vec::new();
    for base in 1..=100 {
        let change = append(upload(&table, base).await, base);
        expected.push(change.files[0].path.clone());
        commit(&table, &change, DEFAULT_TIMEOUT).await.unwrap();
        let manifest = table.newest().await.unwrap().manifest;
        assert!(manifest.data_files.len() <= 4);
        assert!(manifest.segments.iter().all(|s| s.data_files <= 20));
        assert_eq!(manifest.file_count(), base);
    }
    assert_eq!(list_file_paths(&table).await, expected);
    let full_manifest = table.newest().await.unwrap().manifest;
    assert!((3..20).contains(&full_manifest.segments.len()));

    // Files leave segments; the lists themselves are not written again.
    let files = all_files(&table, &full_manifest).await.unwrap();
    let every_third: Vec<FileRef> = files
        .iter()
        .step_by(3)
        .map(SnapshotFile::to_file_ref)
        .collect();
    let replace = Replace {
        merged: MergedTombstones::default(),
        operation: "compact",
        removed: every_third.clone(),
        applied_tombstones: Vec::new(),
        added: vec![upload(&table, full_manifest.version).await],
        base_version: full_manifest.version,
    };
    commit(&table, &replace, DEFAULT_TIMEOUT).await.unwrap();
    let removed_paths: Vec<&str> = every_third.iter().map(|f| f.path.as_str()).collect();
    expected.retain(|path| !removed_paths.contains(&path.as_str()));
    expected.push(replace.added[0].path.clone());
    assert_eq!(list_file_paths(&table).await, expected);
    let error = commit(&table, &replace, DEFAULT_TIMEOUT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommitConflict);

    // An older snapshot comes back, and what nobody needs goes.
    let restore = Restore {
        from: Arc::clone(&full_manifest),
    };
    commit(&table, &restore, DEFAULT_TIMEOUT).await.unwrap();
    let removed = vacuum(&table, Duration::ZERO, false, DEFAULT_TIMEOUT)
        .await
        .unwrap();
    assert!(removed.files.contains(&replace.added[0].path));
    let restored_paths = list_file_paths(&table).await;
    assert_eq!(restored_paths.len(), 100);
    for path in table.newest().await.unwrap().manifest.references() {
        table.store().head(&table.path(path)).await.unwrap();
    }
    for path in restored_paths {
        table.store().head(&table.path(&path)).await.unwrap();
    }
    let segments = table.store().list("lake/events/manifest/segments").await;
    assert_eq!(segments.unwrap().len(), full_manifest.segments.len());
}

/// A lost list of files ends a commit; it is not a race that another attempt may win.
#[tokio::test]
async fn a_lost_segment_ends_a_commit() {
    let mut table = create_table(memory()).await;
    table.limits = ListingLimits {
        max_inline_files: 4,
        merge_factor: 2,
        ..ListingLimits::default()
    };
    let append_next = async || {
        let base = table.newest().await.unwrap().manifest.version;
        let change = append(upload(&table, base).await, base);
        commit(&table, &change, DEFAULT_TIMEOUT).await
    };
    let segments = async || table.newest().await.unwrap().manifest.segments.clone();
    while segments().await.is_empty() {
        append_next().await.unwrap();
    }
    let lost = table.path(&segments().await[0].path);
    table.store().delete(&lost).await.unwrap();
    let error = loop {
        if let Err(error) = append_next().await {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::ManifestCorrupted);
    assert!(error.to_string().contains(&lost), "{error}");
}

/// What a commit writes does not grow with the table.
#[tokio::test]
async fn commit_size_does_not_grow_with_the_table() {
    const FILES: u64 = 200_000;
    let table = create_table(memory()).await;
    let file = |number: u64| DataFile {
        columns: None,
        constants: BTreeMap::new(),
        checksum: Some(FileChecksum(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
        path: format!("data/2026/11/21/08/b00000001-{number:032x}.parquet"),
        size_bytes: 1 << 20,
        footer_size: 4096,
        row_group_count: 1,
        total_rows: 100_000,
        min: (1..8).map(|id| (id, (number * 100_000).into())).collect(),
        max: (1..8)
            .map(|id| (id, (number * 100_000 + 99_999).into()))
            .collect(),
        null_counts: (1..8).map(|id| (id, 0)).collect(),
    };
    let mut count = 0;
    while count < FILES {
        let files = (count..count + 4000).map(file).collect();
        let change = Append {
            files,
            base_version: count / 4000 + 1,
            idempotency_key: None,
        };
        commit(&table, &change, DEFAULT_TIMEOUT).await.unwrap();
        count += 4000;
    }
    let mut before = table.newest().await.unwrap().manifest;
    for number in 0..300 {
        let change = append(file(FILES + number), 1);
        let committed = commit(&table, &change, DEFAULT_TIMEOUT).await.unwrap();
        let after = committed.snapshot.manifest;
        let is_new = |s: &&Segment| before.segments.iter().all(|old| old.path != s.path);
        let new_segment_bytes = after.segments.iter().filter(is_new).map(|s| s.size_bytes);
        let bytes = after.to_bytes().len() as u64 + new_segment_bytes.sum::<u64>();
        assert!(bytes < 1 << 20, "commit {number} writes {bytes} bytes");
        before = after;
    }
    let newest = before;
    assert_eq!(newest.file_count(), FILES + 300);
    assert!(
        newest.segments.len() < 80,
        "{} segments",
        newest.segments.len()
    );
}
