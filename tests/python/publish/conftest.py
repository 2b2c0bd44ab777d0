"""Fixtures of the schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from publish.children import Children
from publish.harness import CLASSES, SIZES, World, world

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    """Forks processes that write."""
    with Children() as found:
        yield found


def _gated(name: str, size: str | None = None) -> list[pytest.MarkDecorator]:
    """The gate has time for both ends: all conditions with little data, the fewest with uploads."""
    rest = name == "A, plain completes" or (name, size) in (("A", "staged"), ("B", "inline"))
    return [pytest.mark.slow, pytest.mark.soak] if rest else [pytest.mark.slow]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The schedules are about requests: with tiny row groups they are the same, and uploads take for ever."""
    for item in items:
        if "publish" in item.path.parts:
            item.add_marker(pytest.mark.defaults)


@pytest.fixture(params=[pytest.param(name, marks=_gated(name)) for name in CLASSES])
def store_class(request: pytest.FixtureRequest) -> frozenset[str]:
    """The conditions that the server ignores."""
    return CLASSES[request.param]


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    """Whether parts stay with the writer or are uploads."""
    return str(request.param)


@pytest.fixture(
    params=[
        pytest.param((name, size), marks=_gated(name, size), id=f"{name}-{size}") for name in CLASSES for size in SIZES
    ]
)
def place(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world for each class of stores and size of parts."""
    name, size = request.param
    with world(CLASSES[name], size) as found:
        yield found
