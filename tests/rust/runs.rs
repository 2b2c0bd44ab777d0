//! Sorted runs: what is read of them is what a look at all rows finds, for every type and order of a key.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    ArrayRef, BinaryArray, Decimal128Array, Float32Array, Float64Array, Int64Array, RecordBatch,
    RecordBatchIterator, StringArray, StructArray, TimestampMicrosecondArray, UInt64Array,
    new_null_array,
};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use object_store::{GetOptions, PutMode};
use pds::parquet::options::WriteOptions;
use pds::run::{KeyColumn, KeyRange, KeySelection, RunOptions, RunReader, SortedRun, write_run};
use pds::store::Store;
use pds::testing::{faulty_memory, test_store};
use pds::{ErrorKind, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::sync_faults::store_in;

const KEYS: i64 = 3000;

/// A column of a key: for numbers from 0 its values, ascending; 0 is null.
type Values = fn(&[i64]) -> ArrayRef;

fn small(number: i64) -> i32 {
    i32::try_from(number).unwrap()
}

fn floats(number: i64) -> f64 {
    // The total order: negative NaN, numbers, -0.0, 0.0, numbers, NaN.
    match number {
        1 => -f64::NAN.copysign(1.0),
        2 => f64::NEG_INFINITY,
        1500 => -0.0,
        1501 => 0.0,
        2999 => f64::NAN.copysign(1.0),
        n if n < 1500 => -1e9 / (f64::from(small(n)) + 0.3),
        n => (f64::from(small(n)) - 1501.0) * 0.37,
    }
}

fn non_null<T>(numbers: &[i64], value: impl Fn(i64) -> T) -> Vec<Option<T>> {
    numbers
        .iter()
        .map(|n| (*n != 0).then(|| value(*n)))
        .collect()
}

fn long_text(number: i64) -> String {
    format!(
        "{}{:05}",
        "ä long prefix that all values share ".repeat(3),
        number
    )
}

const TYPES: [(&str, Values); 11] = [
    ("integers", |n| {
        Arc::new(Int64Array::from(non_null(n, |n| {
            (n - 1000) * 1_000_000_007
        })))
    }),
    ("unsigned", |n| {
        Arc::new(UInt64Array::from(non_null(n, |n| {
            u64::MAX - 3000 + n.unsigned_abs()
        })))
    }),
    ("floats", |n| {
        Arc::new(Float64Array::from(non_null(n, floats)))
    }),
    ("narrow floats", |n| {
        Arc::new(Float32Array::from(non_null(n, |n| {
            f32::from(i16::try_from(n).unwrap()) * 0.5 - 350.0
        })))
    }),
    ("texts", |n| {
        Arc::new(StringArray::from(non_null(n, |n| format!("{n:04}"))))
    }),
    ("long texts", |n| {
        Arc::new(StringArray::from(non_null(n, long_text)))
    }),
    ("bytes", |n| {
        let values = non_null(n, |n| [vec![0xff; 60], n.to_be_bytes().to_vec()].concat());
        Arc::new(BinaryArray::from_iter(values))
    }),
    ("decimals", |n| {
        let values = non_null(n, |n| i128::from(n - 1500) * 10_i128.pow(25));
        Arc::new(
            Decimal128Array::from(values)
                .with_precision_and_scale(38, 7)
                .unwrap(),
        )
    }),
    ("times", |n| {
        let values = non_null(n, |n| n * 86_400_000_001 - 9_000_000_000_000);
        Arc::new(TimestampMicrosecondArray::from(values).with_timezone("Europe/Vienna"))
    }),
    ("views", |n| {
        let texts = StringArray::from(non_null(n, |n| format!("{n:04} is the number")));
        cast(&texts, &DataType::Utf8View).unwrap()
    }),
    ("dictionaries", |n| {
        let texts = StringArray::from(non_null(n, |n| format!("{n:04}")));
        let key = Box::new(DataType::Int32);
        cast(&texts, &DataType::Dictionary(key, Box::new(DataType::Utf8))).unwrap()
    }),
];

fn structs(numbers: &[i64]) -> ArrayRef {
    // A null struct, a struct of nulls, then long texts beside numbers.
    let texts = numbers.iter().map(|n| (*n > 1).then(|| long_text(n / 50)));
    let texts: ArrayRef = Arc::new(texts.collect::<StringArray>());
    let rest = numbers
        .iter()
        .map(|n| (*n > 1 && n % 50 != 0).then_some(n % 50));
    let rest: ArrayRef = Arc::new(rest.collect::<Int64Array>());
    let fields = vec![
        Field::new("text", DataType::Utf8, true),
        Field::new("rest", DataType::Int64, true),
    ];
    let nulls = numbers.iter().map(|n| *n != 0).collect::<Vec<_>>();
    Arc::new(StructArray::new(
        fields.into(),
        vec![texts, rest],
        Some(nulls.into()),
    ))
}

struct Case {
    store: Store,
    schema: SchemaRef,
    key: Vec<KeyColumn>,
    run: SortedRun,
    /// The number of the key of each row.
    numbers: Vec<i64>,
    values: Values,
}

fn options(page_rows: usize, file_rows: u64) -> RunOptions {
    let write_options = WriteOptions::new("zstd", None, Some(5000), None, None).unwrap();
    RunOptions {
        page_rows,
        file_rows,
        ..RunOptions::new(write_options)
    }
}

fn names() -> impl FnMut() -> (String, String) + Send + 'static {
    let mut count = 0;
    move || {
        count += 1;
        let name = format!("{count}.parquet");
        (name.clone(), format!("runs/{name}"))
    }
}

