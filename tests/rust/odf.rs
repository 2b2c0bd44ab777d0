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
    Block, BlockSelector, Chain, DatasetId, DatasetKind, IngestOptions, Multihash, compact, ingest,
    rules::ChainState, schema, verify,
};
use pds::parquet::options::WriteOptions;
use pds::store::Store;
use pds::store::memory::MemoryStore;
use pds::table::{ScanOptions, Table, external_snapshot, scan};
use pds::testing::{FaultKind, FaultyStore, faulty_memory, test_store};
use pds::versions::commit::DEFAULT_TIMEOUT;
use pds::{Error, ErrorKind, Result};
use serde_json::{Value, json};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../vectors/odf.json")).unwrap()
}

fn decode_hex(hex: &str) -> Vec<u8> {
    let pairs = (0..hex.len()).step_by(2);
    pairs
        .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
        .collect()
}

/// JSON is YAML too.
fn block_manifest(version: &Value, content: &Value) -> String {
    json!({"kind": "MetadataBlock", "version": version, "content": content}).to_string()
}

#[test]
fn block_hashes_match_other_implementations() {
    let vectors = vectors();
    for vector in vectors["blocks"].as_array().unwrap() {
        let name = &vector["name"];
        let text = block_manifest(&vector["manifestVersion"], &vector["block"]);
        let block = Block::from_yaml(&text).unwrap();
        assert_eq!(block.hash().to_string(), vector["block_hash"], "{name}");
        assert_eq!(
            block.bytes().len() as u64,
            vector["len"].as_u64().unwrap(),
            "{name}"
        );
        assert_eq!(block.fields(), vector["block"]["event"], "{name}");
        assert_eq!(block.encode().unwrap(), block.bytes()[..], "{name}");
        if let Some(hex) = vector["manifest_bytes_hex"].as_str() {
            let raw = decode_hex(hex);
            let decoded = Block::from_bytes(raw.clone().into()).unwrap();
            assert_eq!(decoded.hash(), block.hash(), "{name}");
            assert_eq!(decoded.bytes(), &raw, "{name}");
            assert_eq!(decoded.encode().unwrap(), raw, "{name}");
            assert_eq!(decoded.fields(), vector["block"]["event"], "{name}");
        }
        let reparsed = Block::from_yaml(&block.to_yaml()).unwrap();
        assert_eq!(reparsed.bytes(), block.bytes(), "{name}");
    }
}

#[test]
fn block_layout_of_old_releases_is_rejected() {
    for vector in vectors()["must_be_rejected"].as_array().unwrap() {
        let raw = decode_hex(vector["manifest_bytes_hex"].as_str().unwrap());
        let error = Block::from_bytes(raw.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FormatNotSupported);
        assert!(error.message().contains("0.33"), "{error}");
    }
}

#[test]
fn yaml_matches_the_specification() {
    let vectors = vectors();
    let text = vectors["yaml_manifest"]["text"].as_str().unwrap();
    let block = Block::from_yaml(text).unwrap();
    assert_eq!(block.to_yaml(), text);
    let columns = schema::arrow_from_event(&block.fields()).unwrap();
    assert_eq!(
        columns
            .field_with_name("a")
            .unwrap()
            .data_type()
            .to_string(),
        "Int64"
    );
    let raw = schema::event_from_arrow(&columns, true).unwrap();
    assert_eq!(raw["rawArrowSchema"], block.fields()["rawArrowSchema"]);
}

#[test]
fn invalid_block_yaml_is_rejected_naming_the_field() {
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
    for (from, to, field) in cases {
        let error = Block::from_yaml(&text.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(field), "{to}: {error}");
        let kinds = [ErrorKind::InvalidInput, ErrorKind::FormatNotSupported];
        assert!(kinds.contains(&error.kind()), "{to}: {error}");
    }
}

#[test]
fn a_schema_event_needs_a_schema_however_its_kind_is_spelled() {
    for kind in ["SetDataSchema", "setDataSchema", "setdataschema"] {
        let error = Block::new(DateTime::UNIX_EPOCH, None, 0, &json!({"kind": kind})).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{kind}");
    }
}

