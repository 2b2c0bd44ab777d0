//! A write whose requests fail one after another: the old or the new dataset, whole, every time.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{DataType, Field, Schema};
use object_store::GetOptions;
use pds::dataset::{self, DatasetWrite, Layout, WriteTask};
use pds::parquet::options::WriteOptions;
use pds::store::Store;
use pds::testing::{Fault, FaultKind, FaultTiming, FaultyStore, faulty_memory, test_store};
use pds::{ErrorKind, Result};

pub(crate) const KEY: &str = "silver/orders";

/// Rows that hardly compress, so that parts of enough rows are uploads and few rows stay inline.
fn input(seed: i64, rows: usize) -> Box<dyn RecordBatchReader + Send> {
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
    let values: Int64Array = (1..)
        .take(rows)
        .map(|i: i64| i.wrapping_mul(seed).wrapping_mul(-0x61C8_8646_80B5_83EB))
        .collect();
    let batch =
        RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(values) as ArrayRef]).unwrap();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

/// The only task of a write.
const SINGLE_TASK: WriteTask = WriteTask {
    number: 0,
    threads: 1,
    input_in_memory: true,
    keep_empty: true,
    shared: false,
};

/// One of the tasks of a write that others publish.
fn shared_task(number: u64) -> WriteTask {
    WriteTask {
        number,
        keep_empty: false,
        shared: true,
        ..SINGLE_TASK
    }
}

pub(crate) async fn write_dataset(
    store: &Store,
    seed: i64,
    rows: usize,
    overwrite: bool,
) -> Result<()> {
    // Two uploads and a small part that stays inline.
    let options = WriteOptions::new("none", None, None, Some(20_000), Some(32 << 20))?;
    let write = DatasetWrite::begin(store, KEY, overwrite, Layout::Numbered, options).await?;
    let parts = dataset::prepare(store, &write, SINGLE_TASK, input(seed, rows)).await?;
    dataset::publish(store, &write, parts, "0123456789abcdef")
        .await
        .map(drop)
}

pub(crate) async fn read_sum(store: &Store) -> Result<(usize, i64)> {
    let table = dataset::read(store, KEY, None).await?;
    let columns = table
        .batches
        .iter()
        .map(|b| b.column(0).as_any().downcast_ref::<Int64Array>().unwrap());
    let values: Vec<i64> = columns.flat_map(|c| c.values().iter().copied()).collect();
    Ok((
        values.len(),
        values.iter().fold(0, |a, b| a.wrapping_add(*b)),
    ))
}

pub(crate) async fn expected_sum(seed: i64, rows: usize) -> (usize, i64) {
    let store = test_store(&faulty_memory(), true);
    write_dataset(&store, seed, rows, false).await.unwrap();
    read_sum(&store).await.unwrap()
}

fn all_faults() -> Vec<(FaultTiming, FaultKind, bool)> {
    let mut all = Vec::new();
    for timing in [FaultTiming::Before, FaultTiming::After] {
        for kind in [
            FaultKind::Unavailable,
            FaultKind::Denied,
            FaultKind::NotFound,
            FaultKind::Conflict,
        ] {
            for is_persistent in [false, true] {
                all.push((timing, kind, is_persistent));
            }
        }
    }
    all
}

/// Runs one faulty write over `old` (rows of the dataset before, if any); false when the write
/// needed fewer requests than the fault's number.
async fn write_with_fault(
    multipart: bool,
    old: Option<usize>,
    request: usize,
    fault: (FaultTiming, FaultKind, bool),
) -> bool {
    let objects: Arc<FaultyStore> = faulty_memory();
    let store = test_store(&objects, multipart);
    let context = format!("multipart={multipart} old={old:?} request={request} fault={fault:?}");
    let mut before = None;
    if let Some(rows) = old {
        write_dataset(&store, 3, rows, false).await.unwrap();
        before = Some(read_sum(&store).await.unwrap());
    }
    let after = expected_sum(5, 45_000).await;
    let (timing, kind, is_persistent) = fault;
    objects.set_fault(Some(Fault {
        request,
        timing,
        kind,
        is_persistent,
    }));
    let acknowledged = write_dataset(&store, 5, 45_000, old.is_some())
        .await
        .is_ok();
    let reached = objects.requests() > request;
    objects.set_fault(None);
    match read_sum(&store).await {
        Ok(actual) if acknowledged => assert_eq!(actual, after, "{context}: acknowledged"),
        Ok(actual) => assert!(
            actual == after || Some(actual) == before,
            "{context}: {actual:?}"
        ),
        Err(e) => assert!(
            !acknowledged && before.is_none() && e.kind() == ErrorKind::DatasetIncomplete,
            "{context}: {e}"
        ),
    }
    // An answer that was lost may have told the name of an upload, and a fault that lasts hits the
    // clean-up too.
    if matches!(timing, FaultTiming::Before) && !is_persistent {
        assert_eq!(
            list_leaks(&objects, &store).await,
            Vec::<String>::new(),
            "{context}"
        );
    }
    check_next_write(&store, &context).await;
    dataset::clean(&store, KEY, Duration::ZERO).await.unwrap();
    let expected_names =
        ["_SUCCESS", "manifest.json", "part-00000.parquet"].map(|name| format!("{KEY}/{name}"));
    assert_eq!(list_names(&store).await, expected_names, "{context}");
    assert_eq!(objects.inner().open_uploads(), [], "{context}");
    reached
}

