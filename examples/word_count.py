"""Word count that is kept up to date: two sources, two stages, and updates that cost what they change.

python examples/word_count.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import pds

if TYPE_CHECKING:
    from collections.abc import Iterator


def declare(store: pds.Store) -> pds.Pipeline:
    """Declare the graph; every process that updates the pipeline does."""
    p = pds.Pipeline(store, "word-count")
    phrases = p.source("phrases", key=pa.int64(), value=pa.string())
    books = p.source("books", key=pa.int64(), value=pa.string())

    @p.producer(phrases, books, key=pa.string(), value=pa.int64())
    def ids_by_word(text_id: int, texts: Iterator[str]) -> Iterator[tuple[str, int]]:
        for text in texts:
            for word in text.split():
                yield word, text_id

    @p.producer(ids_by_word, key=pa.int64(), value=pa.string(), descending=True)
    def words_by_count(word: str, ids: Iterator[int]) -> Iterator[tuple[int, str]]:
        yield sum(1 for _ in ids), word

    return p


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        p = declare(pds.Store(Path(folder).as_uri()))
        p.update(
            phrases=pds.Changes([(1, "the blue red"), (2, "the red fish")]),
            books=pds.Changes([(2, "the old man and the sea")]),
        )
        print("words by count:", p["words_by_count"].read().select(["target_key", "value"]).to_pylist()[:3])

        result = p.update(phrases=pds.Changes(upserts=[(1, "the blue sea")]), base_version=1)
        for stage in result.stages.values():
            print(f"{stage.name:15} {stage.keys_in} keys in, {stage.keys_out} keys changed")
        print("changed counts:", p["words_by_count"].changes().to_pylist())
        print("sea is in:     ", p["ids_by_word"].read(["sea"]).to_pylist())
        print("before:        ", p.as_of(1)["words_by_count"].read().num_rows, "words")


if __name__ == "__main__":
    main()