fn batches(schema: &SchemaRef, columns: &[ArrayRef], sizes: usize) -> Vec<RecordBatch> {
    let whole = RecordBatch::try_new(Arc::clone(schema), columns.to_vec()).unwrap();
    let starts = (0..whole.num_rows()).step_by(sizes);
    starts
        .map(|at| whole.slice(at, sizes.min(whole.num_rows() - at)))
        .collect()
}

async fn case(values: Values, descending: bool, seed: u64) -> Case {
    let mut random = StdRng::seed_from_u64(seed);
    let mut numbers: Vec<i64> = (0..KEYS)
        .filter(|n| n % 7 != 3)
        .flat_map(|n| {
            std::iter::repeat_n(n, [1, 1, 2, 5, 300][usize::try_from(n).unwrap() % 61 % 5])
        })
        .collect();
    if descending {
        numbers.reverse();
    }
    let rows: Int64Array = (0..).take(numbers.len()).collect();
    let noise: StringArray = (0..numbers.len())
        .map(|_| Some(format!("{:x}", random.random::<u64>())))
        .collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(rows), values(&numbers), Arc::new(noise)];
    let schema = Arc::new(Schema::new(vec![
        Field::new("row", DataType::Int64, false),
        Field::new("key", columns[1].data_type().clone(), true),
        Field::new("noise", DataType::Utf8, false),
    ]));
    let key = vec![KeyColumn {
        name: "key".to_owned(),
        descending,
    }];
    let store = test_store(&faulty_memory(), true);
    let input = batches(&schema, &columns, 1777).into_iter().map(Ok);
    let input = RecordBatchIterator::new(input, Arc::clone(&schema));
    let run = write_run(
        &store,
        Box::new(input),
        &key,
        &options(1200, 12_345),
        names(),
    )
    .await
    .unwrap()
    .run;
    Case {
        store,
        schema,
        key,
        run,
        numbers,
        values,
    }
}

impl Case {
    fn reader(&self) -> RunReader {
        RunReader::new(
            &self.store,
            "runs",
            &self.schema,
            &self.key,
            self.run.clone(),
        )
        .unwrap()
    }

    async fn rows(&self, selection: &KeySelection) -> Vec<i64> {
        read(&self.reader(), selection, &[0, 2]).await.unwrap()
    }

    /// The rows whose numbers are selected.
    fn expected(&self, is_wanted: impl Fn(i64) -> bool) -> Vec<i64> {
        let rows = (0..).zip(&self.numbers).filter(|(_, n)| is_wanted(**n));
        rows.map(|(row, _)| row).collect()
    }
}

async fn read(reader: &RunReader, selection: &KeySelection, columns: &[usize]) -> Result<Vec<i64>> {
    let mut stream = reader.read(selection, columns, 1 << 20)?;
    let mut rows = Vec::new();
    while let Some(batch) = stream.next().await {
        rows.extend(batch?.column(0).as_primitive::<Int64Type>().values());
    }
    Ok(rows)
}

