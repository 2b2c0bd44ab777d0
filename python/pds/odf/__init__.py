"""Open Data Fabric: datasets whose history and schema are in a chain of metadata blocks.

Blocks and data files are named by their hashes and never change. One reference, `refs/head`, names the newest block,
and conditional writes move it. The bytes of blocks are those that the specification defines.

    ds = pds.odf.Dataset.create(store, "weather")
    ds.ingest(table, event_time="at")
    ds.scan(where="celsius > 30").to_pyarrow()
    ds.verify()
"""

from __future__ import annotations

__all__ = [
    "AddData",
    "AddPushSource",
    "Block",
    "CompactResult",
    "Dataset",
    "DisablePollingSource",
    "DisablePushSource",
    "Event",
    "ExecuteTransform",
    "Identity",
    "IngestResult",
    "LedgerRows",
    "Multihash",
    "Scan",
    "Seed",
    "SetAttachments",
    "SetDataSchema",
    "SetInfo",
    "SetLicense",
    "SetPollingSource",
    "SetTransform",
    "SetVocab",
    "UnknownEvent",
    "VacuumResult",
    "VerifyResult",
    "attach",
]

from pds.odf.attach import attach
from pds.odf.block import Block
from pds.odf.dataset import Dataset
from pds.odf.events import (
    AddData,
    AddPushSource,
    DisablePollingSource,
    DisablePushSource,
    Event,
    ExecuteTransform,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    UnknownEvent,
)
from pds.odf.identity import Identity, Multihash
from pds.odf.results import CompactResult, IngestResult, VacuumResult, VerifyResult
from pds.odf.scan import LedgerRows, Scan
