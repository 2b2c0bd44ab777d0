//! Chains of the Open Data Fabric: bytes and hashes that its own tools assert, rules, tampering.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Int64Array, RecordBatch, RecordBatchIterator, StringArray, TimestampMillisecondArray,
};
use bytes::Bytes;
use chrono::{DateTime, Duration, Utc};
use object_store::{GetOptions, PutMode};
use pds::odf::{
    At, Block, Chain, DatasetId, DatasetKind, Ingest, Multihash, compact, ingest, rules::State,
    schema, verify,
};
use pds::parquet::options::WriteOptions;
use pds::store::Store;
use pds::store::memory::MemoryStore;
use pds::table::commit::DEFAULT_TIMEOUT;
use pds::table::{Wanted, scan};
use pds::testing::{FaultKind, FaultyStore, faulty_memory, store_over};
use pds::{Error, ErrorKind, Result};
use serde_json::{Value, json};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../vectors/odf.json")).unwrap()
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let pairs = (0..hex.len()).step_by(2);
    pairs
        .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
        .collect()
}

/// JSON is YAML too.
fn manifest(version: &Value, content: &Value) -> String {
    json!({"kind": "MetadataBlock", "version": version, "content": content}).to_string()
}

#[test]
fn blocks_have_the_hashes_that_other_tools_assert() {
    let vectors = vectors();
    for vector in vectors["blocks"].as_array().unwrap() {
        let name = &vector["name"];
        let text = manifest(&vector["manifestVersion"], &vector["block"]);
        let made = Block::from_yaml(&text).unwrap();
        assert_eq!(made.hash().to_string(), vector["block_hash"], "{name}");
        assert_eq!(
            made.bytes().len() as u64,
            vector["len"].as_u64().unwrap(),
            "{name}"
        );
        assert_eq!(*made.event(), vector["block"]["event"], "{name}");
        assert_eq!(made.encode().unwrap(), made.bytes()[..], "{name}");
        if let Some(hex) = vector["manifest_bytes_hex"].as_str() {
            let raw = bytes_of(hex);
            let read = Block::from_bytes(raw.clone().into()).unwrap();
            assert_eq!(read.hash(), made.hash(), "{name}");
            assert_eq!(read.bytes(), &raw, "{name}");
            assert_eq!(read.encode().unwrap(), raw, "{name}");
            assert_eq!(*read.event(), vector["block"]["event"], "{name}");
        }
        let again = Block::from_yaml(&made.to_yaml()).unwrap();
        assert_eq!(again.bytes(), made.bytes(), "{name}");
    }
}

#[test]
fn the_layout_of_an_old_release_is_refused_and_not_misread() {
    for vector in vectors()["must_be_rejected"].as_array().unwrap() {
        let raw = bytes_of(vector["manifest_bytes_hex"].as_str().unwrap());
        let error = Block::from_bytes(raw.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FormatNotSupported);
        assert!(error.message().contains("0.33"), "{error}");
    }
}

#[test]
fn yaml_is_that_of_the_specification() {
    let vectors = vectors();
    let text = vectors["yaml_manifest"]["text"].as_str().unwrap();
    let block = Block::from_yaml(text).unwrap();
    assert_eq!(block.to_yaml(), text);
    let columns = schema::arrow_of(block.event()).unwrap();
    assert_eq!(
        columns
            .field_with_name("a")
            .unwrap()
            .data_type()
            .to_string(),
        "Int64"
    );
    let raw = schema::event_of(&columns, true).unwrap();
    assert_eq!(raw["rawArrowSchema"], block.event()["rawArrowSchema"]);
}

