"""Where an error arose in a user's code."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from pds.producers.convert import BadValueError

_Value = Any


def _find_code(function: _Value) -> _Value:
    """Return the code of a function, a method, a partial function or a callable object; None if it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__") and not inspect.isbuiltin(function) and not inspect.isclass(function):
        function = type(function).__call__
    return getattr(function, "__code__", None)


def locate_function(function: object) -> str | None:
    """Return the first line of a function as `file:line`."""
    code = _find_code(function)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def locate_error(error: BaseException, function: object, pairs: _Value) -> str | None:
    """Return the innermost line of the function's file in a traceback, or the line of the last yield."""
    code = _find_code(function)
    frame = getattr(pairs, "gi_frame", None)
    if isinstance(error, BadValueError):
        return locate_function(function) if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    location = locate_function(function)
    traceback = error.__traceback__
    while traceback is not None:
        if code is not None and traceback.tb_frame.f_code.co_filename == code.co_filename:
            location = f"{code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return location
