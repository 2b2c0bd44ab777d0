"""Spans of OpenTelemetry for operations, in applications that use OpenTelemetry.

pds does not depend on it and never imports it: there are no spans unless the application has imported
`opentelemetry.trace`, and none are recorded unless it has set a tracer provider.
"""

from __future__ import annotations

__all__ = ["run_traced", "traces"]

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from pds.urls import join_url

if TYPE_CHECKING:
    from collections.abc import Callable

    Result = TypeVar("Result")
    Class = TypeVar("Class", bound=type)

# What a span tells of a result, by the name in the result.
_ATTRIBUTES = {
    "version": "pds.version",
    "rows": "pds.rows",
    "row_count": "pds.rows",
    "num_rows": "pds.rows",
    "files": "pds.files",
    "bytes": "pds.bytes",
    "requests": "pds.requests",
    "attempts": "pds.attempts",
    "waited": "pds.waited",
    "replayed": "pds.replayed",
}


def traces(
    prefix: str, *names: str, owner: Callable[[Any], object] = lambda instance: instance
) -> Callable[[Class], Class]:
    """Make each call of these methods of a class a span `PREFIX.NAME`.

    Args:
        prefix: The begin of the spans' names, such as `"pds.table"`.
        names: The names of the methods.
        owner: Returns what an instance works on: an object with a location, or a store of datasets.
    """

    def decorate(decorated: Class) -> Class:
        for name in names:
            setattr(decorated, name, _trace_method(getattr(decorated, name), f"{prefix}.{name}", owner))
        return decorated

    return decorate


def _trace_method(
    method: Callable[..., Result], span_name: str, owner: Callable[[Any], object]
) -> Callable[..., Result]:
    parameters = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def call(self: object, *arguments: Any, **named: Any) -> Result:  # noqa: ANN401 those of the method
        if _find_api() is None:
            return method(self, *arguments, **named)

        def find_url() -> str | None:
            return _find_url(owner(self), dict(zip(parameters, arguments, strict=False)) | named)

        return run_traced(span_name, find_url, lambda: method(self, *arguments, **named))

    return call


def run_traced(span_name: str, find_url: Callable[[], str | None], operation: Callable[[], Result]) -> Result:
    """Run an operation within a span, and describe its result or its error in the span."""
    api = _find_api()
    if api is None:
        return operation()
    with api.get_tracer("pds").start_as_current_span(span_name) as span:
        if not span.is_recording():
            return operation()
        if (url := find_url()) is not None:
            span.set_attribute("pds.url", url)
        try:
            result = operation()
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            if isinstance(retryable := getattr(error, "retryable", None), bool):
                span.set_attribute("pds.retryable", retryable)
            raise
        for name, attribute in _ATTRIBUTES.items():
            if isinstance(value := getattr(result, name, None), bool | int | float):
                span.set_attribute(attribute, value)
        return result


def _find_api() -> Any | None:  # noqa: ANN401 a module that may be missing
    api = sys.modules.get("opentelemetry.trace")
    # It is incomplete while another thread imports it.
    return api if hasattr(api, "get_tracer") else None


def _find_url(owner: object, arguments: dict[str, Any]) -> str | None:
    """The URL of a table, pipeline, chain or dataset. URLs of stores contain no secrets."""
    if (location := getattr(owner, "_location", None)) is not None:
        return str(location.url())
    url = getattr(getattr(owner, "store", None), "url", None)
    key = arguments.get("dataset_key") or arguments.get("key")
    return join_url(url, key) if isinstance(url, str) and isinstance(key, str) else None
