"""Spans of OpenTelemetry for operations, in applications that use OpenTelemetry.

pds does not depend on it and never imports it: there are no spans unless the application has imported
`opentelemetry.trace`, and none are recorded unless it has set a tracer provider.
"""

from __future__ import annotations

__all__ = ["run_traced", "traces"]

import contextlib
import functools
import inspect
import logging
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from pds.urls import join_url

if TYPE_CHECKING:
    from collections.abc import Callable

    Result = TypeVar("Result")
    Class = TypeVar("Class", bound=type)

_logger = logging.getLogger(__name__)

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
    scope = contextlib.ExitStack()
    span = _quietly(lambda: scope.enter_context(api.get_tracer("pds").start_as_current_span(span_name)))
    if span is None or not _quietly(span.is_recording):
        try:
            return operation()
        finally:
            _quietly(scope.close)
    _quietly(lambda: _set_url(span, find_url))
    try:
        result = operation()
    except BaseException as error:
        _quietly(functools.partial(_describe_error, api, span, error))
        _quietly(functools.partial(scope.__exit__, type(error), error, error.__traceback__))
        raise
    _quietly(lambda: _describe_result(span, result))
    _quietly(scope.close)
    return result


def _quietly(call: Callable[[], Result]) -> Result | None:
    """Return what a call of OpenTelemetry returns, or None if it fails: the operation and its outcome count."""
    try:
        return call()
    except Exception:
        _logger.exception("a span could not be recorded")
        return None


def _set_url(span: Any, find_url: Callable[[], str | None]) -> None:  # noqa: ANN401 a type of a module that may be missing
    if (url := find_url()) is not None:
        span.set_attribute("pds.url", url)


def _describe_error(api: Any, span: Any, error: BaseException) -> None:  # noqa: ANN401 as above
    span.set_attribute("error.type", type(error).__qualname__)
    if isinstance(retryable := getattr(error, "retryable", None), bool):
        span.set_attribute("pds.retryable", retryable)
    if not isinstance(error, Exception):
        # Such as a KeyboardInterrupt, which OpenTelemetry does not look at.
        span.set_status(api.StatusCode.ERROR, type(error).__qualname__)


def _describe_result(span: Any, result: object) -> None:  # noqa: ANN401 as above
    for name, attribute in _ATTRIBUTES.items():
        if isinstance(value := getattr(result, name, None), bool | int | float):
            span.set_attribute(attribute, value)


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
