"""Snapshots as tables of DataFusion, over its C interface."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from pds import _pds
from pds.errors import CapabilityNotSupported

if TYPE_CHECKING:
    from pds.table.snapshot import Snapshot


def make_provider(snapshot: Snapshot, session: object) -> object:
    """Return a snapshot as the capsule that DataFusion takes for a table.

    Raises:
        CapabilityNotSupported: Another major version of DataFusion is installed. Its structs have another layout, which
            would crash the process.
        ModuleNotFoundError: DataFusion is not installed.
    """
    needed = _pds.DATAFUSION_VERSION
    requirement = f"pip install 'datafusion=={needed}.*'"
    try:
        installed = version("datafusion")
    except PackageNotFoundError as error:
        message = f"a table of DataFusion needs DataFusion {needed}: {requirement}"
        raise ModuleNotFoundError(message, name="datafusion") from error
    if installed.split(".")[0] != str(needed):
        raise CapabilityNotSupported(
            f"DataFusion {installed} cannot register tables of this version of pds, which needs DataFusion {needed}: "
            f"{requirement}, or register table.to_pyarrow_dataset()"
        )
    return _pds.datafusion_table_provider(snapshot._handle, session)  # noqa: SLF001 of the package
