//! The layout of the metadata events as data: the type of every flatbuffer slot, and the name of the same field in
//! YAML. [`super::encode`], [`super::decode`] and [`super::yaml`] interpret it.
//!
//! A [`TableLayout`] lists the fields of a table, a [`UnionLayout`] the variants of a union, an [`EnumLayout`] the
//! names of an enum. Slots are numbered in the order of declaration; a union takes two, the first for its tag.
//!
//! Nothing here fails: lookups of unknown names and tags return None, and the callers make errors of it.
//!
//! Source: `opendatafabric.fbs` and the JSON schemas of the Open Data Fabric specification.

/// The type of a field's value.
#[derive(Debug)]
pub(super) enum FieldType {
    /// The bytes of a multihash.
    Hash,
    /// The bytes of a dataset's identity.
    DatasetId,
    /// Bytes; base64 in YAML and JSON.
    Bytes,
    Text,
    /// A dataset's identity or alias, as text.
    DatasetRef,
    U64,
    U32,
    I32,
    Bool,
    Time,
    Enum(&'static EnumLayout),
    Table(&'static TableLayout),
    Union(&'static UnionLayout),
    Texts,
    Tables(&'static TableLayout),
    /// A vector of tables, each of which holds one union.
    Unions(&'static UnionLayout),
    /// A table with one string, which is a JSON object.
    Attributes,
}

/// An enum: the number of a name is its index.
#[derive(Debug)]
pub(super) struct EnumLayout {
    pub names: &'static [&'static str],
    pub width: EnumWidth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnumWidth {
    I16,
    I32,
}

#[derive(Debug)]
pub(super) struct TableLayout {
    pub name: &'static str,
    pub fields: &'static [FieldLayout],
}

#[derive(Debug)]
pub(super) struct FieldLayout {
    pub name: &'static str,
    pub field_type: FieldType,
    /// Whether the field may be absent. An optional number is written also if it is zero, since absent means another
    /// thing.
    pub optional: bool,
}

/// A union of tables; the tag of the first variant is 1.
#[derive(Debug)]
pub(super) struct UnionLayout {
    pub name: &'static str,
    pub variants: &'static [(&'static str, &'static TableLayout)],
}

impl FieldLayout {
    /// The number of slots that the field takes.
    pub(super) fn slot_count(&self) -> u16 {
        if matches!(self.field_type, FieldType::Union(_)) {
            2
        } else {
            1
        }
    }
}

impl TableLayout {
    /// Returns the fields, each with its first slot.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u16, &'static FieldLayout)> {
        self.fields.iter().scan(0, |next, field| {
            let slot = *next;
            *next += field.slot_count();
            Some((slot, field))
        })
    }

    /// The number of slots of all fields.
    pub(super) fn slot_count(&self) -> u16 {
        self.fields.iter().map(FieldLayout::slot_count).sum()
    }
}

impl UnionLayout {
    /// Returns the tag and the table of a variant. Older tools write the name in camel or lower case, so these are
    /// accepted.
    pub(super) fn variant_by_name(&self, name: &str) -> Option<(u8, &'static TableLayout)> {
        let index = self
            .variants
            .iter()
            .position(|(n, _)| is_spelling(n, name))?;
        Some((u8::try_from(index + 1).ok()?, self.variants[index].1))
    }

    /// Returns the name and the table of a tag; None if this release does not know the tag.
    pub(super) fn variant_by_tag(&self, tag: u8) -> Option<(&'static str, &'static TableLayout)> {
        let index = usize::from(tag).checked_sub(1)?;
        self.variants.get(index).copied()
    }
}

/// Whether `spelling` is `name` as the specification spells it, in camel case or in lower case.
pub(super) fn is_spelling(name: &str, spelling: &str) -> bool {
    let camel = || {
        let mut letters = name.chars();
        let first = letters.next().map(|c| c.to_ascii_lowercase());
        first.into_iter().chain(letters).eq(spelling.chars())
    };
    name == spelling || camel() || name.to_ascii_lowercase() == spelling
}

const fn required(name: &'static str, field_type: FieldType) -> FieldLayout {
    let optional = false;
    FieldLayout {
        name,
        field_type,
        optional,
    }
}

const fn optional(name: &'static str, field_type: FieldType) -> FieldLayout {
    let optional = true;
    FieldLayout {
        name,
        field_type,
        optional,
    }
}

macro_rules! tables {
    ($($constant:ident = $name:literal [$($field:expr),* $(,)?];)*) => {
        $(pub(super) static $constant: TableLayout = TableLayout { name: $name, fields: &[$($field),*] };)*
    };
}

macro_rules! unions {
    ($($constant:ident = $name:literal [$($variant:literal => $table:ident),* $(,)?];)*) => {
        $(pub(super) static $constant: UnionLayout = UnionLayout {
            name: $name,
            variants: &[$(($variant, &$table)),*],
        };)*
    };
}

use FieldType::{
    Attributes, Bool, Bytes, DatasetId, DatasetRef, Hash, I32, Tables, Text, Texts, Time, U32, U64,
};

static DATASET_KIND: EnumLayout = EnumLayout {
    names: &["Root", "Derivative"],
    width: EnumWidth::I32,
};
static TIME_UNIT: EnumLayout = EnumLayout {
    names: &["Second", "Millisecond", "Microsecond", "Nanosecond"],
    width: EnumWidth::I16,
};
static SOURCE_ORDERING: EnumLayout = EnumLayout {
    names: &["ByEventTime", "ByName"],
    width: EnumWidth::I32,
};
static COMPRESSION_FORMAT: EnumLayout = EnumLayout {
    names: &["Gzip", "Zip"],
    width: EnumWidth::I32,
};
static MQTT_QOS: EnumLayout = EnumLayout {
    names: &["AtMostOnce", "AtLeastOnce", "ExactlyOnce"],
    width: EnumWidth::I32,
};

unions! {
    EVENT = "MetadataEvent" [
        "AddData" => ADD_DATA, "ExecuteTransform" => EXECUTE_TRANSFORM, "Seed" => SEED,
        "SetPollingSource" => SET_POLLING_SOURCE, "SetTransform" => SET_TRANSFORM,
        "SetVocab" => SET_VOCAB, "SetAttachments" => SET_ATTACHMENTS, "SetInfo" => SET_INFO,
        "SetLicense" => SET_LICENSE, "SetDataSchema" => SET_DATA_SCHEMA,
        "AddPushSource" => ADD_PUSH_SOURCE, "DisablePushSource" => DISABLE_PUSH_SOURCE,
        "DisablePollingSource" => DISABLE_POLLING_SOURCE,
    ];
    ATTACHMENTS = "Attachments" ["Embedded" => EMBEDDED];
    TRANSFORM = "Transform" ["Sql" => SQL];
    FETCH_STEP = "FetchStep" [
        "Url" => FETCH_URL, "FilesGlob" => FETCH_FILES, "Container" => FETCH_CONTAINER,
        "Mqtt" => FETCH_MQTT, "EthereumLogs" => FETCH_ETHEREUM,
    ];
    EVENT_TIME_SOURCE = "EventTimeSource" [
        "FromMetadata" => NOTHING, "FromPath" => FROM_PATH, "FromSystemTime" => NOTHING,
    ];
    SOURCE_CACHING = "SourceCaching" ["Forever" => NOTHING];
    PREP_STEP = "PrepStep" ["Decompress" => DECOMPRESS, "Pipe" => PIPE];
    READ_STEP = "ReadStep" [
        "Csv" => READ_CSV, "GeoJson" => READ_PLAIN, "EsriShapefile" => READ_SHAPEFILE,
        "Parquet" => READ_PLAIN, "Json" => READ_JSON, "NdJson" => READ_ND_JSON,
        "NdGeoJson" => READ_PLAIN,
    ];
    MERGE_STRATEGY = "MergeStrategy" [
        "Append" => NOTHING, "Ledger" => MERGE_BY_KEY, "Snapshot" => MERGE_SNAPSHOT,
        "ChangelogStream" => MERGE_BY_KEY, "UpsertStream" => MERGE_BY_KEY,
    ];
    DATA_TYPE = "DataType" [
        "Binary" => TYPE_BINARY, "Bool" => NOTHING, "Date" => NOTHING, "Decimal" => TYPE_DECIMAL,
        "Duration" => TYPE_UNIT, "Float16" => NOTHING, "Float32" => NOTHING, "Float64" => NOTHING,
        "Int8" => NOTHING, "Int16" => NOTHING, "Int32" => NOTHING, "Int64" => NOTHING,
        "UInt8" => NOTHING, "UInt16" => NOTHING, "UInt32" => NOTHING, "UInt64" => NOTHING,
        "List" => TYPE_LIST, "Map" => TYPE_MAP, "Null" => NOTHING, "Option" => TYPE_OPTION,
        "Struct" => TYPE_STRUCT, "Time" => TYPE_UNIT, "Timestamp" => TYPE_TIMESTAMP,
        "String" => NOTHING,
    ];
}

tables! {
    NOTHING = "" [];
    SEED = "Seed" [
        required("datasetId", DatasetId), required("datasetKind", FieldType::Enum(&DATASET_KIND)),
    ];
    SET_DATA_SCHEMA = "SetDataSchema" [
        optional("rawArrowSchema", Bytes), optional("schema", FieldType::Table(&DATA_SCHEMA)),
    ];
    ADD_DATA = "AddData" [
        optional("prevCheckpoint", Hash), optional("prevOffset", U64),
        optional("newData", FieldType::Table(&DATA_SLICE)),
        optional("newCheckpoint", FieldType::Table(&CHECKPOINT)), optional("newWatermark", Time),
        optional("newSourceState", FieldType::Table(&SOURCE_STATE)), optional("extra", Attributes),
    ];
    EXECUTE_TRANSFORM = "ExecuteTransform" [
        required("queryInputs", Tables(&TRANSFORM_QUERY_INPUT)), optional("prevCheckpoint", Hash),
        optional("prevOffset", U64), optional("newData", FieldType::Table(&DATA_SLICE)),
        optional("newCheckpoint", FieldType::Table(&CHECKPOINT)), optional("newWatermark", Time),
    ];
    TRANSFORM_QUERY_INPUT = "ExecuteTransformInput" [
        required("datasetId", DatasetId), optional("prevBlockHash", Hash),
        optional("newBlockHash", Hash), optional("prevOffset", U64), optional("newOffset", U64),
    ];
    DATA_SLICE = "DataSlice" [
        required("logicalHash", Hash), required("physicalHash", Hash),
        required("offsetInterval", FieldType::Table(&OFFSET_INTERVAL)), required("size", U64),
    ];
    OFFSET_INTERVAL = "OffsetInterval" [required("start", U64), required("end", U64)];
    CHECKPOINT = "Checkpoint" [required("physicalHash", Hash), required("size", U64)];
    SOURCE_STATE = "SourceState" [
        required("sourceName", Text), required("kind", Text), required("value", Text),
    ];
    SET_VOCAB = "SetVocab" [
        optional("offsetColumn", Text), optional("operationTypeColumn", Text),
        optional("systemTimeColumn", Text), optional("eventTimeColumn", Text),
    ];
    SET_INFO = "SetInfo" [optional("description", Text), optional("keywords", Texts)];
    SET_LICENSE = "SetLicense" [
        required("shortName", Text), required("name", Text), optional("spdxId", Text),
        required("websiteUrl", Text),
    ];
    SET_ATTACHMENTS = "SetAttachments" [required("attachments", FieldType::Union(&ATTACHMENTS))];
    EMBEDDED = "AttachmentsEmbedded" [required("items", Tables(&ATTACHMENT))];
    ATTACHMENT = "AttachmentEmbedded" [required("path", Text), required("content", Text)];
    SET_TRANSFORM = "SetTransform" [
        required("inputs", Tables(&TRANSFORM_INPUT)), required("transform", FieldType::Union(&TRANSFORM)),
    ];
    TRANSFORM_INPUT = "TransformInput" [required("datasetRef", DatasetRef), optional("alias", Text)];
    SQL = "TransformSql" [
        required("engine", Text), optional("version", Text), optional("query", Text),
        optional("queries", Tables(&SQL_QUERY)), optional("temporalTables", Tables(&TEMPORAL_TABLE)),
    ];
    SQL_QUERY = "SqlQueryStep" [optional("alias", Text), required("query", Text)];
    TEMPORAL_TABLE = "TemporalTable" [required("name", Text), required("primaryKey", Texts)];
    SET_POLLING_SOURCE = "SetPollingSource" [
        required("fetch", FieldType::Union(&FETCH_STEP)), optional("prepare", FieldType::Unions(&PREP_STEP)),
        required("read", FieldType::Union(&READ_STEP)), optional("preprocess", FieldType::Union(&TRANSFORM)),
        required("merge", FieldType::Union(&MERGE_STRATEGY)),
    ];
    ADD_PUSH_SOURCE = "AddPushSource" [
        required("sourceName", Text), required("read", FieldType::Union(&READ_STEP)),
        optional("preprocess", FieldType::Union(&TRANSFORM)),
        required("merge", FieldType::Union(&MERGE_STRATEGY)),
    ];
    DISABLE_PUSH_SOURCE = "DisablePushSource" [required("sourceName", Text)];
    DISABLE_POLLING_SOURCE = "DisablePollingSource" [];
    FETCH_URL = "FetchStepUrl" [
        required("url", Text), optional("eventTime", FieldType::Union(&EVENT_TIME_SOURCE)),
        optional("cache", FieldType::Union(&SOURCE_CACHING)),
        optional("headers", Tables(&REQUEST_HEADER)),
    ];
    REQUEST_HEADER = "RequestHeader" [required("name", Text), required("value", Text)];
    FETCH_FILES = "FetchStepFilesGlob" [
        required("path", Text), optional("eventTime", FieldType::Union(&EVENT_TIME_SOURCE)),
        optional("cache", FieldType::Union(&SOURCE_CACHING)),
        optional("order", FieldType::Enum(&SOURCE_ORDERING)),
    ];
    FETCH_CONTAINER = "FetchStepContainer" [
        required("image", Text), optional("command", Texts), optional("args", Texts),
        optional("env", Tables(&ENV_VAR)),
    ];
    ENV_VAR = "EnvVar" [required("name", Text), optional("value", Text)];
    FETCH_MQTT = "FetchStepMqtt" [
        required("host", Text), required("port", I32), optional("username", Text),
        optional("password", Text), required("topics", Tables(&MQTT_TOPIC)),
    ];
    MQTT_TOPIC = "MqttTopicSubscription" [
        required("path", Text), optional("qos", FieldType::Enum(&MQTT_QOS)),
    ];
    FETCH_ETHEREUM = "FetchStepEthereumLogs" [
        optional("chainId", U64), optional("nodeUrl", Text), optional("filter", Text),
        optional("signature", Text),
    ];
    FROM_PATH = "EventTimeSourceFromPath" [
        required("pattern", Text), optional("timestampFormat", Text),
    ];
    DECOMPRESS = "PrepStepDecompress" [
        required("format", FieldType::Enum(&COMPRESSION_FORMAT)), optional("subPath", Text),
    ];
    PIPE = "PrepStepPipe" [required("command", Texts)];
    READ_PLAIN = "ReadStep" [
        optional("ddlSchema", Texts), optional("schema", FieldType::Table(&DATA_SCHEMA)),
    ];
    READ_SHAPEFILE = "ReadStepEsriShapefile" [
        optional("ddlSchema", Texts), optional("subPath", Text),
        optional("schema", FieldType::Table(&DATA_SCHEMA)),
    ];
    READ_CSV = "ReadStepCsv" [
        optional("ddlSchema", Texts), optional("separator", Text), optional("encoding", Text),
        optional("quote", Text), optional("escape", Text), optional("header", Bool),
        optional("inferSchema", Bool), optional("nullValue", Text), optional("dateFormat", Text),
        optional("timestampFormat", Text), optional("schema", FieldType::Table(&DATA_SCHEMA)),
    ];
    READ_JSON = "ReadStepJson" [
        optional("subPath", Text), optional("ddlSchema", Texts), optional("dateFormat", Text),
        optional("encoding", Text), optional("timestampFormat", Text),
        optional("schema", FieldType::Table(&DATA_SCHEMA)),
    ];
    READ_ND_JSON = "ReadStepNdJson" [
        optional("ddlSchema", Texts), optional("dateFormat", Text), optional("encoding", Text),
        optional("timestampFormat", Text), optional("schema", FieldType::Table(&DATA_SCHEMA)),
    ];
    MERGE_BY_KEY = "MergeStrategy" [required("primaryKey", Texts)];
    MERGE_SNAPSHOT = "MergeStrategySnapshot" [
        required("primaryKey", Texts), optional("compareColumns", Texts),
    ];
    DATA_SCHEMA = "DataSchema" [
        required("fields", Tables(&DATA_FIELD)), optional("extra", Attributes),
    ];
    DATA_FIELD = "DataField" [
        required("name", Text), required("type", FieldType::Union(&DATA_TYPE)),
        optional("extra", Attributes),
    ];
    TYPE_BINARY = "Binary" [optional("fixedLength", U64)];
    TYPE_DECIMAL = "Decimal" [required("precision", U32), required("scale", I32)];
    TYPE_UNIT = "Time" [optional("unit", FieldType::Enum(&TIME_UNIT))];
    TYPE_LIST = "List" [
        required("itemType", FieldType::Union(&DATA_TYPE)), optional("fixedLength", U64),
    ];
    TYPE_MAP = "Map" [
        required("keyType", FieldType::Union(&DATA_TYPE)), required("valueType", FieldType::Union(&DATA_TYPE)),
        optional("keysSorted", Bool),
    ];
    TYPE_OPTION = "Option" [required("inner", FieldType::Union(&DATA_TYPE))];
    TYPE_STRUCT = "Struct" [required("fields", Tables(&DATA_FIELD))];
    TYPE_TIMESTAMP = "Timestamp" [
        optional("unit", FieldType::Enum(&TIME_UNIT)), optional("timezone", Text),
    ];
}
