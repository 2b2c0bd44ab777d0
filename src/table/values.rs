//! The values in manifests that have a form of their own in JSON: positions, bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use roaring::RoaringBitmap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Positions in a list, from 0; a Roaring bitmap, stored in its portable format.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PositionBitmap(pub RoaringBitmap);

impl PositionBitmap {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for PositionBitmap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut runs = self.0.clone();
        runs.optimize();
        let mut bytes = Vec::with_capacity(runs.serialized_size());
        let result = runs.serialize_into(&mut bytes);
        result.map_err(serde::ser::Error::custom)?;
        Base64(bytes.into()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PositionBitmap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Base64::deserialize(deserializer)?.0;
        let bitmap = RoaringBitmap::deserialize_from(&bytes[..]);
        bitmap.map(Self).map_err(serde::de::Error::custom)
    }
}

/// Bytes that are base64 in JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base64(pub Bytes);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes.into()))
    }
}
