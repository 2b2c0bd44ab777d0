//! A write whose requests fail one after another: the old or the new dataset, whole, every time.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{DataType, Field, Schema};
use object_store::GetOptions;
use pds::dataset::{self, Layout, Task, Write};
use pds::parquet::options::WriteOptions;
use pds::store::Store;
use pds::testing::{Effect, Fault, FaultKind, FaultyStore, faulty_memory, store_over};
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
const ALONE: Task = Task {
    number: 0,
    threads: 1,
    resident: true,
    keep_empty: true,
    shared: false,
};

/// One of the tasks of a write that others publish.
fn shared(number: u64) -> Task {
    Task {
        number,
        keep_empty: false,
        shared: true,
        ..ALONE
    }
}

pub(crate) async fn write(store: &Store, seed: i64, rows: usize, overwrite: bool) -> Result<()> {
    // Two uploads and a small part that stays inline.
    let options = WriteOptions::new("none", None, None, Some(20_000), Some(32 << 20))?;
    let write = Write::begin(store, KEY, overwrite, Layout::Numbered, options).await?;
    let parts = dataset::prepare(store, &write, ALONE, input(seed, rows)).await?;
    dataset::publish(store, &write, parts, "0123456789abcdef")
        .await
        .map(drop)
}

pub(crate) async fn sum(store: &Store) -> Result<(usize, i64)> {
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

pub(crate) async fn expected(seed: i64, rows: usize) -> (usize, i64) {
    let store = store_over(&faulty_memory(), true);
    write(&store, seed, rows, false).await.unwrap();
    sum(&store).await.unwrap()
}

fn faults() -> Vec<(Effect, FaultKind, bool)> {
    let mut all = Vec::new();
    for effect in [Effect::Before, Effect::After] {
        for kind in [
            FaultKind::Unavailable,
            FaultKind::Denied,
            FaultKind::NotFound,
            FaultKind::Conflict,
        ] {
            for for_ever in [false, true] {
                all.push((effect, kind, for_ever));
            }
        }
    }
    all
}

/// Runs one faulty write over `old` (rows of the dataset before, if any); false when the write
/// needed fewer requests than the fault's number.
async fn run(
    multipart: bool,
    old: Option<usize>,
    request: usize,
    fault: (Effect, FaultKind, bool),
) -> bool {
    let objects: Arc<FaultyStore> = faulty_memory();
    let store = store_over(&objects, multipart);
    let says = format!("multipart={multipart} old={old:?} request={request} fault={fault:?}");
    let mut before = None;
    if let Some(rows) = old {
        write(&store, 3, rows, false).await.unwrap();
        before = Some(sum(&store).await.unwrap());
    }
    let after = expected(5, 45_000).await;
    let (effect, kind, for_ever) = fault;
    objects.plan(Some(Fault {
        request,
        effect,
        kind,
        for_ever,
    }));
    let acknowledged = write(&store, 5, 45_000, old.is_some()).await.is_ok();
    let reached = objects.requests() > request;
    objects.plan(None);
    match sum(&store).await {
        Ok(found) if acknowledged => assert_eq!(found, after, "{says}: acknowledged"),
        Ok(found) => assert!(found == after || Some(found) == before, "{says}: {found:?}"),
        Err(e) => assert!(
            !acknowledged && before.is_none() && e.kind() == ErrorKind::DatasetIncomplete,
            "{says}: {e}"
        ),
    }
    // An answer that was lost may have told the name of an upload, and a fault that lasts hits the
    // clean-up too.
    if matches!(effect, Effect::Before) && !for_ever {
        assert_eq!(
            leaks(&objects, &store).await,
            Vec::<String>::new(),
            "{says}"
        );
    }
    next_writer_is_not_disturbed(&store, &says).await;
    dataset::clean(&store, KEY, Duration::ZERO).await.unwrap();
    let whole =
        ["_SUCCESS", "manifest.json", "part-00000.parquet"].map(|name| format!("{KEY}/{name}"));
    assert_eq!(names(&store).await, whole, "{says}");
    assert_eq!(objects.objects().open_uploads(), [], "{says}");
    reached
}

/// Hidden objects and uncompleted uploads that no intent names.
async fn leaks(objects: &FaultyStore, store: &Store) -> Vec<String> {
    let path = format!("{KEY}/_publish.json");
    let intent = match store.get(&path, GetOptions::default()).await {
        Ok((bytes, _)) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    };
    let uploads = objects.objects().open_uploads().into_iter();
    let uploads = uploads.map(|upload| (upload.id, format!("an upload of {}", upload.path)));
    let hidden = names(store).await.into_iter();
    let hidden = hidden
        .filter(|name| name.contains("/.pds-"))
        .map(|name| (name.clone(), name));
    uploads
        .chain(hidden)
        .filter(|(name, _)| !intent.contains(name.as_str()))
        .map(|(_, what)| what)
        .collect()
}

async fn names(store: &Store) -> Vec<String> {
    let listed = store.list(KEY).await.unwrap();
    listed.iter().map(|m| m.location.to_string()).collect()
}

async fn next_writer_is_not_disturbed(store: &Store, says: &str) {
    if let Err(e) = write(store, 7, 1000, true).await {
        panic!("{says}: next write: {e}");
    }
    assert_eq!(sum(store).await.unwrap(), expected(7, 1000).await, "{says}");
}

async fn run_all(multipart: bool, old: Option<usize>) {
    for fault in faults() {
        let mut request = 0;
        while run(multipart, old, request, fault).await {
            request += 1;
            assert!(request < 200, "a write has a handful of requests");
        }
        assert!(request > 6, "a write has more than {request} requests");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_write_survives_every_fault() {
    run_all(true, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_survives_every_fault() {
    run_all(true, Some(60_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_by_renames_survives_every_fault() {
    run_all(false, Some(60_000)).await;
}

/// Tasks of which the first had no rows: uploads begun for a number that is not theirs in the end.
#[tokio::test(flavor = "multi_thread")]
async fn parts_move_up_when_a_task_had_no_rows() {
    for request in 0..60 {
        for for_ever in [false, true] {
            move_up(Fault {
                request,
                effect: Effect::After,
                kind: FaultKind::Unavailable,
                for_ever,
            })
            .await;
        }
    }
}

async fn move_up(fault: Fault) {
    const TASKS: [u64; 4] = [1, 2, 3, 5];
    let objects = faulty_memory();
    let store = store_over(&objects, true);
    let options = WriteOptions::new("none", None, None, None, Some(32 << 20)).unwrap();
    let write = Write::begin(&store, KEY, false, Layout::Numbered, options)
        .await
        .unwrap();
    let mut parts = Vec::new();
    let mut expected = 0_i64;
    for number in TASKS {
        let seed = i64::try_from(number).unwrap();
        let rows = input(seed, 20_000);
        let staged = dataset::prepare(&store, &write, shared(number), rows).await;
        parts.extend(staged.unwrap());
        expected = expected.wrapping_add(input_sum(seed, 20_000));
    }
    objects.plan(Some(fault));
    let published = dataset::publish(&store, &write, parts, "0123456789abcdef").await;
    objects.plan(None);
    dataset::clean(&store, KEY, Duration::MAX).await.unwrap();
    match sum(&store).await {
        Ok(found) => assert_eq!(found, (80_000, expected), "{fault:?}"),
        Err(e) => assert!(
            published.is_err() && e.kind() == ErrorKind::DatasetIncomplete,
            "{fault:?}: {e}"
        ),
    }
    if published.is_ok() || dataset::exists(&store, KEY).await.unwrap() {
        assert_eq!(dataset::verify(&store, KEY).await.unwrap().parts, 4);
        let listed = store.list(KEY).await.unwrap();
        let parts = listed
            .iter()
            .filter(|m| m.location.as_ref().ends_with(".parquet"));
        assert_eq!(parts.count(), 4, "{fault:?}: a part lies there twice");
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
async fn twins_do_not_both_win() {
    let store = store_over(&faulty_memory(), true);
    let mut staged = Vec::new();
    for seed in [3, 5] {
        let options = WriteOptions::new("none", None, None, None, Some(32 << 20)).unwrap();
        let mut write = Write::begin(&store, KEY, false, Layout::Single, options)
            .await
            .unwrap();
        write.created_at = "2026-11-21T00:00:00.000001+00:00".to_owned();
        let parts = dataset::prepare(&store, &write, ALONE, input(seed, 100))
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
    assert_eq!(sum(&store).await.unwrap(), (100, input_sum(3, 100)));
}
