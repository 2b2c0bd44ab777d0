//! `manifest.json`, as RFC-0008 defines it (PDS-004, PDS-012).
//!
//! A [`DatasetManifest`] is written as the same text as remote-store's and reads what remote-store writes. Unknown
//! fields are ignored. Errors are [`ErrorKind::ManifestCorrupted`], whose detail is the reason: the text is not a JSON
//! object, a required field is missing, a field has another type or occurs twice, or, in
//! [`DatasetManifest::check_parts`], a part is not a plain file name.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::{INTENT, MANIFEST, SUCCESS};
use crate::error::{Error, ErrorKind, Result};
use crate::store::temp_name::TEMP_PREFIX;

/// The manifest of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetManifest {
    /// The folder of the dataset.
    pub dataset_key: String,
    /// File names of the parts, in order.
    pub parts: Vec<String>,
    /// Rows of all parts together.
    pub row_count: u64,
    /// First 16 hex characters of the SHA-256 of the schema's text.
    pub schema_hash: String,
    /// The codec's name.
    pub compression: String,
    /// When the write began, ISO 8601.
    pub created_at_utc: String,
    /// The caller's id of the run that wrote it.
    pub run_id: Option<String>,
    /// The caller's own keys and values.
    pub metadata: Option<BTreeMap<String, String>>,
}

const FIELDS: [&str; 8] = [
    "dataset_key",
    "parts",
    "row_count",
    "schema_hash",
    "compression",
    "created_at_utc",
    "run_id",
    "metadata",
];
const REQUIRED_FIELD_COUNT: usize = 6;

fn corrupted_error(message: &str, reason: impl Into<String>) -> Error {
    let reason = reason.into();
    Error::new(ErrorKind::ManifestCorrupted, format!("{message}: {reason}")).with_detail(reason)
}

impl DatasetManifest {
    /// The manifest as JSON in ASCII: sorted keys, an indent of two spaces, no fields that are None.
    pub fn to_json(&self) -> String {
        let mut object = BTreeMap::from([
            ("dataset_key", Value::from(self.dataset_key.as_str())),
            ("parts", Value::from(self.parts.clone())),
            ("row_count", Value::from(self.row_count)),
            ("schema_hash", Value::from(self.schema_hash.as_str())),
            ("compression", Value::from(self.compression.as_str())),
            ("created_at_utc", Value::from(self.created_at_utc.as_str())),
        ]);
        if let Some(run_id) = &self.run_id {
            object.insert("run_id", Value::from(run_id.as_str()));
        }
        if let Some(metadata) = &self.metadata {
            let pairs = metadata
                .iter()
                .map(|(k, v)| (k.clone(), Value::from(v.as_str())));
            object.insert("metadata", Value::Object(pairs.collect()));
        }
        // Serializing strings and numbers into memory cannot fail.
        let text = serde_json::to_string_pretty(&object).unwrap_or_default();
        escape_non_ascii(&text)
    }

    /// Parses a manifest; unknown keys are ignored. Errors are [`ErrorKind::ManifestCorrupted`].
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|e| {
            corrupted_error(
                "cannot parse the manifest's JSON",
                format!("not UTF-8: {e}"),
            )
        })?;
        let mut parser = serde_json::Deserializer::from_str(text);
        let object = parser
            .deserialize_any(ObjectVisitor)
            .and_then(|object| parser.end().map(|()| object))
            .map_err(|e| {
                corrupted_error(
                    "cannot parse the manifest's JSON",
                    format!("invalid JSON: {e}"),
                )
            })?;
        let Some(mut fields) = object else {
            return Err(corrupted_error(
                "the manifest must be a JSON object",
                "expected an object",
            ));
        };
        let missing: Vec<&str> = FIELDS[..REQUIRED_FIELD_COUNT]
            .iter()
            .copied()
            .filter(|f| !fields.contains_key(f))
            .collect();
        if !missing.is_empty() {
            return Err(corrupted_error(
                "the manifest lacks required fields",
                format!("missing fields: {}", missing.join(", ")),
            ));
        }
        let mut take = |name: &'static str| fields.remove(name).unwrap_or(Value::Null);
        Ok(Self {
            dataset_key: parse_string("dataset_key", take("dataset_key"))?,
            parts: parse_parts(take("parts"))?,
            row_count: take("row_count")
                .as_u64()
                .ok_or_else(|| field_error("row_count", "a non-negative whole number"))?,
            schema_hash: parse_string("schema_hash", take("schema_hash"))?,
            compression: parse_string("compression", take("compression"))?,
            created_at_utc: parse_string("created_at_utc", take("created_at_utc"))?,
            run_id: match take("run_id") {
                Value::Null => None,
                value => Some(parse_string("run_id", value)?),
            },
            metadata: parse_metadata(take("metadata"))?,
        })
    }

    /// Checks that every part is a plain file name, is not reserved for the dataset's own files, and is listed once.
    pub fn check_parts(&self) -> Result<()> {
        let mut names = HashSet::new();
        for part in &self.parts {
            let is_own_file = [MANIFEST, SUCCESS, INTENT].contains(&part.as_str())
                || part.starts_with(TEMP_PREFIX);
            let fault = if is_own_file {
                "has a name that is reserved for the dataset's own files"
            } else if part.contains('/') || crate::store::path::parse(part).is_err() {
                "is not a plain file name"
            } else if !names.insert(part) {
                "is listed twice"
            } else {
                continue;
            };
            return Err(corrupted_error(
                "the manifest lists an invalid part",
                format!("part {part:?} {fault}"),
            ));
        }
        Ok(())
    }
}

