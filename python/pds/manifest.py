"""`manifest.json` of a dataset (PDS-004)."""

from __future__ import annotations

import dataclasses

from pds import _pds, errors


@dataclasses.dataclass(frozen=True)
class DatasetManifest:
    """What a written dataset is.

    Args:
        dataset_key: The folder of the dataset, relative to the store.
        parts: File names of the parts, in order.
        row_count: Rows of all parts together.
        schema_hash: The first 16 hex characters of the SHA-256 of `schema.to_string()`.
        compression: The codec's name.
        created_at_utc: When the write began, ISO 8601.
        run_id: The run that wrote it.
        metadata: The caller's own pairs.
    """

    dataset_key: str
    parts: list[str]
    row_count: int
    schema_hash: str
    compression: str
    created_at_utc: str
    run_id: str | None = None
    metadata: dict[str, str] | None = None

    def to_json(self) -> str:
        """The manifest as JSON: sorted keys, indented by two, without fields that are None."""
        return _pds.manifest_to_json(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))

    @classmethod
    def from_json(cls, text: str) -> DatasetManifest:
        """Read a manifest; keys it does not know are ignored.

        Args:
            text: The JSON.

        Raises:
            ManifestCorrupted: If it is no JSON object, or a field is missing or mistyped; `reason` says which.
        """
        if isinstance(text, str):
            data = text.encode("utf-8", "surrogatepass")
        elif isinstance(text, (bytes, bytearray)):
            data = bytes(text)
        else:
            reason = f"expected text, got {type(text).__name__}"
            raise errors.ManifestCorrupted("cannot parse the manifest's JSON", reason=reason)
        return cls(*_pds.parse_manifest(data))
