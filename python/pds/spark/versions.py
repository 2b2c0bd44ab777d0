"""What older versions of Spark do not have: Arrow batches for the sink of a stream (4.1), limits of its batches (4.2).

Everything else that `pds.spark` imports is in Spark 4.0; what is used where it exists is asked for in its place.
"""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.version import __version__ as spark_version

from pds.errors import CapabilityNotSupported
from pds.spark.options import LIMIT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    except ImportError:

        class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Gets Arrow batches from Spark 4.0, which gives them to writers of batch queries, also in a stream."""


__all__ = ["StreamArrowWriter", "check_batches", "check_limits", "has_read_limits", "spark_version"]


def has_read_limits() -> bool:
    """Return whether Spark asks the source of a stream for limits of a batch, and says where the batch begins."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def check_limits(options: Mapping[str, str]) -> None:
    """Refuse a limit of a stream's batches where Spark has none.

    Raises:
        CapabilityNotSupported: This Spark is older than 4.2.
    """
    named = next((name for name in LIMIT_OPTIONS if name in options), None)
    if named is not None and not has_read_limits():
        raise CapabilityNotSupported(
            f"the option {named} of readStream needs Spark 4.2 or newer, not {spark_version}; without it a batch has "
            "all rows that are new"
        )


def check_batches(handed: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Return the batches that Spark hands to the sink of a stream.

    Raises:
        CapabilityNotSupported: They are rows.
    """
    batches = iter(handed)
    # Before anything is staged, and not within the Arrow stream, which would hide what kind of error it is.
    for first in batches:
        if not isinstance(first, pa.RecordBatch):
            raise CapabilityNotSupported(
                f"Spark {spark_version} hands rows to the sink of a stream, and no Arrow batches; use Spark 4.1 or "
                "newer, or pds.spark.append in foreachBatch"
            )
        return itertools.chain([first], batches)
    return batches
