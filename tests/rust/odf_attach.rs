//! Chains of tables: which versions are recorded when clocks differ, writers race, answers are lost, versions expire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema};
use chrono::{DateTime, TimeDelta, Utc};
use pds::ErrorKind;
use pds::attach::attach_table;
use pds::odf::{
    Block, BlockSelector, Chain, DatasetId, DatasetKind, Event, Multihash, schema, verify,
};
use pds::store::Store;
use pds::table::actions::{Alter, NewTable, create};
use pds::table::{Table, TableColumns};
use pds::testing::{FaultKind, FaultyStore, faulty_memory, test_store, test_store_with_clock};
use pds::versions::commit::{DEFAULT_TIMEOUT, commit};
use pds::versions::vacuum::vacuum;
use serde_json::{Value, json};

use crate::odf_outcomes::{OffsetClock, run_elsewhere};

const HOUR: i64 = 3600;

pub(crate) async fn create_table(store: &Store) -> Table {
    let table = Table::new(store.clone(), "lake/t").unwrap();
    let columns = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
    let new_table = NewTable::new(&columns, &[], &[]).unwrap();
    create(&table, new_table).await.unwrap();
    table
}

pub(crate) async fn add_column(table: &Table, name: &str) {
    let change = Alter::Add(Field::new(name, DataType::Utf8, true));
    commit(table, &change, DEFAULT_TIMEOUT).await.unwrap();
}

async fn drop_column(table: &Table, name: &str) {
    let column = name.to_owned();
    let change = Alter::Drop { column };
    commit(table, &change, DEFAULT_TIMEOUT).await.unwrap();
}

fn open_chain(table: &Table) -> Chain {
    Chain::new(table.store().clone(), "lake/t/_odf").unwrap()
}

async fn attach(table: &Table) -> usize {
    let attached = attach_table(table, DEFAULT_TIMEOUT).await.unwrap();
    attached.blocks.len()
}

async fn read_blocks(chain: &Chain) -> Vec<Arc<Block>> {
    let view = chain.view(&BlockSelector::Head).await.unwrap();
    view.blocks().iter().rev().cloned().collect()
}

/// The columns of each recorded schema, oldest first.
async fn recorded_columns(chain: &Chain) -> Vec<Vec<String>> {
    let blocks = read_blocks(chain).await;
    let schemas = blocks.iter().filter_map(|block| match block.event() {
        Event::SetDataSchema(fields) => Some(schema::arrow_from_event(fields).unwrap()),
        _ => None,
    });
    schemas.map(|schema| column_names(&schema)).collect()
}

fn column_names(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|f| f.name().clone()).collect()
}

/// The versions that are recorded, oldest first.
async fn recorded_versions(chain: &Chain) -> Vec<String> {
    let blocks = read_blocks(chain).await;
    let states = blocks
        .iter()
        .filter_map(|block| block.event().data()?.new_source_state.as_ref());
    let versions = states.filter(|state| state.source_name == "pds/table");
    let numbers = versions.map(|state| state.value.split('/').next().unwrap_or_default());
    numbers.map(str::to_owned).collect()
}

fn names(columns: &[&[&str]]) -> Vec<Vec<String>> {
    let owned = |schema: &&[&str]| schema.iter().map(|&name| name.to_owned()).collect();
    columns.iter().map(owned).collect()
}

async fn assert_verified(chain: &Chain) {
    let verification = verify(chain, None, true).await.unwrap();
    assert!(
        verification.problems.is_empty(),
        "{:?}",
        verification.problems
    );
}

#[tokio::test]
async fn a_version_made_while_the_chains_clock_was_ahead_is_recorded() {
    let clock = Arc::new(OffsetClock::default());
    let store = test_store_with_clock(&faulty_memory(), true, Arc::clone(&clock) as _);
    let table = create_table(&store).await;
    attach(&table).await;
    // A writer whose clock is an hour ahead appends to the chain.
    clock.seconds_ahead.store(HOUR, Ordering::SeqCst);
    let info = json!({"kind": "SetInfo", "description": "events"});
    let chain = open_chain(&table);
    chain.append(&[info], DEFAULT_TIMEOUT).await.unwrap();
    clock.seconds_ahead.store(0, Ordering::SeqCst);
    add_column(&table, "a").await;
    assert_eq!(attach(&table).await, 2);
    add_column(&table, "b").await;
    drop_column(&table, "a").await;
    assert_eq!(attach(&table).await, 4);
    let expected: &[&[&str]] = &[&["id"], &["id", "a"], &["id", "a", "b"], &["id", "b"]];
    assert_eq!(recorded_columns(&chain).await, names(expected));
    assert_eq!(recorded_versions(&chain).await, ["1", "2", "3", "4"]);
    assert_verified(&chain).await;
}

