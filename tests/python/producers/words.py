"""Functions of word counts, the stages of many tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator


def split_words(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, int]]:
    """Emit the key under each word of its phrases."""
    for phrase in phrases:
        for word in phrase.split():
            yield word, key


def texts_of_words(key: int, phrases: Iterator[str]) -> Iterator[tuple[str, str]]:
    """As `split_words`, the key as text."""
    for word, number in split_words(key, phrases):
        yield word, f"<{number}>"


def count(word: Any, keys: Iterator[Any]) -> Iterator[tuple[int, str]]:
    """Emit the word under the number of its keys."""
    yield sum(1 for _ in keys), str(word)


def declare_counts(store: pds.Store, **options: Any) -> pds.Pipeline:
    """Phrases by number, the numbers by word, and the words by how often they occur."""
    pipeline = pds.Pipeline(store, "p", **options)
    pipeline.source("phrases", key=pa.int64(), value=pa.string())
    return _declare_stages(pipeline)


def declare_fed_counts(store: pds.Store, **options: Any) -> pds.Pipeline:
    """The same, of the phrases in a table."""
    pipeline = pds.Pipeline(store, "p", **options)
    pipeline.source("phrases", pds.Table(store, "phrases"), key="id", value="phrase")
    return _declare_stages(pipeline)


def _declare_stages(pipeline: pds.Pipeline) -> pds.Pipeline:
    words = pipeline.producer("phrases", key=pa.string(), value=pa.int64(), name="words")(split_words)
    pipeline.producer(words, key=pa.int64(), value=pa.string(), name="counts", descending=True)(count)
    return pipeline