async fn check(values: Values, name: &str) {
    for descending in [false, true] {
        let case = case(values, descending, 5).await;
        assert!(case.run.files.len() > 2, "{name}");
        assert_eq!(
            case.rows(&KeySelection::All).await,
            case.expected(|_| true),
            "{name}"
        );
        let mut random = StdRng::seed_from_u64(9);
        for count in [0, 1, 1, 3, 40, 1000] {
            let selected: BTreeSet<i64> =
                (0..count).map(|_| random.random_range(0..KEYS)).collect();
            let mut keys: Vec<i64> = selected.iter().copied().collect();
            keys.rotate_left(count / 2);
            let selection = KeySelection::Keys(vec![(case.values)(&keys)]);
            let expected = case.expected(|n| selected.contains(&n));
            assert_eq!(
                case.rows(&selection).await,
                expected,
                "{name} {descending} {selected:?}"
            );
        }
        for _ in 0..8 {
            let (from, to) = (random.random_range(-1..KEYS), random.random_range(0..=KEYS));
            let bound = |n: i64, open: bool| (!open).then(|| vec![(case.values)(&[n])]);
            let selection = KeySelection::Ranges(vec![KeyRange {
                from: bound(from, from < 0),
                to: bound(to, to == KEYS),
            }]);
            let expected = case.expected(|n| {
                let after_from = from < 0 || if descending { n <= from } else { n >= from };
                let before_to = to == KEYS || if descending { n > to } else { n < to };
                after_from && before_to
            });
            assert_eq!(
                case.rows(&selection).await,
                expected,
                "{name} {descending} {from}..{to}"
            );
        }
    }
}

#[tokio::test]
async fn a_run_gives_the_rows_of_its_keys() {
    for (name, values) in TYPES {
        check(values, name).await;
    }
}

#[tokio::test]
async fn keys_may_be_structs() {
    check(structs, "structs").await;
}

/// Two columns, the first of which is long, in opposite orders.
async fn compound() -> (RunReader, Vec<(i64, i64)>, RunOptions) {
    let mut pairs: Vec<(i64, i64)> = (0..200)
        .flat_map(|a| (0..97).map(move |b| (a, b)))
        .collect();
    pairs.sort_by_key(|(a, b)| (*a, -b));
    let first: Vec<i64> = pairs.iter().map(|(a, _)| *a).collect();
    let second: Vec<i64> = pairs.iter().map(|(_, b)| *b).collect();
    let rows: Int64Array = (0..).take(pairs.len()).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(non_null(&first, long_text))),
        Arc::new(Int64Array::from(non_null(&second, |n| n))),
        Arc::new(rows),
    ];
    let schema = Arc::new(Schema::new(vec![
        Field::new("a", DataType::Utf8, true),
        Field::new("b", DataType::Int64, true),
        Field::new("row", DataType::Int64, false),
    ]));
    let key = [("a", false), ("b", true)];
    let key = key.map(|(name, descending)| KeyColumn {
        name: name.to_owned(),
        descending,
    });
    let store = test_store(&faulty_memory(), true);
    let input = batches(&schema, &columns, 900).into_iter().map(Ok);
    let input = Box::new(RecordBatchIterator::new(input, Arc::clone(&schema)));
    let options = options(1100, 6000);
    let run = write_run(&store, input, &key, &options, names())
        .await
        .unwrap()
        .run;
    (
        RunReader::new(&store, "runs", &schema, &key, run).unwrap(),
        pairs,
        options,
    )
}

#[tokio::test]
async fn the_first_columns_of_a_key_are_enough() {
    let (reader, pairs, _) = compound().await;
    let expected = |is_wanted: &dyn Fn(i64, i64) -> bool| -> Vec<i64> {
        let rows = (0..).zip(&pairs).filter(|(_, (a, b))| is_wanted(*a, *b));
        rows.map(|(row, _)| row).collect()
    };
    let texts =
        |numbers: &[i64]| -> ArrayRef { Arc::new(StringArray::from(non_null(numbers, long_text))) };
    let numbers =
        |numbers: &[i64]| -> ArrayRef { Arc::new(Int64Array::from(non_null(numbers, |n| n))) };
    for selected in [vec![0], vec![7], vec![63, 5, 199], vec![500]] {
        let selection = KeySelection::Keys(vec![texts(&selected)]);
        let result = read(&reader, &selection, &[2]).await.unwrap();
        assert_eq!(
            result,
            expected(&|a, _| selected.contains(&a)),
            "{selected:?}"
        );
    }
    for (a, b) in [(0, 0), (0, 96), (63, 1), (63, 95), (120, 0), (199, 96)] {
        let key = vec![texts(&[a]), numbers(&[b])];
        let result = read(&reader, &KeySelection::Keys(key.clone()), &[2])
            .await
            .unwrap();
        assert_eq!(result, expected(&|x, y| (x, y) == (a, b)), "{a} {b}");
        let selection = KeySelection::Ranges(vec![KeyRange {
            from: Some(key),
            to: None,
        }]);
        let result = read(&reader, &selection, &[2]).await.unwrap();
        // Of a descending column nulls, which are 0 here, are last.
        assert_eq!(
            result,
            expected(&|x, y| x > a || x == a && y <= b),
            "from {a} {b}"
        );
    }
}