/// A pseudorandom sequence.
fn next_random(seed: &mut u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn decoding_corrupt_blocks_does_not_panic() {
    let vectors = vectors();
    let cases = vectors["blocks"].as_array().unwrap();
    let blocks: Vec<Block> = cases
        .iter()
        .map(|v| Block::from_yaml(&block_manifest(&v["manifestVersion"], &v["block"])).unwrap())
        .collect();
    let rounds = if std::env::var_os("PDS_SOAK").is_some() {
        400_000
    } else {
        4_000
    };
    let mut seed = 7;
    for block in &blocks {
        for length in 0..block.bytes().len() {
            let prefix = block.bytes().slice(..length);
            assert!(
                Block::from_bytes(prefix).is_err(),
                "{length} bytes are taken for a block"
            );
        }
        for _ in 0..rounds {
            let mut raw = block.bytes().to_vec();
            for _ in 0..=next_random(&mut seed) % 4 {
                let index = usize::try_from(next_random(&mut seed)).unwrap() % raw.len();
                let special = [0, 1, 4, 0x7f, 0x80, 0xff];
                raw[index] = if next_random(&mut seed).is_multiple_of(2) {
                    special[usize::try_from(next_random(&mut seed)).unwrap() % special.len()]
                } else {
                    u8::try_from(next_random(&mut seed) % 256).unwrap()
                };
            }
            if let Ok(decoded) = Block::from_bytes(raw.into()) {
                let _ = decoded.to_yaml();
                let _ = decoded.encode();
            }
        }
    }
}

#[test]
fn decoding_repeated_offsets_terminates() {
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

fn memory_store() -> Store {
    test_store(&faulty_memory(), true)
}

pub(crate) async fn create_chain(store: &Store) -> Chain {
    let chain = Chain::new(store.clone(), "data/weather").unwrap();
    let id = DatasetId::generate().unwrap().id;
    chain.create(&id, DatasetKind::Root, None).await.unwrap();
    chain
}

pub(crate) fn rows(from: i64, count: i64) -> Box<dyn arrow_array::RecordBatchReader + Send> {
    let cities = ["Riga", "Oslo", "Bern"];
    let city_names = (from..from + count).map(|i| cities[usize::try_from(i % 3).unwrap()]);
    let times = TimestampMillisecondArray::from_iter_values((from..from + count).map(|i| i * 1000));
    let batch_result = RecordBatch::try_from_iter([
        ("event_time", Arc::new(times) as arrow_array::ArrayRef),
        ("city", Arc::new(StringArray::from_iter_values(city_names))),
        (
            "value",
            Arc::new(Int64Array::from_iter_values(from..from + count)),
        ),
    ]);
    let batch = batch_result.unwrap();
    let schema = batch.schema();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

pub(crate) fn ingest_options() -> IngestOptions {
    IngestOptions {
        event_time: None,
        watermark: None,
        source_state: None,
        write_options: WriteOptions::new("zstd", None, None, None, None).unwrap(),
        timeout: DEFAULT_TIMEOUT,
    }
}

fn violated_rule(result: Result<()>) -> (String, String) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidAppend, "{error}");
    (
        error.detail().unwrap().to_owned(),
        error.message().to_owned(),
    )
}

/// A chain in memory alone.
struct MemoryChain {
    state: ChainState,
    time: DateTime<Utc>,
}

impl MemoryChain {
    fn new() -> Self {
        let mut chain = Self {
            state: ChainState::default(),
            time: DateTime::UNIX_EPOCH,
        };
        let id = DatasetId::generate().unwrap().id.to_string();
        chain.append(&json!({"kind": "Seed", "datasetId": id, "datasetKind": "Root"}));
        chain
    }

    fn with_schema() -> Self {
        let mut chain = Self::new();
        chain.append(&schema_event(&[
            ("offset", false),
            ("city", false),
            ("note", true),
        ]));
        chain
    }

    fn next_block(&self, event: &Value) -> Block {
        let tip = self.state.tip.as_ref();
        let number = tip.map_or(0, |tip| tip.sequence_number + 1);
        Block::new(self.time, tip.map(|t| &t.hash), number, event).unwrap()
    }

    fn check(&self, event: &Value) -> Result<()> {
        self.state.check_new(&self.next_block(event))
    }

    fn append(&mut self, event: &Value) {
        let block = self.next_block(event);
        self.state.check_new(&block).unwrap();
        self.state.apply(&block);
    }
}

fn schema_event(columns: &[(&str, bool)]) -> Value {
    let fields = columns.iter().map(|(name, optional)| {
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

fn data_event(prev: Option<u64>, start: u64, end: u64) -> Value {
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

fn watermark_event(text: &str) -> Value {
    json!({"kind": "AddData", "newWatermark": text})
}

/// What makes a case of the vectors happen.
#[expect(clippy::too_many_lines, reason = "an arm a case")]
fn run_case(case: &str) -> Result<()> {
    let info = json!({"kind": "SetInfo", "description": "x"});
    let id = DatasetId::generate().unwrap().id.to_string();
    let seed = json!({"kind": "Seed", "datasetId": id, "datasetKind": "Root"});
    let hash = Multihash::sha3_256(b"before");
    let (new, with_schema) = (MemoryChain::new(), MemoryChain::with_schema());
    let mut with_data = MemoryChain::with_schema();
    with_data.append(&data_event(None, 0, 9));
    let mut with_watermark = MemoryChain::with_schema();
    with_watermark.append(&watermark_event("2020-01-02T00:00:00Z"));
    let checkpoint = json!({"physicalHash": hash.to_string(), "size": 1});
    match case {
        c if c.starts_with("non-Seed") => {
            let block = Block::new(new.time, None, 0, &info).unwrap();
            ChainState::default().check_new(&block)
        }
        c if c.starts_with("Seed with") => new
            .state
            .check_new(&Block::new(new.time, Some(&hash), 1, &seed).unwrap()),
        c if c.starts_with("prev block missing") => new
            .state
            .check_new(&Block::new(new.time, Some(&hash), 1, &info).unwrap()),
        c if c.starts_with("first block") => {
            ChainState::default().check_new(&Block::new(new.time, None, 3, &seed).unwrap())
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
        c if c.starts_with("AddData with newData and no") => new.check(&data_event(None, 0, 9)),
        c if c.starts_with("AddData without newData") => {
            new.check(&watermark_event("2020-01-01T00:00:00Z"))
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
        c if c.starts_with("AddData with all of") => with_schema.check(&json!({"kind": "AddData"})),
        c if c.starts_with("AddData whose watermark") => {
            with_watermark.check(&watermark_event("2020-01-02T00:00:00Z"))
        }
        c if c.starts_with("prevOffset !=") => with_data.check(&data_event(Some(7), 8, 9)),
        c if c.starts_with("newData.offsetInterval.start") => {
            with_data.check(&data_event(Some(9), 11, 12))
        }
        c if c.starts_with("offsetInterval.end <") => with_data.check(&data_event(Some(9), 10, 9)),
        c if c.starts_with("watermark decreases") => {
            let missing_watermark = with_watermark.check(&data_event(None, 0, 1));
            assert_eq!(
                violated_rule(missing_watermark).0,
                "WatermarkIsNotMonotonic"
            );
            with_watermark.check(&watermark_event("2020-01-01T00:00:00Z"))
        }
        c if c.starts_with("prevCheckpoint !=") => {
            let mut other = MemoryChain::with_schema();
            other.append(&json!({"kind": "AddData", "newCheckpoint": checkpoint}));
            other.check(&data_event(None, 0, 1))
        }
        c if c.contains("identical to current") => with_schema.check(&schema_event(&[
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
                assert_eq!(
                    violated_rule(with_schema.check(&schema_event(fields))).0,
                    "InvalidEvent"
                );
            }
            with_schema.check(&schema_event(&[("offset", false), ("city", false)]))
        }
        c if c.contains("add optional field") => {
            with_schema.check(&schema_event(&[
                ("note", true),
                ("offset", false),
                ("city", false),
                ("more", true),
            ]))?;
            let mut annotated = schema_event(&[("offset", false), ("city", false), ("note", true)]);
            annotated["schema"]["extra"] = json!({"example.com/a": [1, {"b": null}]});
            with_schema.check(&annotated)
        }
        c if c.contains("directly after a rawArrowSchema") => {
            let mut raw = MemoryChain::new();
            let columns =
                schema::arrow_from_event(&schema_event(&[("offset", true), ("city", true)]))?;
            raw.append(&schema::event_from_arrow(&columns, true)?);
            raw.check(&schema_event(&[("offset", false), ("city", true)]))
        }
        c if c.contains("rawArrowSchema only") => {
            let columns = schema::arrow_from_event(&schema_event(&[("other", false)]))?;
            with_schema.check(&schema::event_from_arrow(&columns, true)?)
        }
        other => Err(Error::other(format!("a case that nothing tests: {other}"))),
    }
}

#[test]
fn append_validation_matches_other_implementations() {
    for case in vectors()["append_validation"].as_array().unwrap() {
        let name = case["case"].as_str().unwrap();
        let result = run_case(name);
        let Some(expected) = case["error"].as_str() else {
            result.unwrap_or_else(|e| panic!("{name}: {e}"));
            continue;
        };
        let (rule, message) = violated_rule(result);
        assert_eq!(rule, expected, "{name}: {message}");
        if let Some(text) = case["msg"].as_str().filter(|text| !text.contains('{')) {
            assert_eq!(message, text, "{name}");
        }
        if let Some(start) = case["msg_prefix"].as_str() {
            assert!(message.starts_with(start), "{name}: {message}");
        }
    }
}

#[test]
fn multiformats_match_other_implementations() {
    let hash = Multihash::sha3_256(b"multihash");
    for vector in vectors()["multiformats"].as_array().unwrap() {
        let expected = vector["expected"].as_str().unwrap();
        let input = vector["input"].as_str();
        let rule = match vector["fn"].as_str().unwrap() {
            "sha3-256 multihash base16" => hash.to_string(),
            "sha3-256 multihash base58btc" => hash.to_base58(),
            "multibase base16 -> base58btc (sha2-256)" => {
                input.unwrap().parse::<Multihash>().unwrap().to_base58()
            }
            "as did:key" => input.unwrap().parse::<DatasetId>().unwrap().to_did_key(),
            "parse + print canonical" => input.unwrap().parse::<DatasetId>().unwrap().to_string(),
            other => panic!("a vector that nothing tests: {other}"),
        };
        assert_eq!(rule, expected);
    }
}

#[tokio::test]
async fn ingested_slices_verify() {
    let store = memory_store();
    let chain = create_chain(&store).await;
    for round in 0..3_u32 {
        let first = i64::from(round) * 10;
        let result = ingest(&chain, rows(first, 10), &ingest_options())
            .await
            .unwrap();
        let slice = result.slice.unwrap();
        assert_eq!(
            (slice.start, slice.end),
            (u64::from(round) * 10, u64::from(round) * 10 + 9)
        );
        let kinds: Vec<&str> = result
            .appended
            .blocks
            .iter()
            .map(|b| b.kind().name())
            .collect();
        let expected: &[&str] = if round == 0 {
            &["SetDataSchema", "AddData"]
        } else {
            &["AddData"]
        };
        assert_eq!(kinds, expected);
    }
    let rule = verify(&chain, None, true).await.unwrap();
    assert_eq!((rule.blocks, rule.slices, rule.rows), (5, 3, 30));
    assert!(rule.problems.is_empty(), "{:?}", rule.problems);
}

#[tokio::test]
async fn verify_detects_any_changed_byte() {
    let store = memory_store();
    let chain = create_chain(&store).await;
    ingest(&chain, rows(0, 5), &ingest_options()).await.unwrap();
    let info = json!({"kind": "SetInfo", "description": "weather", "keywords": ["a", "b"]});
    chain.append(&[info], DEFAULT_TIMEOUT).await.unwrap();
    let objects = store.list("data/weather").await.unwrap();
    assert_eq!(objects.len(), 6);
    for object in objects {
        let path = object.location.to_string();
        let (raw, _) = store.get(&path, GetOptions::default()).await.unwrap();
        for index in 0..raw.len() {
            let mut changed = raw.to_vec();
            changed[index] ^= 1 << (index % 8);
            store
                .put(&path, changed.into(), PutMode::Overwrite)
                .await
                .unwrap();
            match verify(&chain, None, true).await {
                Ok(rule) => assert!(!rule.problems.is_empty(), "{path}, byte {index}"),
                Err(e) => panic!("{path}, byte {index}: {e}"),
            }
        }
        let truncated: Bytes = raw.slice(..raw.len() - 1);
        store
            .put(&path, truncated, PutMode::Overwrite)
            .await
            .unwrap();
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
async fn concurrent_writers_lose_no_events() {
    const WRITERS: i64 = 6;
    const ROUNDS: i64 = 5;
    let store = memory_store();
    let chain = create_chain(&store).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let chain = Chain::new(store.clone(), chain.root()).unwrap();
        writers.spawn(async move {
            for round in 0..ROUNDS {
                let from = (writer * ROUNDS + round) * 10;
                ingest(&chain, rows(from, 10), &ingest_options())
                    .await
                    .unwrap();
                let text = format!("{writer}/{round}");
                let info = json!({"kind": "SetInfo", "description": text});
                chain.append(&[info], DEFAULT_TIMEOUT).await.unwrap();
            }
        });
    }
    while let Some(result) = writers.join_next().await {
        result.unwrap();
    }
    let rule = verify(&chain, None, true).await.unwrap();
    assert!(rule.problems.is_empty(), "{:?}", rule.problems);
    assert_eq!(rule.rows, 300);
    assert_eq!(rule.slices, 30);
    assert_eq!(rule.blocks, 1 + 1 + 30 + 30);
    // Slices that were numbered anew leave none behind.
    assert_eq!(store.list("data/weather/data").await.unwrap().len(), 30);
}

/// Rows of a chain whose `value` is in a range.
async fn count_values_in(chain: &Chain, range: std::ops::Range<i64>) -> usize {
    let view = chain.view(&BlockSelector::Head).await.unwrap();
    let table = Table::new(chain.store().clone(), chain.root()).unwrap();
    let manifest = external_snapshot(&view.files().await.unwrap()).unwrap();
    let mut rows = scan(&table, Arc::new(manifest), ScanOptions::default())
        .await
        .unwrap();
    let mut rule = 0;
    while let Some(batch) = rows.next().await {
        let batch = batch.unwrap();
        let column = batch.column_by_name("value").unwrap();
        let values = column.as_primitive::<Int64Type>().values();
        rule += values.iter().filter(|value| range.contains(value)).count();
    }
    rule
}

#[tokio::test]
async fn a_lost_response_neither_loses_nor_duplicates_rows() {
    for compacts in [false, true] {
        for kind in [FaultKind::Unavailable, FaultKind::Conflict] {
            let mut request = 0;
            while ingest_with_lost_response(request, kind, compacts).await {
                request += 1;
            }
            assert!(request > 3, "no request was interrupted");
        }
    }
}

/// Loses the answer to a request of an ingest, while another writer goes on; false when there was no
/// such request.
async fn ingest_with_lost_response(request: usize, kind: FaultKind, compacts: bool) -> bool {
    let objects = Arc::new(MemoryStore::new());
    let faulty = Arc::new(FaultyStore::new(Arc::clone(&objects)));
    let other = test_store(&Arc::new(FaultyStore::new(objects)), true);
    let chain = create_chain(&test_store(&faulty, true)).await;
    ingest(&chain, rows(0, 3), &ingest_options()).await.unwrap();
    let other_chain = Chain::new(other, chain.root()).unwrap();
    let concurrent_chain = other_chain.clone();
    faulty.interrupt_and_drop_response(request, kind, move || {
        let work = async move {
            ingest(&concurrent_chain, rows(100, 5), &ingest_options())
                .await
                .unwrap();
            if compacts {
                let options = ingest_options().write_options;
                compact(&concurrent_chain, u64::MAX, &options, DEFAULT_TIMEOUT)
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
    let result = ingest(&chain, rows(10, 3), &ingest_options()).await;
    let reached = faulty.requests() > request;
    let context = format!("request {request}, {kind:?}, compacts {compacts}: {result:?}");
    let rule = verify(&other_chain, None, true).await.unwrap();
    assert!(rule.problems.is_empty(), "{context}: {:?}", rule.problems);
    let own_rows = count_values_in(&other_chain, 10..20).await;
    match result {
        Ok(_) => assert_eq!(own_rows, 3, "{context}"),
        Err(_) => assert!(own_rows == 0 || own_rows == 3, "{context}"),
    }
    assert_eq!(count_values_in(&other_chain, 0..10).await, 3, "{context}");
    assert_eq!(
        count_values_in(&other_chain, 100..200).await,
        if reached { 5 } else { 0 },
        "{context}"
    );
    reached
}
