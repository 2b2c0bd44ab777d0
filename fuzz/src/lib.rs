//! What the fuzzers begin with: bytes of every kind, as the engine and `parquet` write them.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Int64Array, ListArray, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray,
};
use object_store::GetOptions;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterVersion};
use pds::dataset::{self, DatasetWrite, Layout, WriteTask};
use pds::odf::Block;
use pds::parquet::options::WriteOptions;
use pds::parquet::seal::Seal;
use pds::store::Store;
use pds::table::actions::{NewTable, create};
use pds::table::{ListingLimits, OpenedColumns, Table, TableWriteOptions, delete, write};
use pds::testing::{faulty_memory, test_store};
use pds::versions::commit::DEFAULT_TIMEOUT;

/// Files in the lists of the seeds.
const SEGMENT: u8 = 3;
/// A claim, as `docs/publish.md` has it.
const INTENT: &str = r#"{"format":2,"id":"0123456789abcdef0123456789abcdef","nonce":"0","owner":{"host":"h","pid":1,
"started":2},"phase":"active","base":{"manifest":"\"a\"","marker":"\"b\"","parts":{"part-00000.parquet":"\"c\""}},
"operation":"write","overwrite":true,"manifest":"{}","parts":[{"name":"part-00000.parquet","bytes":3,"task":0,
"sequence":0,"staged":{"kind":"inline","bytes":"AAAA"}}]}"#;

type Seeds = Vec<(&'static str, Vec<u8>)>;

/// Bytes by their kind.
///
/// # Panics
/// Where the engine fails to write them.
pub fn seeds() -> Seeds {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let mut all = blocks();
    all.extend(runtime.expect("a runtime").block_on(files()));
    all
}

/// The blocks of the test vectors.
fn blocks() -> Seeds {
    let vectors: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/vectors/odf.json")).expect("JSON");
    let mut all = Vec::new();
    for vector in vectors["blocks"].as_array().expect("blocks") {
        let manifest = serde_json::json!({
            "kind": "MetadataBlock",
            "version": vector["manifestVersion"],
            "content": vector["block"],
        });
        let block = Block::from_yaml(&manifest.to_string()).expect("a block");
        all.push(("yaml", block.to_yaml().into_bytes()));
        all.push(("block", block.bytes().to_vec()));
    }
    all
}

fn rows(first: i64) -> RecordBatch {
    let numbers = (first..first + 50).map(|n| (n % 7 > 0).then_some(n));
    let numbers: Int64Array = numbers.collect();
    let texts = StringArray::from_iter_values((0..50).map(|n| format!("text {}", n % 5)));
    let lists = (0..50).map(|n| (n % 3 > 0).then(|| (0..n % 4).map(Some)));
    let lists = ListArray::from_iter_primitive::<arrow_array::types::Int32Type, _, _>(lists);
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("id", Arc::new(numbers), true),
        ("text", Arc::new(texts), true),
        ("list", Arc::new(lists), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("equal lengths")
}

fn reader(batch: RecordBatch) -> Box<dyn RecordBatchReader + Send> {
    let schema = batch.schema();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

fn options() -> WriteOptions {
    WriteOptions::new("zstd", None, Some(20), None, None).expect("options")
}

/// A dataset's and a table's objects, told apart by their names, and a file without checksums.
async fn files() -> Seeds {
    let store = test_store(&faulty_memory(), false);
    write_dataset(&store).await.expect("a dataset");
    write_table(&store).await.expect("a table");
    let mut all = vec![("intent", INTENT.as_bytes().to_vec())];
    for meta in store.list("").await.expect("a list") {
        let path = meta.location.to_string();
        let (bytes, _) = store
            .get(&path, GetOptions::default())
            .await
            .expect("an object");
        let bytes = bytes.to_vec();
        let extension = meta.location.extension().unwrap_or_default();
        let kind = match (meta.location.filename().unwrap_or_default(), extension) {
            ("manifest.json", _) => "manifest",
            ("_latest_manifest", _) => "pointer",
            (_, "parquet") if path.contains("/segments/") => "segment",
            (_, "json") => "table",
            (_, "parquet") => "part",
            (_, "del") => "tombstones",
            _ => continue,
        };
        if kind == "part" {
            let footer = &bytes[bytes.len() - 8..bytes.len() - 4];
            let footer = u32::from_le_bytes(footer.try_into().expect("four bytes")) as usize;
            let end = bytes.len() - 8 - footer;
            let seal = Seal::declared_length(&bytes[..end]).expect("a seal");
            all.push(("seal", bytes[end - seal..end].to_vec()));
        }
        let bytes = match kind {
            "segment" => [&[SEGMENT][..], &bytes].concat(),
            _ => bytes,
        };
        all.push((kind, bytes));
    }
    let batch = rows(0);
    let deltas = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_writer_version(WriterVersion::PARQUET_2_0);
    let snappy = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let plain = WriterProperties::builder().set_dictionary_enabled(false);
    let others = plain
        .clone()
        .set_column_encoding("id".into(), Encoding::BYTE_STREAM_SPLIT)
        .set_column_encoding("text".into(), Encoding::DELTA_LENGTH_BYTE_ARRAY);
    for properties in [WriterProperties::builder(), plain, deltas, others, snappy] {
        let properties = Some(properties.build());
        let mut writer =
            ArrowWriter::try_new(Vec::new(), batch.schema(), properties).expect("a writer");
        writer.write(&batch).expect("rows");
        all.push(("part", writer.into_inner().expect("a file")));
    }
    all
}

async fn write_dataset(store: &Store) -> pds::Result<()> {
    let alone = WriteTask {
        number: 0,
        threads: 1,
        input_in_memory: true,
        keep_empty: true,
        shared: false,
    };
    let write = DatasetWrite::begin(store, "dataset", false, Layout::Single, options()).await?;
    let parts = dataset::prepare(store, &write, alone, reader(rows(0))).await?;
    dataset::publish(store, &write, parts, "0123456789abcdef")
        .await
        .map(drop)
}

/// A table of some commits, with lists of files and with deleted rows.
async fn write_table(store: &Store) -> pds::Result<()> {
    let mut table = Table::new(store.clone(), "table")?;
    table.limits = ListingLimits {
        max_inline_files: 2,
        max_segment_files: SEGMENT.into(),
        merge_factor: 2,
        ..ListingLimits::default()
    };
    let schema = rows(0).schema();
    create(&table, NewTable::new(&schema, &["id".to_owned()], &[])?).await?;
    for first in 0..8 {
        let how = TableWriteOptions {
            write_options: options(),
            input_in_memory: true,
            overwrite: false,
            idempotency_key: Some(first.to_string()),
            timeout: DEFAULT_TIMEOUT,
            if_version: None,
            merge_schema: false,
            sort_by: None,
            threads: None,
            opened: OpenedColumns::default(),
        };
        write(&table, reader(rows(first * 100)), &how).await?;
    }
    for filter in ["id BETWEEN 20 AND 30", "id % 2 = 1", "text = 'text 1'"] {
        delete(
            &table,
            &filter.into(),
            OpenedColumns::default(),
            DEFAULT_TIMEOUT,
        )
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the fuzzers begin with is of every kind, and what is asked of any bytes holds of it.
    #[test]
    fn the_seeds_hold_what_is_asked() {
        let seeds = seeds();
        for (kind, check) in pds::testing::FUZZ_CHECKS {
            let mut of_kind = seeds.iter().filter(|(of, _)| *of == kind).peekable();
            assert!(of_kind.peek().is_some(), "no seed of {kind}");
            of_kind.for_each(|(_, bytes)| check(bytes));
        }
    }
}