/// A run of 400,000 rows, whose keys are their numbers, in three files with pages of some thousand rows.
async fn numbered(store: &Store) -> RunReader {
    let keys: Vec<i64> = (0..400_000).collect();
    let texts = keys.iter().map(|n| format!("{:x}", n * 7919));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(keys.clone())),
        Arc::new(StringArray::from_iter_values(texts)),
    ];
    let schema = Arc::new(Schema::new(vec![
        Field::new("row", DataType::Int64, false),
        Field::new("value", DataType::Utf8, false),
    ]));
    let key = [KeyColumn {
        name: "row".to_owned(),
        descending: false,
    }];
    let input = batches(&schema, &columns, 100_000).into_iter().map(Ok);
    let input = Box::new(RecordBatchIterator::new(input, Arc::clone(&schema)));
    let write_options = WriteOptions::new("zstd", None, None, None, None).unwrap();
    let options = RunOptions {
        file_rows: 200_000,
        ..RunOptions::new(write_options)
    };
    let run = write_run(store, input, &key, &options, names())
        .await
        .unwrap()
        .run;
    assert_eq!(
        run.files.iter().map(|f| f.rows).collect::<Vec<_>>(),
        [199_680, 199_680, 640]
    );
    RunReader::new(store, "runs", &schema, &key, run).unwrap()
}

#[tokio::test]
async fn one_key_costs_pages_not_files() {
    let memory = faulty_memory();
    let reader = numbered(&test_store(&memory, true)).await;
    let before = memory.requests();
    let selection = KeySelection::Keys(vec![Arc::new(Int64Array::from(vec![123_456]))]);
    assert_eq!(read(&reader, &selection, &[0, 1]).await.unwrap(), [123_456]);
    // Footer and page index in one, and a page of each column.
    assert!(
        memory.requests() - before <= 3,
        "{}",
        memory.requests() - before
    );
}

/// Keys that are far apart are read together, and in part from what was kept of other reads.
#[tokio::test]
async fn scattered_keys_are_read_together() {
    let folder = tempfile::tempdir().unwrap();
    let local = store_in(folder.path(), None);
    for store in [local, test_store(&faulty_memory(), true)] {
        let reader = numbered(&store).await;
        let mut random = StdRng::seed_from_u64(3);
        for count in [1, 30, 400, 3, 60, 400, 5000] {
            let selected: BTreeSet<i64> = (0..count)
                .map(|_| random.random_range(0..410_000))
                .collect();
            let keys = Int64Array::from_iter_values(selected.iter().copied());
            let selection = KeySelection::Keys(vec![Arc::new(keys)]);
            for columns in [&[0, 1][..], &[0], &[1]] {
                let (memory_bytes, mut texts, mut rows) =
                    (random.random_range(1..1 << 22), vec![], vec![]);
                let mut stream = reader.read(&selection, columns, memory_bytes).unwrap();
                while let Some(batch) = stream.next().await {
                    for (position, column) in columns.iter().zip(batch.unwrap().columns()) {
                        match position {
                            0 => rows.extend(column.as_primitive::<Int64Type>().values().to_vec()),
                            _ => texts.extend(
                                column
                                    .as_string::<i32>()
                                    .iter()
                                    .flatten()
                                    .map(str::to_owned),
                            ),
                        }
                    }
                }
                let expected = selected.iter().copied().filter(|n| *n < 400_000);
                let expected: Vec<i64> = expected.collect();
                if columns.contains(&0) {
                    assert_eq!(rows, expected);
                }
                if columns.contains(&1) {
                    let expected = expected.iter().map(|n| format!("{:x}", n * 7919));
                    assert_eq!(texts, expected.collect::<Vec<_>>());
                }
            }
        }
    }
}

fn numbers(keys: impl IntoIterator<Item = i64>) -> KeySelection {
    KeySelection::Keys(vec![Arc::new(Int64Array::from_iter_values(keys))])
}