#[tokio::test]
async fn a_second_attach_appends_nothing_and_reads_no_older_version() {
    let objects = faulty_memory();
    let table = create_table(&test_store(&objects, true)).await;
    for name in ["a", "b", "c"] {
        add_column(&table, name).await;
    }
    assert_eq!(attach(&table).await, 9);
    let chain = open_chain(&table);
    let head = chain.head().await.unwrap().unwrap().hash;
    let requests = |objects: &FaultyStore| objects.requests();
    objects.set_fault(None);
    assert_eq!(attach(&table).await, 0);
    let few = requests(&objects);
    assert_eq!(chain.head().await.unwrap().unwrap().hash, head);
    // As many requests however many versions there are.
    for name in ["d", "e", "f"] {
        add_column(&table, name).await;
        drop_column(&table, name).await;
    }
    attach(&table).await;
    let blocks = read_blocks(&chain).await.len();
    objects.set_fault(None);
    assert_eq!(attach(&table).await, 0);
    assert!(
        requests(&objects) - few <= blocks,
        "the table's old versions are read"
    );
    assert_verified(&chain).await;
}

#[tokio::test]
async fn all_missing_schemas_go_in_one_move_of_the_head() {
    let objects = faulty_memory();
    let table = create_table(&test_store(&objects, true)).await;
    add_column(&table, "a").await;
    // Stopped at any request, a chain is not there, or whole.
    for request in 0.. {
        let clone = Arc::new(MemoryCopy::of(&objects).await);
        let faulty = clone.store();
        faulty.set_fault(Some(pds::testing::Fault {
            request,
            timing: pds::testing::FaultTiming::Before,
            kind: FaultKind::Unavailable,
            is_persistent: true,
        }));
        let table = Table::new(test_store(&faulty, true), "lake/t").unwrap();
        let result = attach_table(&table, Duration::ZERO).await;
        faulty.set_fault(None);
        let chain = open_chain(&table);
        if chain.head().await.unwrap().is_some() {
            let expected: &[&[&str]] = &[&["id"], &["id", "a"]];
            assert_eq!(
                recorded_columns(&chain).await,
                names(expected),
                "request {request}"
            );
        }
        if result.is_ok() {
            assert!(request > 5, "no request was interrupted");
            return;
        }
    }
}

/// A copy of the objects of another store.
struct MemoryCopy(Arc<FaultyStore>);

impl MemoryCopy {
    async fn of(objects: &Arc<FaultyStore>) -> Self {
        let (from, copy) = (test_store(objects, true), faulty_memory());
        let to = test_store(&copy, true);
        for meta in from.list("lake").await.unwrap() {
            let path = meta.location.to_string();
            let (bytes, _) = from
                .get(&path, object_store::GetOptions::default())
                .await
                .unwrap();
            to.put(&path, bytes, object_store::PutMode::Overwrite)
                .await
                .unwrap();
        }
        Self(copy)
    }

    fn store(&self) -> Arc<FaultyStore> {
        Arc::clone(&self.0)
    }
}

#[tokio::test]
async fn two_attachers_at_once_record_every_version_once() {
    for has_chain in [false, true] {
        for lost in [
            None,
            Some(FaultKind::Unavailable),
            Some(FaultKind::Conflict),
        ] {
            let mut request = 0;
            while attach_beside_another(request, has_chain, lost).await {
                request += 1;
            }
            assert!(request > 3, "no request was interrupted");
        }
    }
}

/// Attaches while, at one request, another process adds a column and attaches; the answer to the request may be lost.
/// False if there was no such request.
async fn attach_beside_another(request: usize, has_chain: bool, lost: Option<FaultKind>) -> bool {
    let objects = faulty_memory();
    let table = create_table(&test_store(&objects, true)).await;
    let other_objects = Arc::new(FaultyStore::new(Arc::clone(objects.inner())));
    let other = Table::new(test_store(&other_objects, true), "lake/t").unwrap();
    if has_chain {
        attach(&table).await;
    }
    add_column(&table, "a").await;
    let (concurrent, was_called) = (other.clone(), Arc::new(AtomicBool::new(false)));
    let called = Arc::clone(&was_called);
    let hook = move || {
        called.store(true, Ordering::SeqCst);
        run_elsewhere(move || async move {
            add_column(&concurrent, "b").await;
            attach(&concurrent).await;
        });
    };
    match lost {
        None => objects.interrupt(request, hook),
        Some(kind) => objects.interrupt_and_drop_response(request, kind, hook),
    }
    let result = attach_table(&table, DEFAULT_TIMEOUT).await;
    let reached = objects.requests() > request;
    let error = result.err();
    let context = format!("request {request}, {has_chain}, {lost:?}: {error:?}");
    let chain = open_chain(&other);
    let mut expected = vec![&["id"][..], &["id", "a"]];
    // An object that is missing is an answer of its own, which is not lost.
    if was_called.load(Ordering::SeqCst) {
        expected.push(&["id", "a", "b"]);
    }
    assert_eq!(
        recorded_columns(&chain).await,
        names(&expected),
        "{context}"
    );
    // Whatever became of the first call, the next one repeats nothing.
    attach(&other).await;
    assert_eq!(
        recorded_columns(&chain).await,
        names(&expected),
        "{context}"
    );
    assert_verified(&chain).await;
    reached
}

