"""The manifest of a dataset, `manifest.json` (PDS-004)."""

from __future__ import annotations

import dataclasses

from pds import _pds, errors
from pds.display import Result


@dataclasses.dataclass(frozen=True, repr=False)
class DatasetManifest(Result):
    """The description of a dataset that was written.

    Args:
        dataset_key: The folder of the dataset, relative to the store.
        parts: The file names of the parts, in order.
        row_count: The number of rows in all parts.
        schema_hash: The first 16 hexadecimal characters of the SHA-256 of `schema.to_string()`.
        compression: The name of the codec.
        created_at_utc: The time at which the write began, in ISO 8601.
        run_id: The identifier of the run that wrote the dataset.
        metadata: Key-value pairs of the caller.
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
        """Return the manifest as JSON, with sorted keys, indented by two spaces, without fields that are None."""
        return _pds.manifest_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> DatasetManifest:
        """Parse the JSON of a manifest. Unknown keys are ignored.

        Args:
            text: The JSON, as text or as UTF-8 bytes.

        Raises:
            ManifestCorrupted: The text is not a JSON object, or a field is missing or has an invalid type. The
                attribute `reason` names the field.
        """
        if isinstance(text, str):
            data = text.encode("utf-8", "surrogatepass")
        elif isinstance(text, (bytes, bytearray)):
            data = bytes(text)
        else:
            reason = f"expected a string or bytes, found {type(text).__name__}"
            raise errors.ManifestCorrupted("cannot parse the manifest's JSON", reason=reason)
        return cls(**_pds.parse_manifest(data))
