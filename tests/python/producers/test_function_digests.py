"""A function that changes without a new version of its stage: the next update warns, before it computes anything."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from pds.producers import declarations, function_digests
from pds.producers.function_digests import RUNTIME, digest_of
from producers.pipelines import objects, plain_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INT = pa.int64()

PLAIN = """
def f(key, values):
    for value in values:
        if value in {"a", "b", "c"}:
            yield key, value + 1
"""
SAME = {
    "other lines": "\n\n\n" + PLAIN,
    "comments": PLAIN.replace("    for", "    # why\n    for"),
    "spaces": PLAIN.replace("value + 1", "(value  +  1)"),
    "annotations": PLAIN.replace("(key, values)", "(key: int, values: list) -> object"),
    "docstring": PLAIN.replace("    for", '    """What it does."""\n    for'),
    "order of a set": PLAIN.replace('{"a", "b", "c"}', '{"c", "b", "a"}'),
}
OTHER = {
    "constant": PLAIN.replace("+ 1", "+ 2"),
    "type of a constant": PLAIN.replace("+ 1", "+ 1.0"),
    "text": PLAIN.replace('"c"', '"d"'),
    "operator": PLAIN.replace("+ 1", "- 1"),
    "global name": PLAIN.replace("value + 1", "round(value)"),
    "attribute": PLAIN.replace("value + 1", "value.real"),
    "default": PLAIN.replace("values)", "values, by=1)"),
    "keyword": PLAIN.replace("values)", "values, *, by=1)"),
    "inner function": PLAIN.replace("value + 1", "(lambda: value + 1)()"),
}


def compiled(source: str, name: str = "f") -> Any:
    scope: dict[str, Any] = {}
    exec(textwrap.dedent(source), scope)  # noqa: S102 functions that differ in their text only
    return scope[name]


@pytest.mark.parametrize("change", SAME)
def test_what_gives_the_same_results_has_the_same_digest(change: str) -> None:
    assert SAME[change] != PLAIN
    assert digest_of(compiled(SAME[change])) == digest_of(compiled(PLAIN))


@pytest.mark.parametrize("change", OTHER)
def test_other_code_has_another_digest(change: str) -> None:
    assert OTHER[change] != PLAIN
    assert digest_of(compiled(OTHER[change])) != digest_of(compiled(PLAIN))


def scale(factor: object, key: int, values: Iterator[int]) -> Iterator[tuple[int, Any]]:
    return ((key, (factor, value)) for value in values)


def make(kind: str, factor: Any) -> Any:
    """A function of a kind that has `factor` in it."""

    def closure(key: int, values: Iterator[int]) -> Iterator[tuple[int, Any]]:
        return scale(factor, key, values)

    @functools.wraps(scale)
    def decorated(key: int, values: Iterator[int]) -> Iterator[tuple[int, Any]]:
        return closure(key, values)

    source = f"class C:\n  def __call__(self, key, values): return {factor!r}\n  def method(self): return {factor!r}"
    instance = compiled(source, "C")()
    return {
        "closure": closure,
        "decorated": decorated,
        "partial": functools.partial(scale, factor),
        "keywords of a partial": functools.partial(scale, factor=factor),
        "object": instance,
        "method": instance.method,
        "cache": functools.lru_cache(closure),
    }[kind]


KINDS = ["closure", "decorated", "partial", "keywords of a partial", "object", "method", "cache"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "factors", [(1, 2), (1, True), ("a", "b"), ((1, "a"), (1, "b")), ("x" * 5000, "x" * 4999 + "y")]
)
def test_callables_with_a_value_in_them(kind: str, factors: tuple[Any, Any]) -> None:
    one, other = factors
    assert digest_of(make(kind, one)) == digest_of(make(kind, one))
    assert digest_of(make(kind, one)) != digest_of(make(kind, other))


def test_a_helper_that_is_closed_over() -> None:
    def make(helper: Callable[[int], int]) -> Any:
        return lambda key, values: [(key, helper(value)) for value in values]

    assert digest_of(make(lambda n: n + 1)) == digest_of(make(lambda n: n + 1))
    assert digest_of(make(lambda n: n + 1)) != digest_of(make(lambda n: n + 2))


def test_functions_that_are_closed_over_themselves() -> None:
    def down(number: int) -> int:
        return 0 if number == 0 else down(number - 1)

    assert digest_of(down) == digest_of(down)


def test_helpers_of_helpers_take_no_time() -> None:
    def wrap(helper: Callable[[int], int], number: int) -> Callable[[int], int]:
        @functools.wraps(helper)
        def wrapper(value: int) -> int:
            return helper(helper(value)) + number

        return functools.partial(wrapper) if number % 3 == 0 else wrapper

    def nest(depth: int, last: int) -> Any:
        helper: Callable[[int], int] = abs
        for number in range(depth):
            helper = wrap(helper, last if number == 0 else number)
        return lambda key, values: [(key, helper(value)) for value in values]

    assert digest_of(nest(60, 1)) == digest_of(nest(60, 1))
    assert digest_of(nest(60, 1)) != digest_of(nest(60, 2))
    assert digest_of(nest(100_000, 1)) is None


class Unbound:
    """A proxy that cannot be looked at."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("not bound")