fn field_error(field: &str, expected: &str) -> Error {
    corrupted_error(
        "the manifest has an invalid field",
        format!("{field} must be {expected}"),
    )
}

fn parse_string(field: &str, value: Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(field_error(field, "a string")),
    }
}

fn parse_parts(value: Value) -> Result<Vec<String>> {
    let Value::Array(items) = value else {
        return Err(field_error("parts", "a list of strings"));
    };
    let texts = items.into_iter().map(|item| match item {
        Value::String(text) => Ok(text),
        _ => Err(field_error("parts", "a list of strings")),
    });
    texts.collect()
}

fn parse_metadata(value: Value) -> Result<Option<BTreeMap<String, String>>> {
    let expected = || field_error("metadata", "an object of strings");
    match value {
        Value::Null => Ok(None),
        Value::Object(pairs) => pairs
            .into_iter()
            .map(|(k, v)| match v {
                Value::String(text) => Ok((k, text)),
                _ => Err(expected()),
            })
            .collect::<Result<_>>()
            .map(Some),
        _ => Err(expected()),
    }
}

/// Keeps the known fields of an object; None for any other value. A known field that occurs twice is an error.
struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Option<BTreeMap<&'static str, Value>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let Some(name) = FIELDS.iter().copied().find(|f| *f == key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = map
                .next_value::<Value>()
                .map_err(|e| serde::de::Error::custom(format!("field {name}: {e}")))?;
            if fields.insert(name, value).is_some() {
                return Err(serde::de::Error::custom(format!(
                    "field {name} occurs twice"
                )));
            }
        }
        Ok(Some(fields))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Escapes DEL and all characters beyond ASCII, which in JSON occur in strings only.
fn escape_non_ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() && c != '\u{7f}' {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing into a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DatasetManifest {
        DatasetManifest {
            dataset_key: "silver/ünï".to_owned(),
            parts: vec!["data.parquet".to_owned()],
            row_count: 3,
            schema_hash: "0".repeat(16),
            compression: "zstd".to_owned(),
            created_at_utc: "2026-11-21T00:00:00+00:00".to_owned(),
            run_id: None,
            metadata: Some(BTreeMap::from([("𝄞".to_owned(), "\u{1}\"".to_owned())])),
        }
    }

    #[test]
    fn round_trips_as_ascii_with_sorted_keys() {
        let json = sample().to_json();
        assert!(json.is_ascii());
        assert!(
            json.starts_with("{\n  \"compression\": \"zstd\",\n  \"created_at_utc\""),
            "{json}"
        );
        assert!(json.contains("\\ud834\\udd1e"));
        assert!(!json.contains("run_id"));
        assert_eq!(
            DatasetManifest::from_json(json.as_bytes()).unwrap(),
            sample()
        );
    }

    #[test]
    fn names_the_field_that_is_wrong() {
        let good = sample().to_json();
        let deep = format!(
            "{}\"x\": {}{}}}",
            good.trim_end_matches(['}', '\n']),
            "[".repeat(9999),
            "]".repeat(9999)
        );
        for (from, to, named) in [
            ("\"row_count\": 3", "\"row_count\": true", "row_count"),
            ("\"row_count\": 3", "\"row_count\": 3.0", "row_count"),
            ("\"row_count\": 3", "\"row_count\": -3", "row_count"),
            ("\"row_count\": 3", "\"row_count\": 1e400", "JSON"),
            (
                "\"row_count\": 3",
                "\"row_count\": 99999999999999999999",
                "row_count",
            ),
            ("\"zstd\"", "null", "compression"),
            ("[", "{", "JSON"),
        ] {
            let bad = good.replacen(from, to, 1);
            let error = DatasetManifest::from_json(bad.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ManifestCorrupted);
            assert!(error.message().contains(named), "{error}");
        }
        assert!(DatasetManifest::from_json(deep.as_bytes()).is_err());
        assert!(DatasetManifest::from_json(b"\xff").is_err());
        for other in ["[1]", "1", "\"x\"", "null", "true", "1.5"] {
            assert!(
                DatasetManifest::from_json(other.as_bytes())
                    .unwrap_err()
                    .message()
                    .contains("object")
            );
        }
    }

    #[test]
    fn parts_stay_in_the_folder() {
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "/x",
            "a/b",
            "a\\b",
            "s3://b/x",
            "manifest.json",
            "_SUCCESS",
            "_publish.json",
            "a\0",
        ] {
            let manifest = DatasetManifest {
                parts: vec![bad.to_owned()],
                ..sample()
            };
            assert!(manifest.check_parts().is_err(), "{bad:?}");
        }
        let twice = DatasetManifest {
            parts: vec!["a".to_owned(), "a".to_owned()],
            ..sample()
        };
        assert!(twice.check_parts().is_err());
    }
}
