"""Declarations: the sources and stages of a pipeline's graph."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pds import _pds
from pds.arguments import require_text
from pds.display import Summarized, Summary
from pds.errors import InvalidInput, InvalidType
from pds.flags import require_bool
from pds.producers.attached_stage import attach
from pds.producers.calls import StageCall
from pds.producers.explanation import describe_node, list_nodes
from pds.producers.function_digests import digest_of
from pds.producers.graph import Node
from pds.producers.operators import make_aggregate, make_first, make_join, make_order, make_select
from pds.producers.preserve import Preserve, PreservePass
from pds.table.checks import check_size, check_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pds.producers.attachment import Attachment
    from pds.producers.tables import PipelineTable
    from pds.table import Table
    from pds.table.location import TableLocation


class Declared(Summarized):
    """A source or a stage that a pipeline declares; stages take it as a feeder."""

    def __init__(self, pipeline: Declarations, node: Node) -> None:
        self._pipeline = pipeline
        self._node = node

    @property
    def name(self) -> str:
        """The name."""
        return self._node.name

    def _feeder_fields(self) -> list[pa.Schema]:
        nodes = self._pipeline._nodes  # noqa: SLF001 of this module
        return [nodes[name].fields for name in self._node.feeders or ()]

    def __repr__(self) -> str:
        return f"<{'source' if self._node.feeders is None else 'stage'} {self.name!r}>"

    def _summarize(self) -> Summary:
        return Summary(repr(self), describe_node(self._node, self._pipeline._attachments.get(self.name)))  # noqa: SLF001 as above


class Declarations(Summarized):
    """What a process declares of a pipeline."""

    _location: TableLocation

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._attachments: dict[str, Attachment] = {}

    def _summarize(self) -> Summary:
        return Summary(repr(self), {}, (list_nodes(list(self._nodes.values()), self._attachments),))

    def source(
        self,
        name: str,
        table: Table | PipelineTable | None = None,
        *,
        key: pa.DataType | pa.Field[Any] | str | Sequence[str] | None = None,
        value: pa.DataType | pa.Field[Any] | str | Sequence[str] | None = None,
        descending: bool = False,
        skip_unchanged: bool = False,
    ) -> Declared:
        """Declare a source: its rows are pushed by `update`, or come from a table or another pipeline by `refresh`.

        Args:
            name: The name.
            table: The table that feeds it. Then `key` and `value` are names of its columns: one for a column, a list
                for a struct of columns. The value defaults to all columns. Rows of one key are in the order of their
                values. Or a stage of another pipeline, `other["stage"]`, with its types; rows are in its order then.
            key: The type of the key, which may be null; `pa.field("key", type, nullable=False)` for one that may not.
                Keys are scalars and structs of scalars.
            value: The type of the value, as `key`; any type.
            descending: Whether the greatest key comes first. Nulls are first in ascending order.
            skip_unchanged: Whether a key that is pushed with the rows that it has counts as unchanged.

        Raises:
            InvalidInput: The name is declared already, or the table has no such column. The stage is a source or one of
                this pipeline, it has no version yet, or `key` or `value` is given for it.
            InvalidType: An argument has an invalid type.
        """
        own = self._location
        attached = None if table is None else attach(table, key, value, (own.store, own.path))
        fields = _to_fields(key, value) if attached is None else attached.fields
        node = Node(require_text("name", name), None, False, fields, descending, skip_unchanged, {}, None)  # noqa: FBT003
        declared = self._declare(node)
        if attached is not None:
            self._attachments[name] = attached
        return declared

    def producer(  # noqa: PLR0913 a declaration
        self,
        *feeders: Declared | str,
        key: pa.DataType | pa.Field[Any],
        value: pa.DataType | pa.Field[Any],
        name: str | None = None,
        descending: bool = False,
        batch: bool = False,
        order_by: str | Sequence[str] | None = None,
        order_descending: bool = False,
        skip_unchanged: bool = False,
        preserve: Preserve | None = None,
        version: int = 1,
        max_group_rows: int = 1_000_000,
    ) -> Callable[[Callable[..., Any]], Declared]:
        """Declare a stage: decorate its function `produce(key, values)`, which yields pairs (target key, value).

        `values` iterates once over all values of the key, feeder by feeder; values that are not read are skipped. The
        result must depend on the key and the values only.

        Args:
            feeders: The sources and stages whose rows it reads, or their names: their keys are its source keys. They
                have the same types and the same order of keys.
            key: The type of the target key, as in `source`.
            value: The type of the value.
            name: The name. Defaults to that of the function.
            descending: Whether the greatest target key comes first.
            batch: Whether the function takes and returns record batches: `produce(batch)` gets whole groups, with the
                columns `key` and `value`, and returns `source_row` (the row of the input whose key is the source
                key), `key` and `value`.
            order_by: SQL over the emitted `key` and `value` and the fields of the value, as in `select`: one expression
                or a list, no structs. Stages behind it get the values of a key in this order, those alike by their
                source keys, the least first. Nulls are last, and one not-a-number is the greatest float. `first`, and
                `min` and `max` of `aggregate` by the same expression, then read a few rows of a key that has many. With
                `preserve` it is the order of what the function emitted. Defaults to the order of the source keys.
            order_descending: Whether the greatest comes first, of those alike that with the greatest source key.
            skip_unchanged: Whether keys whose rows stay the same are left out of what the stages behind it see. With
                `order_by` and `preserve`, a row that gets another place is not the same.
            preserve: A hook that gives the value to store for each emitted row. It may keep an earlier one.
            version: The version of the function. Raise it when the function changes: then its results are another. A
                function whose code changed without it is a warning of the next update.
            max_group_rows: The largest group of a function that takes batches.

        Raises:
            InvalidInput: The feeders do not fit together, or the name is declared already.
            InvalidType: An argument has an invalid type.
        """

        def declare(function: Callable[..., Any]) -> Declared:
            fields = _to_fields(key, value)
            stage = _name_of(function, name)
            takes_batches = require_bool(f"batch of {stage!r}", batch)
            group_rows = check_size(f"max_group_rows of {stage!r}", max_group_rows, "rows")
            call = StageCall(stage, function, fields, False, group_rows if takes_batches else None)  # noqa: FBT003
            options = {"descending": descending, "skip_unchanged": skip_unchanged}
            order = make_order(call.stage, order_by, order_descending)
            return self._declare_stage(call, feeders, options, version, preserve, order)

        return declare

    def join(  # noqa: PLR0913 a declaration
        self,
        *feeders: Declared | str,
        key: pa.DataType | pa.Field[Any],
        value: pa.DataType | pa.Field[Any],
        name: str | None = None,
        descending: bool = False,
        order_by: str | Sequence[str] | None = None,
        order_descending: bool = False,
        skip_unchanged: bool = False,
        preserve: Preserve | None = None,
        version: int = 1,
    ) -> Callable[[Callable[..., Any]], Declared]:
        """Declare a stage whose function gets the values of each feeder apart: `produce(key, values_of_a, …)`.

        The feeders may have different types of values. A feeder without a row of the key gives no values; a key that
        none of them has is not called for. Arguments and errors are those of `producer`.
        """

        def declare(function: Callable[..., Any]) -> Declared:
            fields = _to_fields(key, value)
            call = StageCall(_name_of(function, name), function, fields, True, None)  # noqa: FBT003
            options = {"descending": descending, "skip_unchanged": skip_unchanged}
            order = make_order(call.stage, order_by, order_descending)
            return self._declare_stage(call, feeders, options, version, preserve, order)

        return declare

    def select(  # noqa: PLR0913 a declaration
        self,
        *feeders: Declared | str,
        key: str | None = None,
        value: str | dict[str, str] | None = None,
        where: str | None = None,
        name: str,
        descending: bool = False,
        order_by: str | Sequence[str] | None = None,
        order_descending: bool = False,
        skip_unchanged: bool = False,
    ) -> Declared:
        """Declare a stage of SQL expressions: rows, their keys and their values, as `SELECT` has them, without Python.

        An expression sees the columns `key` and `value`, and the fields of a value that is a struct by their names,
        unless these are `key` or `value`. It has the syntax and meaning of the filters of tables: a field of a struct
        is `key.country`; comparisons are exact, and an overflow is an error; casts to integers cut; what is right of an
        AND or OR is asked only where the left side leaves a row open. The types of the key and the value are those of
        the expressions; a key that is a dictionary has the type of its values. `string_to_array(value, ' ')` splits a
        text into a list, of which `flatten` makes rows.

        Args:
            feeders: The sources and stages whose rows it reads, or their names. The rows of several are one after the
                other, as those of `UNION ALL`.
            key: The target key. Defaults to the key.
            value: The value, or a dict of expressions for a struct with these fields. Defaults to the value.
            where: The condition for rows to be selected: those for which it is true. Defaults to all.
            name: The name of the stage.
            descending: Whether the greatest target key comes first.
            order_by: The order of the values of a key, as in `producer`: SQL over the selected `key` and `value`.
            order_descending: Whether the greatest comes first.
            skip_unchanged: Whether keys whose rows stay the same are left out of what the stages behind it see.

        Raises:
            InvalidInput: An expression cannot be planned, is not deterministic, or has a type that a key cannot have;
                the feeders do not fit together, or the name is declared already. From an update: an expression fails
                for a row, as a division by zero does.
            InvalidType: An argument has an invalid type.
        """
        stage = require_text("name", name)
        operator = make_select(stage, key, value, where)
        order = make_order(stage, order_by, order_descending)
        return self._declare_operator(
            stage, feeders, operator, descending=descending, skip_unchanged=skip_unchanged, order=order
        )

    def aggregate(
        self,
        *feeders: Declared | str,
        aggregates: dict[str, str | tuple[str, str] | tuple[str, str, str | float]],
        name: str,
        skip_unchanged: bool = False,
    ) -> Declared:
        """Declare a stage of aggregates: a row for each key of the feeders, with a struct of results as its value.

        It is computed without Python, and by what changed: an update reads the rows of a key that changed and the
        results that are stored, not the other rows of the key. The order of the keys is that of the feeders.

        | function | result | type |
        | --- | --- | --- |
        | `count` | the number of rows, or of values that are not null | int64 |
        | `count_distinct` | the number of values that differ and are not null, as `COUNT(DISTINCT)` | int64 |
        | `sum` | the exact sum, rounded once, as `math.fsum` | int64, uint64, float64, or decimal of 38 or 76 digits |
        | `mean` | the sum divided by the number of values | float64 |
        | `min`, `max` | the least or greatest value; not-a-number is the greatest float | that of the column |
        | `variance`, `stddev` | of a sample: with the number of values less one; null of one value | float64 |
        | `var_pop`, `stddev_pop` | of all there is: with the number of values | float64 |
        | `bool_and`, `bool_or` | whether all values, or one of them, are true | bool |
        | `count_if` | the number of values that are true | int64 |
        | `median`, `percentile_cont` | the value at a fraction of the way through all, interpolated | float64 |
        | `percentile_disc` | the first value with at least a fraction of all up to it | that of the column |
        | `string_agg` | the texts, with a delimiter between them | string |
        | `list` | the values, also those that are null | a list of them |

        Nulls do not count; of no values, all but the counts are null. Variances take values as doubles, and round
        once before they divide: not-a-number if a value is not finite, an infinity if a square is too large. The text
        or list of a key has at most 64 MiB, and the order of its rows: by source key, or the `order_by` of the feeder.
        Null is a key as any other. A key without rows has no row, also one that is constant, as with GROUP BY.

        If the least or the greatest value leaves a key, its other rows are read, unless the feeder has them in that
        order (`order_by`). With `count_distinct` and from `median` on, all rows of a key are read if a value changes.

        Args:
            feeders: The sources and stages whose rows it reads, or their names.
            aggregates: The results by their names: a pair of column and function, or `"count"` for the number of rows.
                Columns are the fields of the feeders' value if that is a struct, else `"value"`. A percentile has its
                fraction behind the function, and `string_agg` its delimiter: `("price", "percentile_cont", 0.9)`.
            name: The name of the stage.
            skip_unchanged: Whether keys whose results stay the same are left out of what the stages behind it see.

        Raises:
            InvalidInput: There is no such column or function, the column has a type that the function cannot take, the
                feeders do not fit together, or the name is declared already.
            InvalidType: An argument has an invalid type.
        """
        stage = require_text("name", name)
        operator = make_aggregate(stage, aggregates)
        return self._declare_operator(stage, feeders, operator, descending=False, skip_unchanged=skip_unchanged)

    def join_rows(
        self,
        left: Declared | str,
        right: Declared | str,
        *,
        how: Literal["inner", "left", "right", "full", "semi", "anti"] = "inner",
        suffix: str = "_right",
        name: str,
        skip_unchanged: bool = False,
    ) -> Declared:
        """Declare a stage of the rows of two feeders with equal keys, as `JOIN`, without Python.

        An update costs what changed: a changed row, and the rows of the other side with its key. A key that is null, or
        a struct with a null in it, equals none. The key is that of the feeders, and so is its order. The value is a
        struct of the fields of both values, which are null where a side has no row; a value that is no struct is a
        field with the name of its feeder. A semi or anti join has the values of the left side.

        The source key of a row says of which rows it is: a struct of `left` and `right`, the source keys of these in
        their stages (of a source, the key; where a feeder has `order_by`, a struct of the order and the source key),
        and `side`: 0 for both, 1 for the left one alone, 2 for the right one.

        Args:
            left: A source or stage, or its name.
            right: The other one, with the same type and order of keys.
            how: `inner` has each pair of rows; `left`, `right` and `full` also the rows of that side, or both, without
                another; `semi` has the left rows with a right one, `anti` those without.
            suffix: What is put behind the name of a field of the right value that the left has, too.
            name: The name of the stage.
            skip_unchanged: Whether keys whose rows stay the same are left out of what the stages behind it see.

        Raises:
            InvalidInput: Two fields have one name, the feeders do not fit together, or the name is declared already.
            InvalidType: An argument has an invalid type.
        """
        stage = require_text("name", name)
        operator = make_join(stage, how, suffix)
        feeders = (left, right)
        return self._declare_operator(stage, feeders, operator, descending=False, skip_unchanged=skip_unchanged)

    def distinct(self, *feeders: Declared | str, name: str, skip_unchanged: bool = False) -> Declared:
        """Declare a stage that has each distinct value of a key once, as `SELECT DISTINCT`, without Python.

        Nulls are equal, and floats as in SQL: 0.0 and -0.0 are one value, not-a-number is another. The values of a key
        are in ascending order, null last. The order of the keys is that of the feeders.

        Args:
            feeders: The sources and stages whose rows it reads, or their names.
            name: The name of the stage.
            skip_unchanged: Whether keys whose values stay the same are left out of what the stages behind it see.

        Raises:
            InvalidInput: Values of this type have no order, the feeders do not fit together, or the name is declared
                already.
            InvalidType: An argument has an invalid type.
        """
        stage = require_text("name", name)
        operator = json.dumps({"distinct": {}})
        return self._declare_operator(stage, feeders, operator, descending=False, skip_unchanged=skip_unchanged)

    def first(
        self,
        *feeders: Declared | str,
        by: str | Sequence[str],
        rows: int = 1,
        descending: bool | Sequence[bool] = False,
        name: str,
        skip_unchanged: bool = False,
    ) -> Declared:
        """Declare a stage of the first rows of each key in an order, as `row_number() <= rows`, without Python.

        The latest event of each key is `first(events, by="at", descending=True)`. Nulls are last in both directions,
        not-a-number is the greatest float, and rows that are equal in the order are in that of the feeders. The order
        of the keys is that of the feeders.

        Args:
            feeders: The sources and stages whose rows it reads, or their names.
            by: What the rows are in the order of: SQL expressions, as in `select`.
            rows: The number of rows of a key; of one with fewer there are all.
            descending: Whether the greatest value comes first, for all expressions or for each.
            name: The name of the stage.
            skip_unchanged: Whether keys whose rows stay the same are left out of what the stages behind it see.

        Raises:
            InvalidInput: An expression cannot be planned, is not deterministic, or its values have no order; the
                feeders do not fit together, or the name is declared already.
            InvalidType: An argument has an invalid type.
        """
        stage = require_text("name", name)
        operator = make_first(stage, by, rows, descending)
        return self._declare_operator(stage, feeders, operator, descending=False, skip_unchanged=skip_unchanged)

    def flatten(
        self, *feeders: Declared | str, field: str | None = None, name: str, skip_unchanged: bool = False
    ) -> Declared:
        """Declare a stage that has a row for each element of a list, as `UNNEST`, without Python.

        The rows of a list are in its order; a list that is null or empty gives none. An element of a map is a struct of
        its key and value. The order of the keys is that of the feeders.

        Args:
            feeders: The sources and stages whose rows it reads, or their names.
            field: The field of the value that is a list or a map; its elements take its place, and the other fields are
                repeated. Defaults to the value itself, of which the elements are the values then.
            name: The name of the stage.
            skip_unchanged: Whether keys whose rows stay the same are left out of what the stages behind it see.

        Raises:
            InvalidInput: There is no such field or it is no list, the feeders do not fit together, or the name is
                declared already.
            InvalidType: An argument has an invalid type.
        """
        stage = require_text("name", name)
        fields = {} if field is None else {"field": require_text("field", field)}
        operator = json.dumps({"flatten": fields})
        return self._declare_operator(stage, feeders, operator, descending=False, skip_unchanged=skip_unchanged)

    def _declare_operator(
        self,
        name: str,
        feeders: Sequence[object],
        operator: str,
        *,
        descending: bool,
        skip_unchanged: bool,
        order: tuple[list[str], bool] | None = None,
    ) -> Declared:
        names = self._names_of(name, feeders)
        node = Node(name, names, False, pa.schema([]), descending, skip_unchanged, {}, None, None, operator, order)  # noqa: FBT003
        return self._declare(node)

    def _declare_stage(
        self,
        call: StageCall,
        feeders: Sequence[object],
        options: dict[str, bool],
        version: int,
        hook: Preserve | None,
        order: tuple[list[str], bool] | None,
    ) -> Declared:
        names = self._names_of(call.stage, feeders)
        definition = {"version": check_version(version, f"version of stage {call.stage!r}")}
        preserve = None
        if hook is not None:
            if not isinstance(hook, Preserve):
                raise InvalidType(f"preserve of {call.stage!r} must be a pds.Preserve, not {type(hook).__name__}")
            hook.check(call.stage)
            definition["preserve"] = 1
            preserve = functools.partial(PreservePass, hook, call.stage, call.fields.field("value"))
        call.check()
        node = Node(
            call.stage,
            names,
            call.is_join,
            call.fields,
            options["descending"],
            options["skip_unchanged"],
            definition=definition,
            function=call,
            preserve=preserve,
            order_by=order,
            function_digest=digest_of(call.function, *([] if hook is None else [hook.function])),
        )
        return self._declare(node)

    def _names_of(self, stage: str, feeders: Sequence[object]) -> list[str]:
        names = []
        for feeder in feeders:
            if isinstance(feeder, str):
                if feeder not in self._nodes:
                    raise InvalidInput(f"stage {stage!r} is fed by {feeder!r}, which is not declared before it")
                names.append(feeder)
                continue
            if not isinstance(feeder, Declared) or feeder._pipeline is not self:  # noqa: SLF001 of this module
                raise InvalidType(
                    f"a feeder of {stage!r} must be a source or stage of this pipeline, not {feeder!r}; "
                    f"a decorated function is one"
                )
            names.append(feeder.name)
        return names

    def _declare(self, node: Node) -> Declared:
        for option in ("descending", "skip_unchanged"):
            if not isinstance(getattr(node, option), bool):
                raise InvalidType(f"{option} of {node.name!r} must be True or False, not {getattr(node, option)!r}")
        if node.name in self._nodes:
            raise InvalidInput(f"there are two stages or sources named {node.name!r}")
        fields, descending = _pds.check_graph([*self._nodes.values(), node])
        node = node._replace(fields=fields, descending=descending)
        self._nodes[node.name] = node
        return Declared(self, node)


def _to_fields(key: object, value: object) -> pa.Schema:
    return pa.schema([_to_field("key", key), _to_field("value", value)])


def _to_field(name: str, field: object) -> pa.Field[Any]:
    if isinstance(field, pa.Field):
        return field.with_name(name)
    if isinstance(field, pa.DataType):
        return pa.field(name, field)
    raise InvalidType(f"{name} must be a pyarrow DataType or Field, not {field!r}")


def _name_of(function: object, name: str | None) -> str:
    if not callable(function):
        raise InvalidType(f"a producer decorates a function, not {type(function).__name__}")
    return require_text("name", getattr(function, "__name__", None) if name is None else name)