#[tokio::test]
async fn versions_that_a_vacuum_removed_are_passed_over() {
    let store = test_store(&faulty_memory(), true);
    let table = create_table(&store).await;
    attach(&table).await;
    for name in ["a", "b"] {
        add_column(&table, name).await;
    }
    vacuum(&table, Duration::ZERO, false, DEFAULT_TIMEOUT)
        .await
        .unwrap();
    add_column(&table, "c").await;
    attach(&table).await;
    let chain = open_chain(&table);
    let recorded = recorded_columns(&chain).await;
    assert_eq!(recorded.first(), names(&[&["id"]]).first());
    assert_eq!(
        recorded.last(),
        names(&[&["id", "a", "b", "c"]]).first(),
        "{recorded:?}"
    );
    assert!(
        !recorded.contains(&names(&[&["id", "a"]])[0]),
        "{recorded:?}"
    );
    assert_eq!(attach(&table).await, 0);
    assert_verified(&chain).await;
}

/// Makes a chain as older releases did: schemas with times and without versions.
async fn create_old_chain(table: &Table, schemas: &[(DateTime<Utc>, Value)]) -> Chain {
    let chain = open_chain(table);
    let id = DatasetId::generate().unwrap().id;
    let first = schemas.first().unwrap().0;
    chain
        .create(&id, DatasetKind::Root, Some(first))
        .await
        .unwrap();
    for (number, (time, event)) in (1..).zip(schemas) {
        let previous: Multihash = chain.head().await.unwrap().unwrap().hash;
        let block = Block::new(*time, Some(&previous), number, event).unwrap();
        chain.append_block(block).await.unwrap();
    }
    chain
}

async fn newest_version(table: &Table) -> (DateTime<Utc>, Value) {
    let manifest = table.newest().await.unwrap().manifest;
    let columns = TableColumns::from_manifest(&manifest).unwrap();
    let time = DateTime::from_timestamp_micros(manifest.created_at.as_micros()).unwrap();
    (
        time,
        schema::event_from_arrow(&columns.schema, true).unwrap(),
    )
}

#[tokio::test]
async fn a_chain_without_versions_goes_on_by_time() {
    let store = test_store(&faulty_memory(), true);
    let table = create_table(&store).await;
    let first = newest_version(&table).await;
    add_column(&table, "a").await;
    let second = newest_version(&table).await;
    let chain = create_old_chain(&table, &[first, second]).await;
    assert_eq!(attach(&table).await, 0);
    add_column(&table, "b").await;
    add_column(&table, "c").await;
    assert_eq!(attach(&table).await, 4);
    let expected: &[&[&str]] = &[
        &["id"],
        &["id", "a"],
        &["id", "a", "b"],
        &["id", "a", "b", "c"],
    ];
    assert_eq!(recorded_columns(&chain).await, names(expected));
    assert_eq!(recorded_versions(&chain).await, ["3", "4"]);
    assert_eq!(attach(&table).await, 0);
    assert_verified(&chain).await;
}

#[tokio::test]
async fn a_chain_without_versions_whose_clock_was_ahead_gets_the_newest_schema() {
    let store = test_store(&faulty_memory(), true);
    let table = create_table(&store).await;
    let (time, event) = newest_version(&table).await;
    let chain = create_old_chain(&table, &[(time + TimeDelta::hours(1), event)]).await;
    add_column(&table, "a").await;
    assert_eq!(attach(&table).await, 2);
    let expected: &[&[&str]] = &[&["id"], &["id", "a"]];
    assert_eq!(recorded_columns(&chain).await, names(expected));
    assert_eq!(attach(&table).await, 0);
}

#[tokio::test]
async fn a_table_that_begins_anew_is_recorded_from_its_first_version() {
    let store = test_store(&faulty_memory(), true);
    let table = create_table(&store).await;
    attach(&table).await;
    let chain = open_chain(&table);
    let state = json!({"sourceName": "pds/table", "kind": "pds/tableVersion", "value": "99"});
    let event = json!({"kind": "AddData", "newSourceState": state});
    chain.append(&[event], DEFAULT_TIMEOUT).await.unwrap();
    assert_eq!(attach(&table).await, 1);
    assert_eq!(recorded_versions(&chain).await, ["1", "99", "1"]);
    add_column(&table, "a").await;
    assert_eq!(attach(&table).await, 2);
    assert_eq!(attach(&table).await, 0);
    assert_verified(&chain).await;
}

#[tokio::test]
async fn a_table_that_does_not_exist_gets_no_chain() {
    let store = test_store(&faulty_memory(), true);
    let table = Table::new(store, "lake/t").unwrap();
    let error = attach_table(&table, DEFAULT_TIMEOUT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(open_chain(&table).head().await.unwrap().is_none());
}
