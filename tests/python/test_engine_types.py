"""The types that describe arguments of the engine have the attributes that it reads from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from pds import engine_types

SOURCES = Path(__file__).parents[2] / "python/src"
STRUCT = re.compile(
    r"#\[derive\([^)]*\bFromPyObject\b[^)]*\)\]\s*(?:pub(?:\(\w+\))? )?struct (\w+)[^{]*\{(.*?)\n\}", re.DOTALL
)
FIELD = re.compile(r"^    (?:pub(?:\(\w+\))? )?(\w+): ", re.MULTILINE)


def test_types_of_arguments_have_what_the_engine_reads() -> None:
    structs = {
        frozenset(FIELD.findall(body)): name
        for path in SOURCES.glob("*.rs")
        for name, body in STRUCT.findall(path.read_text(encoding="utf-8"))
    }
    protocols = {
        frozenset(
            name for base in kind.__mro__ for name, field in vars(base).items() if isinstance(field, property)
        ): kind
        for kind in vars(engine_types).values()
        if isinstance(kind, type) and Protocol in kind.__bases__
    }
    assert structs
    assert {structs[fields]: sorted(fields) for fields in structs.keys() - protocols.keys()} == {}
    assert {protocols[fields].__name__: sorted(fields) for fields in protocols.keys() - structs.keys()} == {}