/// Hidden objects and uncompleted uploads that no intent names.
async fn list_leaks(objects: &FaultyStore, store: &Store) -> Vec<String> {
    let path = format!("{KEY}/_publish.json");
    let intent = match store.get(&path, GetOptions::default()).await {
        Ok((bytes, _)) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    };
    let open_uploads = objects.inner().open_uploads().into_iter();
    let uploads = open_uploads.map(|upload| (upload.id, format!("an upload of {}", upload.path)));
    let object_names = list_names(store).await.into_iter();
    let hidden = object_names
        .filter(|name| name.contains("/.pds-"))
        .map(|name| (name.clone(), name));
    uploads
        .chain(hidden)
        .filter(|(name, _)| !intent.contains(name.as_str()))
        .map(|(_, description)| description)
        .collect()
}

async fn list_names(store: &Store) -> Vec<String> {
    let objects = store.list(KEY).await.unwrap();
    objects.iter().map(|m| m.location.to_string()).collect()
}

async fn check_next_write(store: &Store, context: &str) {
    if let Err(e) = write_dataset(store, 7, 1000, true).await {
        panic!("{context}: next write: {e}");
    }
    assert_eq!(
        read_sum(store).await.unwrap(),
        expected_sum(7, 1000).await,
        "{context}"
    );
}

async fn write_with_every_fault(multipart: bool, old: Option<usize>) {
    for fault in all_faults() {
        let mut request = 0;
        while write_with_fault(multipart, old, request, fault).await {
            request += 1;
            assert!(request < 200, "a write has a handful of requests");
        }
        assert!(request > 6, "a write has more than {request} requests");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_write_survives_every_fault() {
    write_with_every_fault(true, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_survives_every_fault() {
    write_with_every_fault(true, Some(60_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_by_renames_survives_every_fault() {
    write_with_every_fault(false, Some(60_000)).await;
}

/// Tasks of which the first had no rows: uploads begun for a number that is not theirs in the end.
#[tokio::test(flavor = "multi_thread")]
async fn parts_are_renumbered_after_an_empty_task() {
    for request in 0..60 {
        for is_persistent in [false, true] {
            renumber_with_fault(Fault {
                request,
                timing: FaultTiming::After,
                kind: FaultKind::Unavailable,
                is_persistent,
            })
            .await;
        }
    }
}

async fn renumber_with_fault(fault: Fault) {
    const TASKS: [u64; 4] = [1, 2, 3, 5];
    let objects = faulty_memory();
    let store = test_store(&objects, true);
    let options = WriteOptions::new("none", None, None, None, Some(32 << 20)).unwrap();
    let write = DatasetWrite::begin(&store, KEY, false, Layout::Numbered, options)
        .await
        .unwrap();
    let mut parts = Vec::new();
    let mut expected = 0_i64;
    for number in TASKS {
        let seed = i64::try_from(number).unwrap();
        let rows = input(seed, 20_000);
        let staged = dataset::prepare(&store, &write, shared_task(number), rows).await;
        parts.extend(staged.unwrap());
        expected = expected.wrapping_add(input_sum(seed, 20_000));
    }
    objects.set_fault(Some(fault));
    let published = dataset::publish(&store, &write, parts, "0123456789abcdef").await;
    objects.set_fault(None);
    dataset::clean(&store, KEY, Duration::MAX).await.unwrap();
    match read_sum(&store).await {
        Ok(actual) => assert_eq!(actual, (80_000, expected), "{fault:?}"),
        Err(e) => assert!(
            published.is_err() && e.kind() == ErrorKind::DatasetIncomplete,
            "{fault:?}: {e}"
        ),
    }
    if published.is_ok() || dataset::exists(&store, KEY).await.unwrap() {
        assert_eq!(dataset::verify(&store, KEY).await.unwrap().parts, 4);
        let listing = store.list(KEY).await.unwrap();
        let part_files = listing
            .iter()
            .filter(|m| m.location.as_ref().ends_with(".parquet"));
        assert_eq!(part_files.count(), 4, "{fault:?}: a part lies there twice");
    }
}

fn input_sum(seed: i64, rows: usize) -> i64 {
    let batch = input(seed, rows).next().unwrap().unwrap();
    let values = batch
        .column(0)
        .as_any()
        .downcast_ref::<Int64Array>()
        .unwrap();
    values.values().iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Writes of the same microsecond have the same manifest, and still only one of them wins.
#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_two_identical_writes_wins() {
    let store = test_store(&faulty_memory(), true);
    let mut staged = Vec::new();
    for seed in [3, 5] {
        let options = WriteOptions::new("none", None, None, None, Some(32 << 20)).unwrap();
        let mut write = DatasetWrite::begin(&store, KEY, false, Layout::Single, options)
            .await
            .unwrap();
        write.created_at = "2026-11-21T00:00:00.000001+00:00".to_owned();
        let parts = dataset::prepare(&store, &write, SINGLE_TASK, input(seed, 100))
            .await
            .unwrap();
        staged.push((write, parts));
    }
    let mut outcomes = Vec::new();
    for (write, parts) in staged {
        outcomes.push(dataset::publish(&store, &write, parts, "0123456789abcdef").await);
    }
    assert!(outcomes[0].is_ok());
    assert_eq!(
        outcomes[1].as_ref().unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(read_sum(&store).await.unwrap(), (100, input_sum(3, 100)));
}
