"""Random updates of random graphs, by number, against the model in plain Python.

`python -m producers.random_updates 0 10000 --jobs 2` runs those from 0 to 9,999, says what it saw, and names those that
went wrong. A number always makes the same graph and the same steps.
"""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import math
import multiprocessing
import random
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pds
from independent_pipeline import IndependentPipeline
from pds.producers.tables import read_nodes
from producers import net_changes
from producers.engines import RepeatingEngine
from producers.model import Changes, Model, Source, Stage, exact, order_function
from producers.pipelines import plain_rows, rows_of, to_changes
from producers.random_functions import FLOAT, INT, TEXT, Fault, Faults
from producers.random_graphs import KEY_PAIR, WIDE, make_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producers.random_graphs import Random, Step

NOW = dt.timedelta(0)
# With many keys a small update leaves runs to compactions.
FEW_KEYS, MANY_KEYS = 16, 200
DAY = dt.date(2024, 2, 28)
KEY_TYPES = {"int": INT, "float": FLOAT, "text": TEXT, "pair": KEY_PAIR}
TABLE_SCHEMA = pa.schema([("id", INT), ("g", INT), ("v", INT)])
Groups = dict[Any, list[Any]]
# The operations of commits that change no data.
UPKEEP = {"compact", "tag", "untag", "vacuum"}


def make_keys(rng: Random, kind: str, count: int) -> list[Any]:
    """Keys that differ, of one of the types."""
    numbers = range(count)
    if kind == "float":
        # Neither zeros nor not-a-numbers differ.
        strange: list[Any] = [rng.choice([0.0, -0.0]), math.nan, math.inf]
        return [None, *strange, *(number / 2 - 3.25 for number in numbers[len(strange) :])]
    if kind == "text":
        return [None, "", *("abé"[number % 3] * (number % 4) + str(number) for number in numbers[1:])]
    if kind == "pair":
        return [None, *((number % 5 or None, None if number in (3, 10) else f"{number // 5}") for number in numbers)]
    return [None, *numbers]


def make_value(rng: Random, numbers: int) -> dict[str, Any] | None:
    """A value of the sources that are pushed; it or any field may be null."""
    if rng.random() < 0.05:
        return None
    value = {
        "k": rng.choice(["p", "q", "r"]),
        "n": rng.choice([rng.randrange(-4, 9), rng.randrange(numbers)]),
        "f": rng.choice([0.25, -1.5, 0.1, 3.0, 1e16, 0.0, -0.0] + [math.nan, math.inf] * (rng.random() < 0.1)),
        "s": rng.choice(["", "x", "é", "zz"]),
        "b": rng.random() < 0.7,
        "l": [rng.choice([None, 1, 2, 3]) for _ in range(rng.choice([0, 1, 1, 2, 3]))],
        "t": DAY + dt.timedelta(days=rng.randrange(5)),
        "d": decimal.Decimal(rng.choice([0, 5, -150, 99_999_99])).scaleb(-2),
        "x": rng.choice([b"", b"\0", b"ab", b"\xff"]),
    }
    return {name: None if rng.random() < 0.15 else each for name, each in value.items()}