def test_whatever_a_function_is_has_a_digest_or_none() -> None:
    mask, proxy = 1 << 20_000, Unbound()
    assert digest_of(lambda _, values: [mask >> value for value in values]) is not None
    words, data = frozenset(map(str, range(1_000_000))), bytes(50_000_000)
    assert digest_of(lambda _, values: [value in words for value in values]) is not None
    assert digest_of(lambda: data) == digest_of(lambda: data)
    assert digest_of(lambda: proxy) is None

    def itself(key: int, values: Iterator[int]) -> Iterator[tuple[int, int]]:
        return ((key, value) for value in values)

    itself.__wrapped__ = itself  # type: ignore[attr-defined]
    assert digest_of(itself) is not None
    assert function_digests._unwrap(itself) is itself


def test_what_is_not_python_has_no_digest() -> None:
    assert digest_of(len) is None
    assert digest_of(compiled(PLAIN), len) is None
    assert digest_of(int) is None


def test_digests_are_those_of_every_process() -> None:
    code = f"from pds.producers.function_digests import digest_of\n{PLAIN}\nprint(digest_of(f))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert digests == {f"{digest_of(compiled(PLAIN))}\n"}


def declare(store: pds.Store, function: Any, **options: Any) -> pds.Pipeline:
    pipeline = pds.Pipeline(store, "p")
    pipeline.source("numbers", key=INT, value=INT)
    pipeline.producer("numbers", key=INT, value=INT, name="results", **options)(function)
    return pipeline


def plus(number: int) -> Any:
    return lambda key, values: [(key, value + number) for value in values]


def put(pipeline: pds.Pipeline, key: int) -> pds.UpdateResult:
    return pipeline.update(numbers=pds.Changes([(key, key)]))


def digests(pipeline: pds.Pipeline) -> dict[str, str]:
    handle = pipeline._open()
    assert handle is not None
    nodes = {node["name"]: node for node in json.loads(handle.manifest())["nodes"]}
    stored: dict[str, str] = nodes["results"].get("function_digests", {})
    return stored


def test_the_next_update_warns_once(memory_store: pds.Store) -> None:
    put(declare(memory_store, plus(1)), 1)
    put(declare(memory_store, plus(1)), 2)
    changed = declare(memory_store, plus(2))
    with pytest.warns(
        UserWarning, match=r"function of stage 'results' changed.*version=2.*rebuild\('results'\)"
    ) as caught:
        put(changed, 3)
    assert [warning.filename for warning in caught] == [__file__]
    assert caught[0].lineno == plus(1).__code__.co_firstlineno
    put(changed, 4)
    assert plain_rows(changed["results"].read()) == [(1, 1, 2), (2, 2, 3), (3, 3, 5), (4, 4, 6)]
    with pytest.warns(UserWarning, match="results"):
        put(declare(memory_store, plus(1)), 5)


def test_a_warning_that_is_an_error_commits_nothing(memory_store: pds.Store) -> None:
    put(declare(memory_store, plus(1)), 1)
    changed, before = declare(memory_store, plus(2)), objects(memory_store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="results"):
            put(changed, 2)
        with pytest.raises(UserWarning, match="results"):
            changed.preview(numbers=pds.Changes([(2, 2)]))
        assert objects(memory_store) == before
        changed.rebuild("results")
    assert changed.version == 2
    assert plain_rows(changed["results"].read()) == [(1, 1, 3)]


def test_a_new_version_and_a_check_warn_of_nothing(memory_store: pds.Store) -> None:
    put(declare(memory_store, plus(1)), 1)
    newer = declare(memory_store, plus(2), version=2)
    newer.rebuild()
    put(newer, 2)
    changed = declare(memory_store, plus(3), version=2)
    assert not changed.check().ok
    with pytest.warns(UserWarning, match="version is still 2.*version=3"):
        changed.preview(numbers=pds.Changes([(3, 3)])).discard()
    # A preview stores nothing.
    with pytest.warns(UserWarning, match="results"):
        put(changed, 3)


def test_the_function_of_a_hook_counts(memory_store: pds.Store) -> None:
    def declare_hook(number: int) -> pds.Pipeline:
        hook = pds.Preserve(lambda new, earlier, state: new + number)  # noqa: ARG005 of a hook
        return declare(memory_store, plus(1), preserve=hook)

    put(declare_hook(1), 1)
    put(declare_hook(1), 2)
    with pytest.warns(UserWarning, match="results"):
        put(declare_hook(2), 3)


def test_other_runtimes_are_not_compared(memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(function_digests, "RUNTIME", "python3.1")
        put(declare(memory_store, plus(1)), 1)
        before = digests(declare(memory_store, plus(1)))
    assert list(before) == ["python3.1"]
    pipeline = declare(memory_store, plus(1))
    put(pipeline, 2)
    assert digests(pipeline).items() > before.items()
    with monkeypatch.context() as older:
        older.setattr(function_digests, "RUNTIME", "python3.1")
        put(declare(memory_store, plus(1)), 3)
    changed = declare(memory_store, plus(2))
    with pytest.warns(UserWarning, match="results"):
        put(changed, 4)
    # Of the function before, nothing stays.
    assert digests(changed).keys() == {RUNTIME}


def test_functions_without_a_digest_and_operators(memory_store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(declare(memory_store, plus(1)), 1)
    before = digests(declare(memory_store, plus(1)))
    with monkeypatch.context() as unknown:
        unknown.setattr(declarations, "digest_of", lambda *_: None)
        put(declare(memory_store, plus(2)), 2)
    assert digests(declare(memory_store, plus(1))) == before
    pipeline = declare(memory_store, plus(1))
    pipeline.select("numbers", value="value + 1", name="selected")
    put(pipeline, 3)
    assert digests(pipeline) == before
