"""Persons who share an email address: regrouped by address, then by person; a correction reaches those it concerns.

python examples/shared_emails.py
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
    """Declare the graph."""
    p = pds.Pipeline(store, "shared-emails")
    persons = p.source("persons", key=pa.string(), value=pa.list_(pa.string()))

    @p.producer(persons, key=pa.string(), value=pa.string())
    def persons_by_email(name: str, addresses: Iterator[list[str]]) -> Iterator[tuple[str, str]]:
        for listed in addresses:
            for address in listed:
                yield address.strip().lower(), name

    @p.producer(persons_by_email, key=pa.string(), value=pa.string(), skip_unchanged=True)
    def shared_with(_: str, names: Iterator[str]) -> Iterator[tuple[str, str]]:
        listed = sorted(set(names))
        for name in listed:
            for other in listed:
                if other != name:
                    yield name, other

    return p


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        p = declare(pds.Store(Path(folder).as_uri()))
        p.update(
            persons=pds.Changes(
                [("Ann", ["ann@x.org", "home@x.org"]), ("Bo", ["HOME@x.org"]), ("Cy", ["cy@x.org", "home@x.org"])]
            )
        )

        def show(text: str) -> None:
            pairs = [(row["target_key"], row["value"]) for row in p["shared_with"].read().to_pylist()]
            print(f"{text:18}", sorted(set(pairs)))

        show("at first:")
        result = p.update(persons=pds.Changes([("Bo", ["bo@x.org"])]))
        show("Bo was corrected:")
        print("persons concerned:", result.stages["shared_with"].keys_out)
        print("why Ann is listed:", p["shared_with"].lineage(["Ann"]))


if __name__ == "__main__":
    main()
