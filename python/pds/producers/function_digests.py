"""Digests of the functions of stages, by which an update finds one that changed without a new version."""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import inspect
import sys
import warnings
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pds.producers.calls import StageCall
    from pds.producers.graph import Node

RUNTIME = f"python{sys.version_info.major}.{sys.version_info.minor}"
"""Another version compiles the same function otherwise."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_LONG = 1024
_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR


def digest_of(*functions: object) -> tuple[str, str] | None:
    """Return what compiled functions, and a digest of them; None if one has no Python code.

    The digest sees the code, the default values and the variables that are closed over, where these are plain: numbers,
    texts, functions and tuples of these. It does not see comments, docstrings, annotations, where a function is, and
    what it reads of its module or of objects.
    """
    parts = [_describe(function, ()) for function in functions]
    if any(part is None for part in parts):
        return None
    return RUNTIME, hashlib.sha256("\n".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()


def warn_of_change(nodes: Mapping[str, Node], stage: str) -> None:
    """Warn at the line of its function that the function of a stage changed without a new version."""
    node = nodes[stage]
    call: StageCall | Any = node.function
    code = getattr(_unwrap(call.function), "__code__", None)
    (name, line) = (code.co_filename, code.co_firstlineno) if code is not None else (f"<stage {stage}>", 0)
    version = node.definition["version"]
    warnings.warn_explicit(
        f"the function of stage {stage!r} changed, and its version is still {version}: rows of keys that do not change "
        f"stay as the function before made them; declare version={version + 1} and call rebuild({stage!r}) to compute "
        "them anew, or ignore this if the results are the same",
        UserWarning,
        name,
        line,
    )


def _unwrap(function: object) -> object:
    """The function that is called in the end, as far as that is known."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        elif (wrapped := _wrapped(function)) is not None:
            function = wrapped
        elif (call := _call_of(function)) is not None:
            function = call
        else:
            return function


def _wrapped(function: object) -> object:
    """What a decorator made a function of, if it says so."""
    return inspect.getattr_static(function, "__wrapped__", None)


def _call_of(value: object) -> FunctionType | None:
    """The function of a class whose objects can be called."""
    calls = (vars(base).get("__call__") for base in type(value).__mro__)
    call = next((call for call in calls if call is not None), None)
    return call if isinstance(call, FunctionType) else None


def _describe(value: object, within: tuple[int, ...]) -> str | None:
    """The text of a function or a plain value; None of anything else. `within` are the ids of what it is in."""
    if isinstance(value, _PLAIN):
        text = repr(value)
        if len(text) > _LONG:
            text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{type(value).__name__} {text}"
    if id(value) in within:
        return "itself"
    within = (*within, id(value))
    if isinstance(value, tuple | frozenset):
        items = [str(_describe(item, within)) for item in value]
        # The order of a set is another in each process.
        return f"{type(value).__name__} {items if isinstance(value, tuple) else sorted(items)}"
    if isinstance(value, CodeType):
        return _describe_code(value, within)
    return _describe_function(value, within) if isinstance(value, FunctionType) else _describe_callable(value, within)


def _describe_function(function: FunctionType, within: tuple[int, ...]) -> str:
    cells = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is not assigned yet
            cells.append((name, cell.cell_contents))
    keywords = tuple(sorted((function.__kwdefaults__ or {}).items()))
    values = (function.__defaults__, keywords, tuple(cells), _wrapped(function))
    return f"{_describe_code(function.__code__, within)} with {_describe(values, within)}"


def _describe_callable(value: object, within: tuple[int, ...]) -> str | None:
    if isinstance(value, functools.partial):
        called = _describe(value.func, within)
        arguments = _describe((value.args, tuple(sorted(value.keywords.items()))), within)
        return None if called is None else f"{called} of {arguments}"
    if isinstance(value, MethodType):
        return _describe(value.__func__, within)
    wrapped = _wrapped(value)
    if wrapped is not None:
        return _describe(wrapped, within)
    # Of an object that can be called the class tells, not what it has.
    call = _call_of(value)
    return None if call is None else _describe(call, within)


def _describe_code(code: CodeType, within: tuple[int, ...]) -> str:
    parts = [str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS))]
    parts.append(str((code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], code.co_exceptiontable.hex())))
    for instruction in dis.get_instructions(code):
        if instruction.argval == "__firstlineno__":
            parts.pop()  # the line of a class
        parts.append(f"{instruction.opname} {_describe(instruction.argval, within)}")
    return "\n".join(parts)