#[test]
fn yaml_that_is_no_block_is_refused_by_field() {
    let text = vectors()["yaml_manifest"]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    let cases = [
        ("kind: MetadataBlock", "kind: Other", "MetadataBlock"),
        ("version: 3", "version: 9", "version"),
        (
            "sequenceNumber: 123",
            "sequenceNumber: -1",
            "sequenceNumber",
        ),
        ("2020-01-01T12:00:00Z", "yesterday", "yesterday"),
        ("f16209eb949bd", "f1620", "multihash"),
        (
            "kind: SetDataSchema",
            "kind: SetDateSchema",
            "SetDateSchema",
        ),
        ("rawArrowSchema: ", "rawArrowSchemas: ", "rawArrowSchemas"),
        ("content:", "contents:", "content"),
    ];
    for (from, to, named) in cases {
        let error = Block::from_yaml(&text.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(named), "{to}: {error}");
        let kinds = [ErrorKind::InvalidInput, ErrorKind::FormatNotSupported];
        assert!(kinds.contains(&error.kind()), "{to}: {error}");
    }
}

/// A pseudorandom sequence.
fn chance(seed: &mut u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn damaged_bytes_give_an_error_or_a_block_and_never_a_panic() {
    let vectors = vectors();
    let blocks = vectors["blocks"].as_array().unwrap();
    let blocks: Vec<Block> = blocks
        .iter()
        .map(|v| Block::from_yaml(&manifest(&v["manifestVersion"], &v["block"])).unwrap())
        .collect();
    let rounds = if std::env::var_os("PDS_SOAK").is_some() {
        400_000
    } else {
        4_000
    };
    let mut seed = 7;
    for block in &blocks {
        for length in 0..block.bytes().len() {
            let cut = block.bytes().slice(..length);
            assert!(
                Block::from_bytes(cut).is_err(),
                "{length} bytes are taken for a block"
            );
        }
        for _ in 0..rounds {
            let mut raw = block.bytes().to_vec();
            for _ in 0..=chance(&mut seed) % 4 {
                let at = usize::try_from(chance(&mut seed)).unwrap() % raw.len();
                let special = [0, 1, 4, 0x7f, 0x80, 0xff];
                raw[at] = if chance(&mut seed).is_multiple_of(2) {
                    special[usize::try_from(chance(&mut seed)).unwrap() % special.len()]
                } else {
                    u8::try_from(chance(&mut seed) % 256).unwrap()
                };
            }
            if let Ok(read) = Block::from_bytes(raw.into()) {
                let _ = read.to_yaml();
                let _ = read.encode();
            }
        }
    }
}

#[test]
fn offsets_that_lead_to_the_same_bytes_again_do_not_take_for_ever() {
    let event = json!({
        "kind": "SetAttachments",
        "attachments": {"kind": "Embedded", "items": (0..200).map(|i| json!({
            "path": format!("{i}"), "content": "x".repeat(50),
        })).collect::<Vec<_>>()},
    });
    let block = Block::new(DateTime::UNIX_EPOCH, None, 0, &event).unwrap();
    // All items are the largest one.
    let mut raw = block.bytes().to_vec();
    let marker = raw
        .windows(4)
        .position(|w| w == 200_u32.to_le_bytes())
        .unwrap();
    let target = u32::from_le_bytes(raw[marker + 4..marker + 8].try_into().unwrap()) + 4;
    for index in 0..200_u32 {
        let at = marker + 4 + 4 * usize::try_from(index).unwrap();
        raw[at..at + 4].copy_from_slice(&(target - 4 - 4 * index).to_le_bytes());
    }
    let _ = Block::from_bytes(raw.into());
}

fn memory() -> Store {
    store_over(&faulty_memory(), true)
}

async fn created(store: &Store) -> Chain {
    let chain = Chain::new(store.clone(), "data/weather").unwrap();
    let id = DatasetId::generate().unwrap().id;
    chain.create(&id, DatasetKind::Root, None).await.unwrap();
    chain
}

fn rows(from: i64, count: i64) -> Box<dyn arrow_array::RecordBatchReader + Send> {
    let cities = ["Riga", "Oslo", "Bern"];
    let text = (from..from + count).map(|i| cities[usize::try_from(i % 3).unwrap()]);
    let times = TimestampMillisecondArray::from_iter_values((from..from + count).map(|i| i * 1000));
    let batch = RecordBatch::try_from_iter([
        ("event_time", Arc::new(times) as arrow_array::ArrayRef),
        ("city", Arc::new(StringArray::from_iter_values(text))),
        (
            "value",
            Arc::new(Int64Array::from_iter_values(from..from + count)),
        ),
    ]);
    let batch = batch.unwrap();
    let schema = batch.schema();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

fn how() -> Ingest {
    Ingest {
        event_time: None,
        watermark: None,
        source_state: None,
        options: WriteOptions::new("zstd", None, None, None, None).unwrap(),
        timeout: DEFAULT_TIMEOUT,
    }
}

fn rule(result: Result<()>) -> (String, String) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidAppend, "{error}");
    (
        error.detail().unwrap().to_owned(),
        error.message().to_owned(),
    )
}