class AttachedRows:
    """The table that feeds a source, and what is in it."""

    def __init__(self, store: pds.Store) -> None:
        self.table = pds.Table.create(store, "rows", TABLE_SCHEMA, key="id")
        self.rows: dict[int, tuple[Any, Any]] = {}
        self.versions = {self.table.version: dict(self.rows)}
        self.next = 0

    def change(self, rng: Random) -> str:
        """Commit something; return what."""
        kinds = ["append"] * 3 + ["upsert"] * 2 + ["delete", "restore", "compact", "vacuum"]
        kind = rng.choice(kinds)
        getattr(self, kind)(rng)
        self.table.refresh()
        self.versions[self.table.version] = dict(self.rows)
        return kind

    def _make(self, rng: Random, ids: Sequence[int]) -> pa.Table:
        new = {each: (rng.choice([None, *range(6)]), rng.choice([None, *range(-3, 9)])) for each in ids}
        self.rows.update(new)
        columns = [list(new), [g for g, _ in new.values()], [v for _, v in new.values()]]
        return pa.table([pa.array(column, INT) for column in columns], schema=TABLE_SCHEMA)

    def append(self, rng: Random) -> None:
        count = rng.randrange(1, 8)
        self.table.append(self._make(rng, range(self.next, self.next + count)))
        self.next += count

    def upsert(self, rng: Random) -> None:
        self.table.upsert(self._make(rng, rng.sample(range(self.next + 2), min(3, self.next + 2))))
        self.next += 2

    def delete(self, rng: Random) -> None:
        part = rng.randrange(4)
        self.table.delete(f"id % 4 = {part}")
        self.rows = {each: row for each, row in self.rows.items() if each % 4 != part}

    def restore(self, rng: Random) -> None:
        version = rng.choice([entry["version"] for entry in self.table.history()])
        self.table.restore(version)
        self.rows = dict(self.versions[version])

    def compact(self, _rng: Random) -> None:
        self.table.optimize.compact()

    def vacuum(self, _rng: Random) -> None:
        self.table.vacuum(NOW)

    def groups(self) -> Groups:
        """The rows of the source, those of a key in the order of their values."""
        groups: Groups = {}
        for key, value in self.rows.values():
            groups.setdefault(key, []).append(value)
        return {key: sorted(values, key=lambda v: (v is None, v or 0)) for key, values in groups.items()}


def difference(old: Groups, new: Groups) -> Changes:
    """What makes the new rows of a source of the old ones; keys with the same rows are not named."""
    changed = {key: values for key, values in new.items() if exact(values) != exact(old.get(key))}
    upserts = [(key, value) for key, values in changed.items() for value in values]
    return Changes(upserts, [key for key in old if key not in new])


