"""What is in a folder before a table is written to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pds.errors import AlreadyExists, NotFound
from pds.table.table import Table

if TYPE_CHECKING:
    from pds.options import WriteOptions
    from pds.store import Store


def find_table(store: Store, path: str, options: WriteOptions | None = None) -> Table | None:
    """Return the table in a folder, or None."""
    try:
        return Table(store, path, options=options)
    except NotFound:
        return None


def check_is_no_dataset(store: Store, path: str) -> None:
    """Refuse to create a table in the folder of a dataset.

    Raises:
        AlreadyExists: The folder is a dataset.
    """
    if store.exists(f"{path}/_SUCCESS"):
        raise AlreadyExists("the folder is a dataset; a table needs a folder of its own", path=path)