/// A chain in memory alone.
struct Bench {
    state: State,
    time: DateTime<Utc>,
}

impl Bench {
    fn new() -> Self {
        let mut made = Self {
            state: State::default(),
            time: DateTime::UNIX_EPOCH,
        };
        let id = DatasetId::generate().unwrap().id.to_string();
        made.add(&json!({"kind": "Seed", "datasetId": id, "datasetKind": "Root"}));
        made
    }

    fn with_schema() -> Self {
        let mut made = Self::new();
        made.add(&schema_of(&[
            ("offset", false),
            ("city", false),
            ("note", true),
        ]));
        made
    }

    fn next(&self, event: &Value) -> Block {
        let tip = self.state.tip.as_ref();
        let number = tip.map_or(0, |tip| tip.sequence_number + 1);
        Block::new(self.time, tip.map(|t| &t.hash), number, event).unwrap()
    }

    fn check(&self, event: &Value) -> Result<()> {
        self.state.check_new(&self.next(event))
    }

    fn add(&mut self, event: &Value) {
        let block = self.next(event);
        self.state.check_new(&block).unwrap();
        self.state.apply(&block);
    }
}

fn schema_of(fields: &[(&str, bool)]) -> Value {
    let fields = fields.iter().map(|(name, optional)| {
        let plain = json!({"kind": "String"});
        let kind = if *optional {
            json!({"kind": "Option", "inner": plain})
        } else {
            plain
        };
        json!({"name": name, "type": kind})
    });
    json!({"kind": "SetDataSchema", "schema": {"fields": fields.collect::<Vec<_>>()}})
}

fn data(prev: Option<u64>, start: u64, end: u64) -> Value {
    let hash = Multihash::sha3_256(b"data").to_string();
    let mut event = json!({"kind": "AddData", "newData": {
        "logicalHash": hash, "physicalHash": hash,
        "offsetInterval": {"start": start, "end": end}, "size": 1,
    }});
    if let Some(prev) = prev {
        event["prevOffset"] = prev.into();
    }
    event
}

fn watermark(text: &str) -> Value {
    json!({"kind": "AddData", "newWatermark": text})
}

