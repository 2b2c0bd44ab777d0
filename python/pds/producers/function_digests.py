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

RUNTIME = f"python{sys.version_info.major}.{sys.version_info.minor}" + ("-O" if sys.flags.optimize else "")
"""Another version, or one that leaves out assertions, compiles the same function otherwise."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_MAX_ITEMS = 10_000
"""Of longer tuples and sets the length tells alone: to describe each item takes a second for a million."""
_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR


def digest_of(*functions: object) -> tuple[str, str] | None:
    """Return what compiled functions, and a digest of them; None if one has no Python code, or cannot be looked into.

    The digest sees the code, the default values and the variables that are closed over, where these are plain: numbers,
    texts, functions and tuples of these. It does not see comments, docstrings, the annotations of the function itself,
    where a function is, and what it reads of its module or of objects.
    """
    describer = _Describer()
    try:
        digests = [describer.describe(function) for function in functions]
    except Exception:  # noqa: BLE001 it only serves a warning, and objects may raise anything when they are looked at
        return None
    if None in digests:
        return None
    return RUNTIME, _digest("\n".join(map(str, digests)))


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
    seen: list[object] = []
    while not any(function is one for one in seen):
        seen.append(function)
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        elif (wrapped := _wrapped(function)) is not None:
            function = wrapped
        elif (call := _call_of(function)) is not None:
            function = call
    return function


def _wrapped(function: object) -> object:
    """What a decorator made a function of, if it says so."""
    return inspect.getattr_static(function, "__wrapped__", None)


def _call_of(value: object) -> FunctionType | None:
    """The function of a class whose objects can be called."""
    calls = (vars(base).get("__call__") for base in type(value).__mro__)
    call = next((call for call in calls if call is not None), None)
    return call if isinstance(call, FunctionType) else None


def _digest(value: str | bytes) -> str:
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()


def _digest_plain(value: object) -> str:
    if isinstance(value, str | bytes):
        return _digest(value)
    # A long integer has no decimal text.
    return _digest(hex(value) if isinstance(value, int) else repr(value))


class _Describer:
    """Describes values by texts of a bounded length. An object that is met again is described once."""

    def __init__(self) -> None:
        self._digests: dict[int, str | None] = {}
        # An id is that of another object once the first is gone.
        self._seen: list[object] = []

    def describe(self, value: object) -> str | None:
        """Return the text of a function or a plain value; None for anything else."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {_digest_plain(value)}"
        if id(value) not in self._digests:
            # What is within itself is the object of this number there.
            self._digests[id(value)] = f"#{len(self._seen)}"
            self._seen.append(value)
            text = self._describe_object(value)
            self._digests[id(value)] = None if text is None else _digest(text)
        return self._digests[id(value)]

    def _describe_object(self, value: object) -> str | None:
        if isinstance(value, tuple | frozenset):
            if len(value) > _MAX_ITEMS:
                return f"{type(value).__name__} of {len(value)}"
            items = [str(self.describe(item)) for item in value]
            # The order of a set is another in each process.
            return f"{type(value).__name__} {' '.join(items if isinstance(value, tuple) else sorted(items))}"
        if isinstance(value, CodeType):
            return self._describe_code(value)
        return self._describe_function(value) if isinstance(value, FunctionType) else self._describe_callable(value)

    def _describe_function(self, function: FunctionType) -> str:
        cells = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it is not assigned yet
                cells.append((name, cell.cell_contents))
        keywords = tuple(sorted((function.__kwdefaults__ or {}).items()))
        values = (function.__defaults__, keywords, tuple(cells), _wrapped(function))
        return f"{self.describe(function.__code__)} with {self.describe(values)}"

    def _describe_callable(self, value: object) -> str | None:
        if isinstance(value, functools.partial):
            called = self.describe(value.func)
            arguments = self.describe((value.args, tuple(sorted(value.keywords.items()))))
            return None if called is None else f"{called} of {arguments}"
        if isinstance(value, MethodType):
            return self.describe(value.__func__)
        wrapped = _wrapped(value)
        if wrapped is not None:
            return self.describe(wrapped)
        # Of an object that can be called the class tells, not what it has.
        call = _call_of(value)
        return None if call is None else self.describe(call)

    def _describe_code(self, code: CodeType) -> str:
        parts = [str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS))]
        parts.append(str((code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], code.co_exceptiontable.hex())))
        for instruction in dis.get_instructions(code):
            if instruction.argval == "__firstlineno__":
                parts.pop()  # the line of a class
            parts.append(f"{instruction.opname} {self.describe(instruction.argval)}")
        return "\n".join(parts)
