"""Functions of the stages of random graphs, as the engine and the model call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from producers.plain_operators import column_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from producers.plain_operators import Produce

INT, TEXT, FLOAT, DATE = pa.int64(), pa.string(), pa.float64(), pa.date32()
PAIR = pa.struct([("n", INT), ("s", TEXT)])
NUMBERS = pa.list_(INT)


def text_of(key: Any) -> str:
    """The same for all forms that a struct has."""
    if isinstance(key, dict):
        key = key.values()
    elif not isinstance(key, tuple):
        return str(key)
    return str(tuple(map(text_of, key)))


def spread(_key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        name, number = column_of(value, "k"), column_of(value, "n")
        yield name, number
        if number is not None and number % 3 == 0:
            yield name, number + 1


def numbers_by_text(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield column_of(value, "s"), column_of(value, "n")
    yield text_of(key), 0


def numbers_by_float(_key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield column_of(value, "f"), column_of(value, "n")


def numbers_by_pair(_key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        number, text = column_of(value, "n"), column_of(value, "s")
        yield None if value is None else {"n": number, "s": text}, number


def texts_by_date(_key: Any, values: Iterator[Any]) -> list[Any]:
    return [[column_of(value, "t"), column_of(value, "s")] for value in values]


def lists_by_text(_key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield column_of(value, "k"), column_of(value, "l")


def lengths(_key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        yield value, None if value is None else len(value)


def pairs_by_number(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Changes what it emitted."""
    pair: dict[str, Any] = {}
    for value in values:
        pair.update(n=value, s=text_of(key))
        yield value, pair
    pair.clear()


def total(_key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    numbers = list(values)
    yield len(numbers) % 2, sum(number or 0 for number in numbers)
    if len(numbers) > 2:
        yield 7, numbers[-1]


def first_only(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Leaves values unread."""
    yield len(text_of(key)), next(values)


# By the kind of the values: the function, and the type of the keys and the kind of the values that it emits.
FUNCTIONS: dict[str, list[tuple[Produce, pa.DataType, str]]] = {
    "wide": [
        (spread, TEXT, "number"),
        (numbers_by_text, TEXT, "number"),
        (numbers_by_float, FLOAT, "number"),
        (numbers_by_pair, PAIR, "number"),
        (texts_by_date, DATE, "text"),
        (lists_by_text, TEXT, "list"),
    ],
    "pair": [(numbers_by_text, TEXT, "number"), (numbers_by_pair, PAIR, "number")],
    "number": [(total, INT, "number"), (first_only, INT, "number"), (pairs_by_number, INT, "pair")],
    "text": [(lengths, TEXT, "number")],
}


def weight_of(value: Any) -> int:
    """A number that depends on a value of any kind."""
    if isinstance(value, dict):
        return sum(map(weight_of, value.values()))
    if isinstance(value, list | str):
        return len(value)
    return value if isinstance(value, int) else 0


def mix(_key: Any, *sides: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """A function of a join, which reads the last feeder first, and of the first one a part."""
    listed = [list(side) for side in sides[:0:-1]]
    for left, _ in zip(sides[0], range(3), strict=False):
        for right in listed[0] or [-1]:
            yield weight_of(left) % 3, weight_of(right) + len(listed[-1])


def shifted(function: Produce) -> Produce:
    """Another version of a function that emits numbers."""

    def produce(key: Any, values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        for target, value in function(key, values):
            yield target, None if value is None else value + 100

    return produce


def keep_number(new: int | None, earlier: int | None, state: dict[str, Any]) -> int:
    """Depends on what it gets as the earlier value, and on how often it is called."""
    state["next"] += 1
    return state["next"] * 100 + (new or 0) % 50 if earlier is None else earlier + (new or 0) % 2


class Fault(Exception):
    """What functions raise."""


class Faults:
    """Lets a call of a function fail."""

    def __init__(self) -> None:
        self.calls_before: int | None = None

    def call(self) -> None:
        if self.calls_before is not None:
            self.calls_before -= 1
            if self.calls_before < 0:
                raise Fault

    def within(self, function: Produce) -> Produce:
        def produce(key: Any, *values: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
            self.call()
            return function(key, *values)

        return produce


def by_batch(function: Produce, key: pa.DataType, value: pa.DataType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function of batches that calls another one for each key."""

    def produce(batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, values = batch["key"].to_pylist(), batch["value"].to_pylist()
        # Not-a-number does not equal itself.
        begins = [at for at in range(len(keys)) if at == 0 or repr(keys[at]) != repr(keys[at - 1])]
        columns: list[list[Any]] = [[], [], []]
        for begin, end in zip(begins, [*begins[1:], len(keys)], strict=True):
            for target, each in function(keys[begin], iter(values[begin:end])):
                copy = dict(each) if isinstance(each, dict) else each
                for column, item in zip(columns, (begin, target, copy), strict=True):
                    column.append(item)
        arrays = [pa.array(column, of) for column, of in zip(columns, (INT, key, value), strict=True)]
        return pa.RecordBatch.from_arrays(arrays, ["source_row", "key", "value"])

    return produce
