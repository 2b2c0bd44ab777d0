//! Sets of positions in the lists of manifests and messages: Roaring bitmaps, base64 in JSON.

use roaring::RoaringBitmap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::files::Base64;

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
