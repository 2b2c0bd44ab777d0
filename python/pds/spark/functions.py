"""How the functions of stages reach the executors.

A function is sent by value, and so is the module that defines it, unless that is installed. Where the module cannot be
sent (it holds a lock, say) the executors import it; they refuse it if it is another one than that of the driver, as a
worker that ran before the module was edited may have.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import pickle
import sys
import sysconfig
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import cloudpickle

from pds.errors import InvalidInput
from pds.producers.calls import StageCall
from pds.producers.preserve import Preserve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from pds.producers.graph import Node

__all__ = ["PickledStage", "pickle_stage"]

# Its functions have no types.
_PICKLER: Final[Any] = cloudpickle
_REGISTRY_LOCK: Final = threading.Lock()


class _Digests(NamedTuple):
    """Digests of a module: of its source, if that is there, and of the functions and methods that it has loaded."""

    source: str | None
    code: str

    @classmethod
    def of(cls, module: ModuleType) -> _Digests:
        """Return those of a module."""
        source = None
        with contextlib.suppress(Exception):
            text: str = module.__loader__.get_source(module.__name__)  # type: ignore[union-attr]
            source = hashlib.sha256(text.encode()).hexdigest()
        code = hashlib.sha256()
        for name, value in sorted(vars(module).items()):
            if getattr(value, "__module__", None) != module.__name__:
                continue
            members = sorted(vars(value).items()) if isinstance(value, type) else [("", value)]
            for member, function in members:
                if isinstance(function, FunctionType):
                    code.update(f"{name}.{member}:{_describe(function.__code__)}\n".encode())
        return cls(source, code.hexdigest())

    def fit(self, other: _Digests) -> bool:
        """Whether both may be of the same module."""
        return self.code == other.code and (None in (self.source, other.source) or self.source == other.source)


@dataclass(frozen=True)
class PickledStage:
    """A pickled object with the functions of a stage."""

    pickled: bytes = field(repr=False)
    """May have secrets."""
    modules: dict[str, _Digests]
    """Modules that the executors import, as the driver has them."""

    def load(self) -> Any:  # noqa: ANN401 as pickle
        """Return the object.

        Raises:
            InvalidInput: A module is not there, or is another one than the driver's.
        """
        try:
            loaded = pickle.loads(self.pickled)  # noqa: S301 from the driver
            others = [
                name for name, own in self.modules.items() if not own.fit(_Digests.of(importlib.import_module(name)))
            ]
        except (ImportError, AttributeError) as error:
            message = f"executors cannot load the function of a stage: {error}; send its modules by spark.addArtifacts"
            raise InvalidInput(message) from error
        if others:
            raise InvalidInput(
                f"an executor has loaded another version of the module {others[0]!r} than the driver; send the newest "
                "by spark.addArtifacts, and start the session again if its workers have loaded an older one"
            )
        return loaded


def pickle_stage(value: object, node: Node) -> PickledStage:
    """Pickle the functions of a stage with the modules that define them, or else without these.

    Raises:
        InvalidInput: They cannot be pickled.
    """
    defining = {_module_of(node.function), _module_of(node.preserve)}
    modules = {module for module in defining if module is not None}
    for by_value in [modules, set()] if modules else [set()]:
        try:
            with _by_value(by_value):
                pickled: bytes = _PICKLER.dumps(value)
        except Exception as raised:  # noqa: BLE001 of any pickled object
            failure = raised
        else:
            return PickledStage(pickled, {module.__name__: _Digests.of(module) for module in modules - by_value})
    message = f"the function of stage {node.name!r} cannot be pickled for the Spark executors: {failure}"
    raise InvalidInput(message) from failure


def _describe(code: CodeType) -> str:
    """What code does, wherever it is."""
    constants = [
        _describe(value)
        if isinstance(value, CodeType)
        # A set has no order.
        else repr(sorted(map(repr, value)))
        if isinstance(value, frozenset)
        else repr(value)
        for value in code.co_consts
    ]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def _module_of(call: object) -> ModuleType | None:
    """Return the module that defines the user's function, unless it is installed or not a file."""
    function: Any = call
    if isinstance(function, functools.partial):
        function = next((value for value in function.args if isinstance(value, Preserve)), function)
    while isinstance(function, StageCall | Preserve | functools.partial):
        function = function.func if isinstance(function, functools.partial) else function.function
    name = getattr(function, "__module__", None) or type(function).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or name == "__main__":
        return None
    folders = Path(file).parts
    is_installed = "site-packages" in folders or "dist-packages" in folders
    return None if is_installed or Path(file).is_relative_to(sysconfig.get_path("stdlib")) else module


@contextlib.contextmanager
def _by_value(modules: set[Any]) -> Iterator[None]:
    """Pickle what these modules define by value, as that of the main module is."""
    # What is registered counts for all threads.
    with _REGISTRY_LOCK:
        known = _PICKLER.cloudpickle.list_registry_pickle_by_value()
        registered = [module for module in modules if module.__name__ not in known]
        for module in registered:
            _PICKLER.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in registered:
                _PICKLER.unregister_pickle_by_value(module)