def are_alike(actual: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether rows are equal, floats to the last digits."""
    return repr(actual) == repr(expected) or is_alike(actual, expected)


def is_alike(one: Any, other: Any) -> bool:
    """Equal, floats to the last digits."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(is_alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_alike, one, other))
    return type(one) is type(other) and bool(one == other)


def differ(actual: Sequence[Any], expected: Sequence[Any]) -> str:
    """The first rows that differ, for a message."""
    pairs = zip([*actual, *[None] * len(expected)], [*expected, *[None] * len(actual)], strict=False)
    at, pair = next(((at, pair) for at, pair in enumerate(pairs) if not is_alike(*pair)), (None, (None, None)))
    return f"{len(actual)} rows instead of {len(expected)}; row {at} is {pair[0]} instead of {pair[1]}"


class GraphRun:
    """A pipeline of a random graph, its model, and what was seen."""

    def __init__(self, number: int, seen: Counter[str]) -> None:
        self.rng = random.Random(number)
        self.seen = seen
        self.has_many = has_many = self.rng.random() < 0.25
        kind = self.rng.choice(["int", "int", *KEY_TYPES])
        seen[f"keys: {kind}"] += 1
        self.keys = make_keys(self.rng, kind, MANY_KEYS if has_many else FEW_KEYS)
        self.numbers = 1 << 40 if has_many else 9
        self.store = pds.Store("memory://")
        self.attached = AttachedRows(self.store)
        self.faults = Faults()
        self.steps = make_graph(self.rng, self.attached.table, KEY_TYPES[kind], self.faults)
        seen.update(f"stage: {step.operator}" for step in self.steps if isinstance(step.node, Stage))
        self.later: list[Step] = []
        if self.rng.random() < 0.4:
            first = len(self.steps) - self.rng.randrange(1, 3)
            self.steps, self.later = self.steps[:first], self.steps[first:]
        self.model = Model(
            [step.node for step in self.steps if isinstance(step.node, Source)],
            [step.node for step in self.steps if isinstance(step.node, Stage)],
        )
        rng = self.rng
        self.sizes = rng.choice([(16, 64), (None, None)] if has_many else [(1, 8), (2, 8), (16, 64), (None, None)])
        self.memory = 1 << rng.choice([16, 19, 28] if has_many else [13, 16, 19, 28])
        # Tasks take their time, so there are few.
        sizes = (rng.choice([0, 1 << 12]), 1 << 16 if has_many else 1 << 13)
        self.engine = None if rng.random() < 0.8 else RepeatingEngine(*sizes, repeats=False)
        self.pipeline = self.open("p")
        # The rows of each key as the updates say, which a reader who follows them has.
        self.mirrors: dict[str, dict[Any, list[Any]]] = {step.name: {} for step in self.steps}
        # As they were read last, and in some versions before.
        self.rows: dict[str, list[Any]] = {}
        self.tables: dict[str, pa.Table] = {}
        self.history: dict[int, dict[str, pa.Table]] = {}
        # A pipeline that one of the stages feeds.
        self.behind: pds.Pipeline | None = None
        self.feeding = ""
        self.tagged: dict[str, dict[str, list[Any]]] = {}
        self.updates = 0

    def open(self, path: str) -> pds.Pipeline:
        pipeline = pds.Pipeline(self.store, path, memory_limit=self.memory, engine=self.engine)
        pipeline._page_rows, pipeline._file_rows = self.sizes
        for step in self.steps:
            step.declare(pipeline)
        return pipeline

    def stored(self, name: str) -> Groups:
        groups: Groups = {}
        for key, _, value in self.model.content(name):
            # One not-a-number, which a dict finds by its identity.
            is_nan = isinstance(key, float) and math.isnan(key)
            groups.setdefault(math.nan if is_nan else key, []).append(value)
        return groups

    def make_value(self) -> dict[str, Any] | None:
        return make_value(self.rng, self.numbers)

    # --- what is done ---

    def push(self) -> None:
        """Change some keys."""
        rng, changes = self.rng, {}
        for name in rng.choice([["a"], ["b"], ["a", "b"]]) if self.updates else ["a", "b"]:
            count = rng.choice([1, 2, 5, FEW_KEYS]) if self.updates else len(self.keys)
            keys = rng.sample(self.keys, count)
            deletes = [key for key in keys if self.updates and rng.random() < 0.35]
            most = 4 if self.updates or not self.has_many else 2
            rows = [(k, self.make_value()) for k in keys if k not in deletes for _ in range(rng.randrange(1, most))]
            if rows and rng.random() < 0.3:
                # As they are.
                rows = [(k, v) for k, v in rows if k != rows[0][0]]
                rows += [(keys[0], v) for v in self.stored(name).get(keys[0], []) if keys[0] not in deletes]
            changes[name] = Changes(rows, deletes)
        if self.updates and rng.random() < 0.15:
            self.fail(to_changes(changes))
        self.model.update(changes)
        if rng.random() < 0.25:
            self.compare(self.commit_preview(to_changes(changes)), "a preview")
            return
        key = f"key {self.updates}" if rng.random() < 0.3 else None
        result = self.pipeline.update(to_changes(changes), idempotency_key=key)
        self.compare(result.version, "changes")
        if key is not None:
            again = self.pipeline.update(to_changes(changes), idempotency_key=key)
            assert again.replayed, "the second update with a key was done"
            assert again.version == result.version
            self.seen["update: replayed"] += 1

    def fail(self, changes: dict[str, Any]) -> None:
        """An update that ends with an error changes nothing."""
        rng, version = self.rng, self.pipeline.version
        kind = rng.choice(["fault", "fault", "base", "twice", "mixed", "overflow"])
        key, value = rng.choice(self.keys), {**dict.fromkeys(WIDE.names), "n": 1 << 63}
        refused: dict[str, Any] = {
            "twice": pds.Changes(None, [key, key]),
            "mixed": pds.Changes([(key, None)], [key]),
            "overflow": pds.Changes([(key, value)]),
        }
        failure: Exception | None = None
        try:
            if kind == "fault":
                self.faults.calls_before = rng.choice([0, 1, 5])
                self.pipeline.preview(changes).discard()
            elif kind == "base":
                # Before the newest version of other data: others may tag, compact and vacuum meanwhile.
                names = {each["version"]: each["operation"]["name"] for each in self.pipeline.history()}
                newest = max((each for each, name in names.items() if name not in UPKEEP), default=1)
                self.pipeline.update(changes, base_version=newest - 1)
            else:
                self.pipeline.update(b=refused[kind])
        except (pds.ProduceError, pds.CommitConflict, pds.InvalidInput) as error:
            failure = error
        finally:
            self.faults.calls_before = None
        assert self.pipeline.version == version, kind
        if failure is None:
            # The function was called for fewer keys.
            assert kind == "fault", f"{kind} was done"
            return
        expected = {"fault": pds.ProduceError, "base": pds.CommitConflict}.get(kind, pds.InvalidInput)
        assert type(failure) is expected, repr(failure)
        assert kind != "fault" or isinstance(failure.__cause__, Fault), repr(failure.__cause__)
        self.seen[f"refused: {kind}"] += 1

    def commit_preview(self, changes: dict[str, Any]) -> int:
        """Another process compacts between the preview and its commit; then it may have to be made again."""
        preview = self.pipeline.preview(changes)
        if self.updates and self.rng.random() < 0.5:
            self.pipeline.compact(min_delta=self.rng.choice([0, 0.25]))
            self.seen["update: compaction before the commit"] += 1
        try:
            return preview.commit().version
        except pds.CommitConflict:
            self.seen["update: conflict with a compaction"] += 1
            return self.pipeline.update(changes).version

    def replace_rows(self) -> None:
        """Push all rows of a source, most of them as they are."""
        name = self.rng.choice("ab")
        old = self.stored(name)
        part = self.rng.choice([0.8, 0.99])
        new = {key: values for key, values in old.items() if self.rng.random() < part}
        for key in self.rng.sample(self.keys, 3):
            new[key] = [self.make_value() for _ in range(self.rng.randrange(1, 3))]
        self.model.update({name: difference(old, new)})
        rows = [(key, value) for key, values in new.items() for value in values]
        self.compare(self.pipeline.update({name: pds.Replace(rows)}).version, "all rows")

    def refresh(self) -> None:
        """Read what others did to the table."""
        for _ in range(self.rng.randrange(1, 4)):
            self.seen[f"table: {self.attached.change(self.rng)}"] += 1
        changes = difference(self.stored("t"), self.attached.groups())
        self.model.update({"t": changes})
        result = self.pipeline.refresh()
        if result is not None:
            self.compare(result.version, "refresh")
        else:
            assert not changes.upserts, "rows of the table were not read"
            assert not changes.deletes, "rows of the table were not deleted"
        assert self.pipeline.refresh() is None

    def arrive(self) -> None:
        """Declare stages that the stored pipeline has not."""
        self.steps += self.later
        for step in self.later:
            assert isinstance(step.node, Stage)
            self.model.add(step.node)
            self.mirrors[step.name] = {}
        self.pipeline = self.open("p")
        self.seen["update: new stages"] += bool(self.later)
        self.later = []
        self.push()

    def change_graph(self) -> None:
        """A stage has another name for a while; one that feeds none goes."""
        name = self.rng.choice([step.name for step in self.steps])
        self.pipeline.rename(name, "renamed")
        version = self.pipeline.as_of(self.pipeline.version)
        read = plain_rows(version["renamed"].read())
        assert repr(read) == repr(plain_rows(self.tables[name])), f"{name} by another name"
        self.pipeline.rename("renamed", name)
        self.seen["graph: renamed"] += 1
        fed = {self.feeding, *(name for step in (*self.steps, *self.later) for name in step.feeders)}
        last = [step for step in self.steps if isinstance(step.node, Stage) and step.name not in fed]
        if last and self.rng.random() < 0.3:
            gone = self.rng.choice(last).name
            self.pipeline.remove(gone)
            self.steps = [step for step in self.steps if step.name != gone]
            self.model.remove(gone)
            self.pipeline = self.open("p")
            self.seen["graph: removed"] += 1
        self.compare_content()

    def read_behind(self) -> None:
        """Another pipeline reads a stage of this one."""
        stages = [step.name for step in self.steps if isinstance(step.node, Stage)]
        if not stages:
            return
        if self.behind is None:
            self.feeding = self.rng.choice(stages)
            self.behind = pds.Pipeline(self.store, "behind", memory_limit=self.memory)
            self.behind.source("rows", self.pipeline[self.feeding])
            self.behind.aggregate("rows", aggregates={"n": "count"}, name="counts")
        result = self.behind.refresh()
        self.seen[f"behind: {'nothing new' if result is None else 'rows'}"] += 1
        table = self.tables[self.feeding]
        # The source has its keys in ascending order, also those of a stage that is descending.
        order = order_function(table.schema.field(0).type)
        rows = [(key, value) for key, _, value in plain_rows(table)]
        rows.sort(key=lambda row: order(row[0]))
        read = plain_rows(self.behind["rows"].read())
        assert repr(read) == repr(rows), f"{self.feeding} in another pipeline: {differ(read, rows)}"
        counts = Counter(repr(key) for key, _ in rows)
        counted = {repr(key): value["n"] for key, _, value in plain_rows(self.behind["counts"].read())}
        assert counted == counts, f"counts of {self.feeding}"

    def rebuild(self) -> None:
        """Compute a stage anew, as it is or by another definition."""
        hooked = {name for step in self.steps if step.hook is not None for name in step.upstream}
        fit = [step for step in self.steps if isinstance(step.node, Stage) and step.name not in hooked]
        if not fit:
            return
        step = self.rng.choice(fit)
        if step.other is None or self.rng.random() < 0.3:
            self.model.update({})
            self.compare(self.pipeline.rebuild(step.name).version, "rebuild", is_exact=False)
            return
        # The model computes all rows anew, but for those of hooks, which are not behind it.
        other = replace(step.other, upstream=step.upstream, exact_changes=step.exact_changes)
        self.steps = [other if each is step else each for each in self.steps]
        assert isinstance(other.node, Stage)
        self.model.stages[step.name] = self.model.nodes[step.name] = other.node
        self.model.update({})
        self.pipeline = self.open("p")
        self.compare(self.pipeline.rebuild().version, "another definition", is_exact=False)

    def upkeep(self) -> None:
        """What changes no row."""
        rng = self.rng
        kind = rng.choice(["compact", "compact", "vacuum", "tag", "untag"])
        if kind == "compact":
            self.pipeline.compact(min_delta=rng.choice([0, 0, 0.25, 1e9]))
        elif kind == "vacuum":
            self.pipeline.vacuum(NOW)
            self.history.clear()
        elif kind == "tag":
            tag = f"tag {len(self.tagged)} of {self.updates}"
            self.tagged[tag] = {step.name: plain_rows(self.tables[step.name]) for step in self.steps}
            self.pipeline.tag(tag)
        elif kind == "untag" and self.tagged:
            tag = rng.choice(sorted(self.tagged))
            del self.tagged[tag]
            self.pipeline.untag(tag)
        self.seen[f"upkeep: {kind}"] += 1
        if kind in ("compact", "vacuum"):
            self.compare_content()
        for tag, tables in self.tagged.items():
            version = self.pipeline.as_of(tag)
            name = rng.choice(sorted(tables))
            assert repr(plain_rows(version[name].read())) == repr(tables[name]), f"{name} as of {tag}"

    # --- what has to be there ---

    def compare(self, version: int, what: str, *, is_exact: bool = True) -> None:
        self.updates += 1
        self.seen[f"update: {what}"] += 1
        assert self.pipeline.version == version
        for node in read_nodes(self.pipeline._open()).values():
            self.seen["tables of several runs"] += sum(len(node[table]) > 1 for table in ("content", "mappings"))
        self.compare_content()
        self.compare_net_changes()
        self.history[version] = dict(self.tables)
        for step in self.steps:
            if isinstance(step.node, Stage):
                self.follow(step, rows_of(self.pipeline[step.name].changes()), is_exact=is_exact)

    def compare_content(self) -> None:
        for step in self.steps:
            table, expected = self.pipeline[step.name], self.model.content(step.name)
            read = self.tables[step.name] = table.read()
            rows = self.rows[step.name] = rows_of(read)
            self.seen["rows compared"] += len(rows)
            if isinstance(step.node, Source):
                expected = [(key, value) for key, _, value in expected]
            elif step.operator.endswith(" join"):
                rows, expected = ([(key, value) for key, _, value in each] for each in (rows, expected))
            else:
                mappings = rows_of(table.key_mappings())
                other = self.model.tables(step.name).key_mappings
                assert are_alike(mappings, other), f"key mappings of {step.name}: {differ(mappings, other)}"
            if not step.ordered:
                keys = [[exact(row[:-1]) for row in each] for each in (rows, expected)]
                assert keys[0] == keys[1], f"keys of {step.name}: {differ(rows, expected)}"
                rows, expected = (sorted(each, key=lambda row: repr(exact(row))) for each in (rows, expected))
            assert are_alike(rows, expected), f"rows of {step.name} ({step.operator}): {differ(rows, expected)}"
        self.compare_some_keys()

    def compare_some_keys(self) -> None:
        """The rows of some keys of one stage, and its mappings, are those of the whole."""
        step = self.rng.choice(self.steps)
        order, table = order_function(step.node.key.type), self.pipeline[step.name]
        rows = self.rows[step.name]
        stored = list({order(row[0]): row[0] for row in rows}.values())
        keys = self.rng.sample(stored, min(len(stored), self.rng.choice([1, 3])))
        places = set(map(order, keys))
        expected = [row for row in rows if order(row[0]) in places]
        read = rows_of(table.read(keys))
        assert repr(read) == repr(expected), f"rows of {keys} of {step.name}: {differ(read, expected)}"
        if isinstance(step.node, Stage) and not step.operator.endswith(" join"):
            order = order_function(self.model.nodes[step.feeders[0]].key.type)
            mappings = self.model.tables(step.name).key_mappings
            sources = [mappings[0][0]] if mappings else []
            places = set(map(order, sources))
            expected = [pair for pair in mappings if order(pair[0]) in places]
            read = rows_of(table.key_mappings(sources))
            assert repr(read) == repr(expected), f"mappings of {sources} of {step.name}: {differ(read, expected)}"

    def compare_net_changes(self) -> None:
        """What changed in a stage since a version is what differs."""
        step = self.rng.choice(self.steps)
        if not isinstance(step.node, Stage):
            return
        since = self.rng.choice([0, *self.history])
        before = self.history.get(since, {}).get(step.name)
        expected = net_changes.compare(before, self.tables[step.name], descending=step.node.descending)
        actual = net_changes.changes_of(self.pipeline[step.name].changes(since=since))
        assert repr(actual) == repr(expected), f"changes of {step.name} since {since}: {differ(actual, expected)}"
        self.seen["net changes compared"] += 1

    def follow(self, step: Step, changes: list[Any], *, is_exact: bool) -> None:
        """Who applies the changes of each version to the rows of each key has the rows of the newest one."""
        mirror, order = self.mirrors[step.name], order_function(step.node.key.type)
        named: set[Any] = set()
        for kind, key, value in changes:
            place = order(key)
            if place not in named:
                assert kind == 2 or (kind == 0) == (place not in mirror), f"{step.name} has or had {key}"
                mirror.pop(place, None)
            else:
                assert kind == 1, f"the second row of {key} of {step.name} is of type {kind}"
            named.add(place)
            if kind != 2:
                mirror.setdefault(place, []).append(value)
        content: dict[Any, list[Any]] = {}
        for key, _, value in self.rows[step.name]:
            content.setdefault(order(key), []).append(value)
        assert repr(sorted(mirror.items())) == repr(sorted(content.items())), f"changes of {step.name}"
        if is_exact and step.exact_changes:
            types = ("add", "update", "delete")
            actual = [(types[kind], key, value) for kind, key, value in changes]
            update = self.model.tables(step.name).update
            assert are_alike(actual, update), f"changes of {step.name}: {differ(actual, update)}"

    def finish(self) -> None:
        """An independent reader and a new pipeline have the same rows."""
        independent = IndependentPipeline(lambda path: self.store.read_bytes(f"p/{path}"))
        for step in self.steps:
            rows = plain_rows(self.pipeline[step.name].read())
            assert repr(independent.content(step.name)) == repr(rows), f"files of {step.name}"
        hooks = {step.name for step in self.steps if step.hook is not None}
        whole = self.open("whole")
        whole.update({name: pds.Replace([(k, v) for k, _, v in self.model.content(name)]) for name in "ab"})
        whole.refresh()
        checked = []
        for step in self.steps:
            if not hooks & step.upstream:
                same = [plain_rows(pipeline[step.name].read()) for pipeline in (self.pipeline, whole)]
                assert repr(same[0]) == repr(same[1]), f"{step.name} from scratch: {differ(*same)}"
                checked += [step.name] * isinstance(step.node, Stage)
        if checked and self.rng.random() < 0.3:
            assert self.pipeline.check(*checked).ok
            self.seen["upkeep: check"] += 1


def run_graph(number: int, seen: Counter[str]) -> None:
    """Make the graph of a number, update it at random, and compare all after each step."""
    run = GraphRun(number, seen)
    actions: list[Callable[[], None]] = [run.push] * 6 + [run.replace_rows, run.refresh, run.refresh, run.rebuild]
    actions += [run.change_graph, run.read_behind] + [run.arrive] * 2 * bool(run.later)
    run.push()
    for _ in range(run.rng.randrange(4, 8)):
        run.rng.choice(actions)()
        if run.rng.random() < 0.5:
            run.upkeep()
    run.finish()
    seen["graphs"] += 1


def run_number(number: int) -> tuple[Counter[str], str | None]:
    """Run one; return what it saw, and how it went wrong."""
    seen: Counter[str] = Counter()
    try:
        run_graph(number, seen)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 the report has it; a panic of the engine is none of `Exception`
        return seen, traceback.format_exc(limit=-4)
    return seen, None


def main(arguments: list[str]) -> int:
    """Run a range of numbers; the exit code is 1 if one went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=int, help="the first number")
    parser.add_argument("end", type=int, help="the number behind the last one")
    parser.add_argument("--jobs", type=int, default=1, help="the processes that run them")
    options = parser.parse_args(arguments)
    seen: Counter[str] = Counter()
    failures: list[int] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        results = pool.map(run_number, range(options.first, options.end), chunksize=5)
        for number, (counts, failure) in enumerate(results, options.first):
            seen.update(counts)
            if failure is not None:
                failures.append(number)
                _say(f"{number} went wrong:\n{failure}")
            if (number + 1 - options.first) % 100 == 0:
                _say(f"{number + 1 - options.first} graphs, {len(failures)} went wrong")
    width = max(map(len, seen), default=0)
    _say("\n".join(f"{what:{width}} {count:>9}" for what, count in sorted(seen.items())))
    count = options.end - options.first
    _say(f"{count} graphs, {len(failures)} went wrong{': ' * bool(failures)}{', '.join(map(str, failures))}")
    return int(bool(failures))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
