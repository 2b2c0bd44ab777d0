//! What a chain shows at a block: its schema and its slices.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{RecordBatch, UInt64Array};
use arrow_row::{OwnedRow, RowConverter, SortField};
use arrow_schema::{Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::take::take;

use super::block::Block;
use super::chain::Chain;
use super::ingest::{Slice, rows_of};
use super::multihash::Multihash;
use super::rules::{State, Vocabulary, is_data};
use super::schema;
use super::time::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::file::TAIL_BYTES;
use crate::part::open;
use crate::table::format::Manifest;
use crate::table::{Table, Wanted, scan};

/// Which block.
#[derive(Debug, Clone)]
pub enum At {
    /// The newest.
    Head,
    /// By hash.
    Hash(Multihash),
    /// The last that was appended by then, to the microsecond.
    Time(Moment),
}

/// A chain as it was at a block.
#[derive(Debug, Clone)]
pub struct View {
    chain: Chain,
    /// What it says.
    pub state: Arc<State>,
    blocks: Arc<Vec<Arc<Block>>>,
}

impl Chain {
    /// The chain as it was at a block.
    pub async fn view(&self, at: &At) -> Result<View> {
        let (head, newest) = self.state().await?;
        let hash = match at {
            At::Head => head.hash,
            At::Hash(hash) => hash.clone(),
            At::Time(time) => self.at_time(&head.hash, *time).await?,
        };
        let is_newest = newest.tip.as_ref().is_some_and(|tip| tip.hash == hash);
        let blocks = self.back_from(&hash, None, usize::MAX).await?;
        let state = if is_newest {
            newest
        } else {
            self.fresh_state(&hash).await?
        };
        Ok(View {
            chain: self.clone(),
            state,
            blocks: Arc::new(blocks),
        })
    }

    async fn at_time(&self, head: &Multihash, time: Moment) -> Result<Multihash> {
        let blocks = self.back_from(head, None, usize::MAX).await?;
        let found = blocks
            .iter()
            .find(|block| block.system_time.timestamp_micros() <= time.timestamp_micros());
        found.map(|block| block.hash().clone()).ok_or_else(|| {
            let message = format!("the dataset begins after {time}");
            Error::new(ErrorKind::NotFound, message).at(self.root())
        })
    }
}

impl View {
    /// The blocks, newest first.
    pub fn blocks(&self) -> &[Arc<Block>] {
        &self.blocks
    }

    /// The slices, oldest first.
    pub fn slices(&self) -> Result<Vec<Slice>> {
        let events = self
            .blocks
            .iter()
            .rev()
            .filter(|block| is_data(block.kind()));
        let slices = events.map(|block| Slice::of(block.event()));
        Ok(slices
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect())
    }

    /// The columns: those of the last `SetDataSchema`; without one, those of the newest file; None
    /// where nothing says.
    pub async fn schema(&self) -> Result<Option<SchemaRef>> {
        if let Some(event) = &self.state.schema {
            return Ok(Some(Arc::new(schema::arrow_of(event)?)));
        }
        let Some(newest) = self.slices()?.pop() else {
            return Ok(None);
        };
        let path = self.chain.data_path(&newest.physical.to_string());
        let part = open(self.chain.store(), &path, TAIL_BYTES).await?;
        let fields: Vec<_> = part.file.schema.fields().iter().cloned().collect();
        Ok(Some(Arc::new(Schema::new(fields))))
    }

    /// The rows as a snapshot that can be scanned.
    pub async fn snapshot(&self) -> Result<(Table, Manifest)> {
        let schema = self.schema().await?.ok_or_else(|| {
            let message =
                "the dataset has no schema yet: nothing was ingested, and no SetDataSchema";
            Error::new(ErrorKind::NotFound, message).at(self.chain.root())
        })?;
        rows_of(
            &self.chain,
            &schema,
            &self.state.vocabulary,
            &self.slices()?,
        )
    }

    /// The numbers of the rows that are left when retractions and corrections are applied, in order. All
    /// rows are held in memory.
    pub async fn ledger(&self) -> Result<RecordBatch> {
        let (table, manifest) = self.snapshot().await?;
        let mut found = scan(&table, Arc::new(manifest), Wanted::default()).await?;
        let schema = Arc::clone(&found.schema);
        let mut batches = Vec::new();
        while let Some(batch) = found.next().await {
            batches.push(batch?);
        }
        let vocabulary = self.state.vocabulary.clone();
        crate::part::blocking(move || {
            let all = concat_batches(&schema, &batches);
            let all = all.map_err(|e| Error::other(e.to_string()).caused_by(e))?;
            applied(&all, &vocabulary)
        })
        .await
    }
}

/// The numbers of the rows that operations leave.
fn applied(rows: &RecordBatch, vocabulary: &Vocabulary) -> Result<RecordBatch> {
    let wrong = |e: arrow_schema::ArrowError| Error::other(e.to_string()).caused_by(e);
    let [offset, operation, system_time, _] = vocabulary.names();
    let schema = rows.schema();
    let place = |name: &str| crate::parquet::types::index_of(&schema, name);
    let told: Vec<usize> = {
        let generated = [place(offset)?, place(operation)?, place(system_time)?];
        (0..schema.fields().len())
            .filter(|i| !generated.contains(i))
            .collect()
    };
    let fields = told
        .iter()
        .map(|i| SortField::new(schema.field(*i).data_type().clone()));
    let converter = RowConverter::new(fields.collect()).map_err(wrong)?;
    let columns: Vec<_> = told.iter().map(|i| Arc::clone(rows.column(*i))).collect();
    let keys = converter.convert_columns(&columns).map_err(wrong)?;
    let operations = arrow_cast::cast(
        rows.column(place(operation)?),
        &arrow_schema::DataType::Int32,
    );
    let operations = operations.map_err(wrong)?;
    let operations = operations.as_primitive::<Int32Type>();
    let mut standing: HashMap<OwnedRow, Vec<u64>> = HashMap::new();
    let mut kept = vec![false; rows.num_rows()];
    for (index, operation) in operations.values().iter().enumerate() {
        let key = keys.row(index).owned();
        if matches!(operation, 0 | 3) {
            standing.entry(key).or_default().push(index as u64);
            kept[index] = true;
            continue;
        }
        let Some(gone) = standing.get_mut(&key).and_then(Vec::pop) else {
            let message = format!(
                "row {index} of the changes retracts a row that is not there; scan the changes themselves"
            );
            return Err(Error::invalid(message));
        };
        kept[usize::try_from(gone).unwrap_or(usize::MAX)] = false;
    }
    let places = (0..rows.num_rows()).filter(|i| kept[*i]).map(|i| i as u64);
    let places = UInt64Array::from_iter_values(places);
    let left = take(rows.column(place(offset)?), &places, None).map_err(wrong)?;
    RecordBatch::try_from_iter([(offset, left)]).map_err(wrong)
}