/// What makes a case of the vectors happen.
#[expect(clippy::too_many_lines, reason = "an arm a case")]
fn attempt(case: &str) -> Result<()> {
    let info = json!({"kind": "SetInfo", "description": "x"});
    let id = DatasetId::generate().unwrap().id.to_string();
    let seed = json!({"kind": "Seed", "datasetId": id, "datasetKind": "Root"});
    let hash = Multihash::sha3_256(b"before");
    let (new, known) = (Bench::new(), Bench::with_schema());
    let mut grown = Bench::with_schema();
    grown.add(&data(None, 0, 9));
    let mut timed = Bench::with_schema();
    timed.add(&watermark("2020-01-02T00:00:00Z"));
    let checkpoint = json!({"physicalHash": hash.to_string(), "size": 1});
    match case {
        c if c.starts_with("non-Seed") => {
            let block = Block::new(new.time, None, 0, &info).unwrap();
            State::default().check_new(&block)
        }
        c if c.starts_with("Seed with") => new
            .state
            .check_new(&Block::new(new.time, Some(&hash), 1, &seed).unwrap()),
        c if c.starts_with("prev block missing") => new
            .state
            .check_new(&Block::new(new.time, Some(&hash), 1, &info).unwrap()),
        c if c.starts_with("first block") => {
            State::default().check_new(&Block::new(new.time, None, 3, &seed).unwrap())
        }
        c if c.starts_with("sequenceNumber != prev+1") => {
            let tip = new.state.tip.clone().unwrap();
            new.state
                .check_new(&Block::new(new.time, Some(&tip.hash), 5, &info).unwrap())
        }
        c if c.starts_with("systemTime <") => {
            let tip = new.state.tip.clone().unwrap();
            let before = new.time - Duration::nanoseconds(1);
            new.state
                .check_new(&Block::new(before, Some(&tip.hash), 1, &info).unwrap())
        }
        c if c.starts_with("AddData with newData and no") => new.check(&data(None, 0, 9)),
        c if c.starts_with("AddData without newData") => {
            new.check(&watermark("2020-01-01T00:00:00Z"))
        }
        c if c.starts_with("SetPollingSource/") => {
            let sql =
                json!({"kind": "Sql", "engine": "datafusion", "queries": [{"query": "select 1"}]});
            let read = json!({"kind": "NdJson"});
            let append = json!({"kind": "Append"});
            new.check(
                &json!({"kind": "SetPollingSource", "read": read, "merge": append,
                "fetch": {"kind": "Url", "url": "https://example.com"}}),
            )?;
            new.check(
                &json!({"kind": "AddPushSource", "sourceName": "default", "read": read,
                "merge": append, "preprocess": sql}),
            )?;
            new.check(&json!({"kind": "SetTransform", "transform": sql,
                "inputs": [{"datasetRef": id, "alias": "a"}]}))
        }
        c if c.starts_with("AddData with all of") => known.check(&json!({"kind": "AddData"})),
        c if c.starts_with("AddData whose watermark") => {
            timed.check(&watermark("2020-01-02T00:00:00Z"))
        }
        c if c.starts_with("prevOffset !=") => grown.check(&data(Some(7), 8, 9)),
        c if c.starts_with("newData.offsetInterval.start") => grown.check(&data(Some(9), 11, 12)),
        c if c.starts_with("offsetInterval.end <") => grown.check(&data(Some(9), 10, 9)),
        c if c.starts_with("watermark decreases") => {
            let gone = timed.check(&data(None, 0, 1));
            assert_eq!(rule(gone).0, "WatermarkIsNotMonotonic");
            timed.check(&watermark("2020-01-01T00:00:00Z"))
        }
        c if c.starts_with("prevCheckpoint !=") => {
            let mut other = Bench::with_schema();
            other.add(&json!({"kind": "AddData", "newCheckpoint": checkpoint}));
            other.check(&data(None, 0, 1))
        }
        c if c.contains("identical to current") => known.check(&schema_of(&[
            ("offset", false),
            ("city", false),
            ("note", true),
        ])),
        c if c.contains("rename/remove field") => {
            for fields in [
                &[("offset", false), ("town", false), ("note", true)][..],
                &[("offset", false), ("city", true), ("note", true)][..],
                &[("offset", false), ("city", false), ("note", false)][..],
                &[
                    ("offset", false),
                    ("city", false),
                    ("note", true),
                    ("more", false),
                ][..],
            ] {
                assert_eq!(rule(known.check(&schema_of(fields))).0, "InvalidEvent");
            }
            known.check(&schema_of(&[("offset", false), ("city", false)]))
        }
        c if c.contains("add optional field") => {
            known.check(&schema_of(&[
                ("note", true),
                ("offset", false),
                ("city", false),
                ("more", true),
            ]))?;
            let mut annotated = schema_of(&[("offset", false), ("city", false), ("note", true)]);
            annotated["schema"]["extra"] = json!({"example.com/a": [1, {"b": null}]});
            known.check(&annotated)
        }
        c if c.contains("directly after a rawArrowSchema") => {
            let mut raw = Bench::new();
            let columns = schema::arrow_of(&schema_of(&[("offset", true), ("city", true)]))?;
            raw.add(&schema::event_of(&columns, true)?);
            raw.check(&schema_of(&[("offset", false), ("city", true)]))
        }
        c if c.contains("rawArrowSchema only") => {
            let columns = schema::arrow_of(&schema_of(&[("other", false)]))?;
            known.check(&schema::event_of(&columns, true)?)
        }
        other => Err(Error::other(format!("a case that nothing tests: {other}"))),
    }
}

