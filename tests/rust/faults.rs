//! A write whose requests fail one after another: the old or the new dataset, whole, every time.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{DataType, Field, Schema};
use pds::dataset::{self, Layout, Task, Write};
use pds::parquet::options::WriteOptions;
use pds::store::Store;
use pds::testing::{Effect, Fault, FaultKind, FaultyStore, faulty_memory, store_over};
use pds::{ErrorKind, Result};

const KEY: &str = "silver/orders";

/// Rows that hardly compress, so that parts of enough rows are uploads and few rows stay inline.
fn input(seed: i64, rows: usize) -> Box<dyn RecordBatchReader + Send> {
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
    let values: Int64Array = (0..rows as i64)
        .map(|i| {
            (i + 1)
                .wrapping_mul(seed)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)
        })
        .collect();
    let batch =
        RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(values) as ArrayRef]).unwrap();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

async fn write(store: &Store, seed: i64, rows: usize, overwrite: bool) -> Result<()> {
    // Two uploads and a small part that stays inline.
    let options = WriteOptions::new("none", None, None, Some(20_000), Some(32 << 20))?;
    let write = Write::begin(store, KEY, overwrite, Layout::Numbered, options).await?;
    let task = Task {
        number: 0,
        threads: 1,
        resident: true,
        keep_empty: true,
        shared: false,
    };
    let parts = dataset::prepare(store, &write, task, input(seed, rows)).await?;
    dataset::publish(store, &write, parts, "0123456789abcdef")
        .await
        .map(drop)
}

async fn sum(store: &Store) -> Result<(usize, i64)> {
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

async fn expected(seed: i64, rows: usize) -> (usize, i64) {
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
    let before = match old {
        Some(rows) => {
            write(&store, 3, rows, false).await.unwrap();
            Some(sum(&store).await.unwrap())
        }
        None => None,
    };
    let after = expected(5, 45_000).await;
    let (effect, kind, for_ever) = fault;
    objects.plan(Some(Fault {
        request,
        effect,
        kind,
        for_ever,
    }));
    let written = write(&store, 5, 45_000, old.is_some()).await;
    let reached = objects.requests() > request;
    objects.plan(None);
    let found = sum(&store).await;
    match (&found, written.is_ok()) {
        (Ok(found), true) => assert_eq!(*found, after, "{says}: acknowledged"),
        (Ok(found), false) => assert!(
            *found == after || Some(*found) == before,
            "{says}: {found:?}"
        ),
        (Err(e), acknowledged) => {
            assert!(
                !acknowledged && before.is_none() && e.kind() == ErrorKind::DatasetIncomplete,
                "{says}: {e}"
            );
        }
    }
    // The next writer is not disturbed, and leaves only its own files.
    write(&store, 7, 1000, true)
        .await
        .unwrap_or_else(|e| panic!("{says}: next write: {e}"));
    assert_eq!(
        sum(&store).await.unwrap(),
        expected(7, 1000).await,
        "{says}"
    );
    let mut names: Vec<String> = store
        .list(KEY)
        .await
        .unwrap()
        .iter()
        .map(|m| m.location.to_string())
        .collect();
    names.retain(|name| !name.contains("/.pds-"));
    assert_eq!(
        names,
        [
            format!("{KEY}/_SUCCESS"),
            format!("{KEY}/manifest.json"),
            format!("{KEY}/part-00000.parquet")
        ],
        "{says}"
    );
    reached
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
