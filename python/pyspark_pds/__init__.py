"""How Spark finds ``format("pds")``: it imports every module whose name begins with ``pyspark_``.

So this one imports nothing that a session without tables of pds would not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from pds.spark.options import FixedVersion

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Tables of pds as a data source of Spark; `pds.spark.source`, `sink` and `stream` have its options."""

    _version: FixedVersion | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pds"

    def schema(self) -> StructType:
        """Return the columns that are read, and fix the version: Spark pickles this object afterwards."""
        from pds.spark.source import fix_version  # noqa: PLC0415 see above

        self._version, schema = fix_version(self.options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from pds.spark.options import FEED, parse_flag  # noqa: PLC0415 see above
        from pds.spark.source import FeedReader, TableReader  # noqa: PLC0415 see above

        reader = FeedReader if parse_flag(self.options, FEED) else TableReader
        return reader(self.options, schema, self._version)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 as Spark calls it
        """Return the writer of a batch query."""
        from pds.spark.sink import TableWriter  # noqa: PLC0415 see above

        return TableWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 as Spark calls it
        """Return the reader of a stream."""
        from pds.spark.stream import TableStreamReader  # noqa: PLC0415 see above
        from pds.spark.versions import has_read_limits  # noqa: PLC0415 see above

        if not has_read_limits():
            return TableStreamReader(self.options, schema, self._version)
        from pds.spark.admission import LimitedStreamReader  # noqa: PLC0415 see above

        return LimitedStreamReader(self.options, schema, self._version)

    def streamWriter(  # noqa: N802 as Spark calls it
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 as above
    ) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        from pds.spark.stream import TableStreamWriter  # noqa: PLC0415 see above

        return TableStreamWriter(self.options, schema, overwrite=overwrite)
