"""Data frames of packages that need not be installed, made of rows that are read when the package is there."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import pandas as pd
    import polars as pl
    import pyarrow as pa


def to_pandas(read: Callable[[], pa.Table]) -> pd.DataFrame:
    """Return the rows that `read` returns.

    Raises:
        ModuleNotFoundError: pandas is not installed. Nothing is read then.
    """
    _import("pandas", "to_pandas")
    return read().to_pandas()


def to_polars(read: Callable[[], pa.Table]) -> pl.DataFrame:
    """Return the rows that `read` returns.

    Raises:
        ModuleNotFoundError: polars is not installed. Nothing is read then.
    """
    frame: pl.DataFrame = _import("polars", "to_polars").DataFrame(read())
    return frame


def _import(package: str, method: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(f"{method} needs {package}: pip install {package}", name=package) from error