#[tokio::test]
async fn lookups_of_other_keys_share_the_blocks_that_were_read() {
    let memory = faulty_memory();
    let reader = numbered(&test_store(&memory, true)).await;
    // Blocks 1 to 3 are one range.
    let keys = [1030, 2050, 3100];
    assert_eq!(read(&reader, &numbers(keys), &[0, 1]).await.unwrap(), keys);
    let before = memory.requests();
    for keys in [
        vec![2051],
        vec![3073, 3074],
        vec![1100, 2100],
        vec![2047, 3999],
    ] {
        let rows = read(&reader, &numbers(keys.clone()), &[0, 1]).await;
        assert_eq!(rows.unwrap(), keys);
    }
    assert_eq!(memory.requests(), before);
    // Block 4 is read, the one before it is not.
    let keys = [3500, 4100];
    assert_eq!(read(&reader, &numbers(keys), &[0, 1]).await.unwrap(), keys);
    assert!(memory.requests() > before);
}

/// A run of 72 blocks with texts of 2,600 characters, in three files.
async fn wide(store: &Store) -> RunReader {
    let schema = Arc::new(Schema::new(vec![
        Field::new("row", DataType::Int64, false),
        Field::new("text", DataType::Utf8, false),
        Field::new("noise", DataType::Utf8, false),
    ]));
    let mut random = StdRng::seed_from_u64(4);
    let of_batches = Arc::clone(&schema);
    let batches = (0..72).map(move |block| {
        let rows = block * 1024..(block + 1) * 1024;
        let texts = rows.clone().map(|_| "long ".repeat(520));
        let noise = rows
            .clone()
            .map(|_| format!("{:x}", random.random::<u128>()));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(rows)),
            Arc::new(StringArray::from_iter_values(texts)),
            Arc::new(StringArray::from_iter_values(noise)),
        ];
        RecordBatch::try_new(Arc::clone(&of_batches), columns)
    });
    let key = [KeyColumn {
        name: "row".to_owned(),
        descending: false,
    }];
    let input = Box::new(RecordBatchIterator::new(batches, Arc::clone(&schema)));
    let write_options = WriteOptions::new("zstd", None, None, None, None).unwrap();
    let run = write_run(store, input, &key, &RunOptions::new(write_options), names())
        .await
        .unwrap()
        .run;
    assert!(run.files.len() > 1);
    RunReader::new(store, "runs", &schema, &key, run).unwrap()
}

/// A lookup that reads more than what is kept leaves what others have read.
#[tokio::test]
async fn a_lookup_of_much_leaves_what_is_kept() {
    let memory = faulty_memory();
    let reader = wide(&test_store(&memory, true)).await;
    let few = [5, 2 * 1024 + 7, 70 * 1024 + 9];
    let rows = async || read(&reader, &numbers(few), &[0, 1, 2]).await.unwrap();
    assert_eq!(rows().await, few);
    let before = memory.requests();
    assert_eq!(rows().await, few);
    assert_eq!(memory.requests(), before);
    // Some 96 MB in 35 blocks, none of which is next to another one, so that each is a range of its own.
    let many: Vec<i64> = (0..35).map(|block| (2 * block + 1) * 1024 + 3).collect();
    let selection = numbers(many.clone());
    assert_eq!(read(&reader, &selection, &[0, 1, 2]).await.unwrap(), many);
    let after = memory.requests();
    assert!(after > before);
    assert_eq!(rows().await, few);
    assert_eq!(memory.requests(), after);
}

/// A run of 100 rows, whose keys are their numbers, in one small file.
async fn few(store: &Store) -> (SchemaRef, [KeyColumn; 1], SortedRun) {
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("row", DataType::Int64, false)]));
    let key = [KeyColumn {
        name: "row".to_owned(),
        descending: false,
    }];
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![rows]);
    let input = Box::new(RecordBatchIterator::new([batch], Arc::clone(&schema)));
    let options = RunOptions {
        caches_small_files: true,
        ..options(1024, 5000)
    };
    let written = write_run(store, input, &key, &options, names()).await;
    (schema, key, written.unwrap().run)
}