#[test]
fn the_rules_of_the_chain_are_those_of_other_tools() {
    for case in vectors()["append_validation"].as_array().unwrap() {
        let name = case["case"].as_str().unwrap();
        let done = attempt(name);
        let Some(expected) = case["error"].as_str() else {
            done.unwrap_or_else(|e| panic!("{name}: {e}"));
            continue;
        };
        let (found, message) = rule(done);
        assert_eq!(found, expected, "{name}: {message}");
        if let Some(text) = case["msg"].as_str().filter(|text| !text.contains('{')) {
            assert_eq!(message, text, "{name}");
        }
        if let Some(start) = case["msg_prefix"].as_str() {
            assert!(message.starts_with(start), "{name}: {message}");
        }
    }
}

#[test]
fn multiformats_are_those_of_other_tools() {
    let hash = Multihash::sha3_256(b"multihash");
    for vector in vectors()["multiformats"].as_array().unwrap() {
        let expected = vector["expected"].as_str().unwrap();
        let given = vector["input"].as_str();
        let found = match vector["fn"].as_str().unwrap() {
            "sha3-256 multihash base16" => hash.to_string(),
            "sha3-256 multihash base58btc" => hash.to_base58(),
            "multibase base16 -> base58btc (sha2-256)" => {
                given.unwrap().parse::<Multihash>().unwrap().to_base58()
            }
            "as did:key" => given.unwrap().parse::<DatasetId>().unwrap().to_did_key(),
            "parse + print canonical" => given.unwrap().parse::<DatasetId>().unwrap().to_string(),
            other => panic!("a vector that nothing tests: {other}"),
        };
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn a_chain_grows_and_is_what_was_written() {
    let store = memory();
    let chain = created(&store).await;
    for round in 0..3_u32 {
        let first = i64::from(round) * 10;
        let done = ingest(&chain, rows(first, 10), &how()).await.unwrap();
        let slice = done.slice.unwrap();
        assert_eq!(
            (slice.start, slice.end),
            (u64::from(round) * 10, u64::from(round) * 10 + 9)
        );
        let kinds: Vec<&str> = done.appended.blocks.iter().map(|b| b.kind()).collect();
        let expected: &[&str] = if round == 0 {
            &["SetDataSchema", "AddData"]
        } else {
            &["AddData"]
        };
        assert_eq!(kinds, expected);
    }
    let found = verify(&chain, None, true).await.unwrap();
    assert_eq!((found.blocks, found.slices, found.rows), (5, 3, 30));
    assert!(found.problems.is_empty(), "{:?}", found.problems);
}

#[tokio::test]
async fn any_byte_that_changes_is_found() {
    let store = memory();
    let chain = created(&store).await;
    ingest(&chain, rows(0, 5), &how()).await.unwrap();
    let info = json!({"kind": "SetInfo", "description": "weather", "keywords": ["a", "b"]});
    chain.append(&[info], DEFAULT_TIMEOUT).await.unwrap();
    let objects = store.list("data/weather").await.unwrap();
    assert_eq!(objects.len(), 6);
    for object in objects {
        let path = object.location.to_string();
        let (raw, _) = store.get(&path, GetOptions::default()).await.unwrap();
        for at in 0..raw.len() {
            let mut changed = raw.to_vec();
            changed[at] ^= 1 << (at % 8);
            store
                .put(&path, changed.into(), PutMode::Overwrite)
                .await
                .unwrap();
            match verify(&chain, None, true).await {
                Ok(found) => assert!(!found.problems.is_empty(), "{path}, byte {at}"),
                Err(e) => panic!("{path}, byte {at}: {e}"),
            }
        }
        let short: Bytes = raw.slice(..raw.len() - 1);
        store.put(&path, short, PutMode::Overwrite).await.unwrap();
        assert!(
            !verify(&chain, None, true)
                .await
                .unwrap()
                .problems
                .is_empty(),
            "{path}, cut"
        );
        store.put(&path, raw, PutMode::Overwrite).await.unwrap();
    }
    assert!(
        verify(&chain, None, true)
            .await
            .unwrap()
            .problems
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_who_race_lose_nothing() {
    const WRITERS: i64 = 6;
    const ROUNDS: i64 = 5;
    let store = memory();
    let chain = created(&store).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let chain = Chain::new(store.clone(), chain.root()).unwrap();
        writers.spawn(async move {
            for round in 0..ROUNDS {
                let from = (writer * ROUNDS + round) * 10;
                ingest(&chain, rows(from, 10), &how()).await.unwrap();
                let text = format!("{writer}/{round}");
                let info = json!({"kind": "SetInfo", "description": text});
                chain.append(&[info], DEFAULT_TIMEOUT).await.unwrap();
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    let found = verify(&chain, None, true).await.unwrap();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    assert_eq!(found.rows, 300);
    assert_eq!(found.slices, 30);
    assert_eq!(found.blocks, 1 + 1 + 30 + 30);
    // Slices that were numbered anew leave none behind.
    assert_eq!(store.list("data/weather/data").await.unwrap().len(), 30);
}

/// Rows of a chain whose `value` is in a range.
async fn count_in(chain: &Chain, range: std::ops::Range<i64>) -> usize {
    let view = chain.view(&At::Head).await.unwrap();
    let (table, manifest) = view.snapshot().await.unwrap();
    let mut rows = scan(&table, Arc::new(manifest), Wanted::default())
        .await
        .unwrap();
    let mut found = 0;
    while let Some(batch) = rows.next().await {
        let batch = batch.unwrap();
        let values = batch.column_by_name("value").unwrap();
        let values = values.as_primitive::<Int64Type>().values();
        found += values.iter().filter(|value| range.contains(value)).count();
    }
    found
}

#[tokio::test]
async fn an_answer_that_is_lost_while_others_go_on_costs_no_row_and_doubles_none() {
    for compacts in [false, true] {
        for kind in [FaultKind::Unavailable, FaultKind::Conflict] {
            let mut request = 0;
            while lose_answer(request, kind, compacts).await {
                request += 1;
            }
            assert!(request > 3, "no request was interrupted");
        }
    }
}

/// Loses the answer to a request of an ingest, while another writer goes on; false when there was no
/// such request.
async fn lose_answer(request: usize, kind: FaultKind, compacts: bool) -> bool {
    let objects = Arc::new(MemoryStore::new());
    let faulty = Arc::new(FaultyStore::new(Arc::clone(&objects)));
    let other = store_over(&Arc::new(FaultyStore::new(objects)), true);
    let chain = created(&store_over(&faulty, true)).await;
    ingest(&chain, rows(0, 3), &how()).await.unwrap();
    let theirs = Chain::new(other, chain.root()).unwrap();
    let meanwhile = theirs.clone();
    faulty.interrupt_and_lose(request, kind, move || {
        let work = async move {
            ingest(&meanwhile, rows(100, 5), &how()).await.unwrap();
            if compacts {
                let options = how().options;
                compact(&meanwhile, u64::MAX, &options, DEFAULT_TIMEOUT)
                    .await
                    .unwrap();
            }
        };
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
        };
        std::thread::spawn(move || runtime().block_on(work))
            .join()
            .unwrap();
    });
    let done = ingest(&chain, rows(10, 3), &how()).await;
    let reached = faulty.requests() > request;
    let named = format!("request {request}, {kind:?}, compacts {compacts}: {done:?}");
    let found = verify(&theirs, None, true).await.unwrap();
    assert!(found.problems.is_empty(), "{named}: {:?}", found.problems);
    let ours = count_in(&theirs, 10..20).await;
    match done {
        Ok(_) => assert_eq!(ours, 3, "{named}"),
        Err(_) => assert!(ours == 0 || ours == 3, "{named}"),
    }
    assert_eq!(count_in(&theirs, 0..10).await, 3, "{named}");
    assert_eq!(
        count_in(&theirs, 100..200).await,
        if reached { 5 } else { 0 },
        "{named}"
    );
    reached
}