#[tokio::test]
async fn a_small_run_takes_one_request_and_none_where_it_was_written() {
    let memory = faulty_memory();
    let writer = test_store(&memory, true);
    let (schema, key, run) = few(&writer).await;
    for (store, requests) in [(writer, 0), (test_store(&memory, true), 1)] {
        let reader = RunReader::new(&store, "runs", &schema, &key, run.clone()).unwrap();
        let before = memory.requests();
        let rows = read(&reader, &numbers([5, 70]), &[0]).await.unwrap();
        assert_eq!(rows, [5, 70]);
        let rows = read(&reader, &KeySelection::All, &[0]).await.unwrap();
        assert_eq!(rows, (0..100).collect::<Vec<_>>());
        assert_eq!(memory.requests() - before, requests);
    }
}

/// What the process that wrote a run keeps of it is not what others read.
#[tokio::test]
async fn a_small_run_that_was_damaged_is_refused_elsewhere() {
    let memory = faulty_memory();
    let writer = test_store(&memory, true);
    let (schema, key, run) = few(&writer).await;
    let path = format!("runs/{}", run.files[0].name);
    let (whole, _) = writer.get(&path, GetOptions::default()).await.unwrap();
    // In a page, and in the footer.
    for position in [40, whole.len() - 30] {
        let mut damaged = whole.to_vec();
        damaged[position] ^= 0x55;
        let put = writer.put(&path, damaged.into(), PutMode::Overwrite);
        put.await.unwrap();
        let other = test_store(&memory, true);
        let reader = RunReader::new(&other, "runs", &schema, &key, run.clone()).unwrap();
        let error = read(&reader, &KeySelection::All, &[0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PartCorrupted, "{error}");
        let put = writer.put(&path, whole.clone(), PutMode::Overwrite);
        put.await.unwrap();
        // The error is not kept.
        let rows = read(&reader, &numbers([7]), &[0]).await.unwrap();
        assert_eq!(rows, [7]);
    }
}

#[tokio::test]
async fn a_run_of_fewer_rows_than_its_version_states_is_refused() {
    let store = test_store(&faulty_memory(), true);
    let (schema, key, mut run) = few(&store).await;
    run.files[0].rows += 1;
    let reader = RunReader::new(&store, "runs", &schema, &key, run).unwrap();
    let error = read(&reader, &KeySelection::All, &[0]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PartCorrupted, "{error}");
    // Whoever reads some keys does not see how many there are.
    let rows = read(&reader, &numbers([7]), &[0]).await.unwrap();
    assert_eq!(rows, [7]);
}

#[tokio::test]
async fn what_is_no_run_is_refused() {
    let store = test_store(&faulty_memory(), true);
    let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, true)]));
    let key = [KeyColumn {
        name: "key".to_owned(),
        descending: false,
    }];
    let write = async |values: Vec<Vec<Option<i64>>>, key: Vec<KeyColumn>| {
        let batch = |values: &Vec<Option<i64>>| {
            let column: ArrayRef = Arc::new(Int64Array::from(values.clone()));
            RecordBatch::try_new(Arc::clone(&schema), vec![column])
        };
        let input: Vec<_> = values.iter().map(batch).collect();
        let input = Box::new(RecordBatchIterator::new(input, Arc::clone(&schema)));
        write_run(&store, input, &key, &options(1024, 5000), names()).await
    };
    for unsorted in [
        vec![vec![Some(2), Some(1)]],
        vec![vec![Some(2)], vec![Some(1)]],
        vec![vec![Some(1), None]],
    ] {
        let error = write(unsorted, key.to_vec()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let missing = KeyColumn {
        name: "other".to_owned(),
        descending: false,
    };
    for bad_key in [vec![], vec![missing]] {
        let error = write(vec![vec![Some(1)]], bad_key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert!(store.list("runs").await.unwrap().is_empty());
    let run = write(vec![vec![], vec![]], key.to_vec()).await.unwrap().run;
    assert!(run.files.is_empty());
    let reader = RunReader::new(&store, "runs", &schema, &key, run).unwrap();
    assert!(
        read(&reader, &KeySelection::All, &[0])
            .await
            .unwrap()
            .is_empty()
    );
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
    let error = read(&reader, &KeySelection::Keys(vec![texts]), &[0])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let list = Field::new("key", DataType::new_list(DataType::Int64, true), true);
    let lists = Arc::new(Schema::new(vec![list.clone()]));
    let column = new_null_array(list.data_type(), 1);
    let input = RecordBatchIterator::new(
        [RecordBatch::try_new(Arc::clone(&lists), vec![column])],
        lists,
    );
    let written = write_run(&store, Box::new(input), &key, &options(1024, 5000), names()).await;
    let error = written.unwrap_err();
    assert!(error.to_string().contains("has no order"), "{error}");
}
