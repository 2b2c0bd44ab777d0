"""The ``pds`` command and folders: datasets in the folders of others, files of others, and folders without anything."""

from __future__ import annotations

import argparse
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import pds
from pds.cli import stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Run

ROWS = pa.table({"id": [1, 2, 3]})
DELETIONS = (["drop", "x"], ["dataset", "delete", ".", "x"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pds.write_dataset("x", ROWS)


def list_files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def write_file(path: str, content: str = "mine") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(content)


def list_things(run: Run, url: str) -> list[tuple[str, str]]:
    code, out, err = run("ls", url, "-o", "ndjson")
    assert (code, err) == (0, "")
    entries = [json.loads(line) for line in out.splitlines()]
    for entry in entries:
        assert Path(entry["url"].removeprefix("file://")).resolve() == (Path(url) / entry["path"]).resolve()
    return [(entry["kind"], entry["path"]) for entry in entries]


@pytest.mark.parametrize("argv", DELETIONS, ids=" ".join)
def test_other_datasets_and_files_are_not_deleted_unasked(run: Run, argv: list[str]) -> None:
    pds.write_dataset("x/y", ROWS)
    pds.write_dataset("x/y/z", ROWS)
    write_file("x/notes.csv")
    before = list_files()
    # Also where nobody can be asked: the refusal comes first.
    for consent in ([], ["--yes"]):
        code, out, err = run(*argv, *consent)
        assert (code, out) == (2, "")
        assert "2 other datasets, such as 'x/y', and 1 other file, such as 'x/notes.csv'; --recursive" in err
        assert list_files() == before
    code, _, err = run(*argv, "--recursive")
    assert (code, list_files()) == (2, before)
    assert "with all of its rows, and what else is in its folder: 2 other datasets, 1 other file needs --yes" in err
    assert run(*argv, "--recursive", "--yes")[::2] == (0, "")
    assert not Path("x").exists()


@pytest.mark.parametrize("argv", DELETIONS, ids=" ".join)
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("x/y/_SUCCESS", "1 other dataset, such as 'x/y';"),
        ("x/_committed_1", "1 other file, such as 'x/_committed_1';"),
        ("x/part-00000-1a.snappy.parquet", "1 other file, such as 'x/part-00000-1a.snappy.parquet';"),
        ("x/sub/data.parquet", "1 other file, such as 'x/sub/data.parquet';"),
    ],
)
def test_what_is_more_than_a_dataset_is_named(run: Run, argv: list[str], path: str, reason: str) -> None:
    write_file(path)
    code, out, err = run(*argv, "--yes")
    assert (code, out, reason in err) == (2, "", True), err
    assert Path(path).exists()


@pytest.mark.parametrize("argv", DELETIONS, ids=" ".join)
def test_what_writers_leave_is_deleted_with_the_dataset(run: Run, argv: list[str]) -> None:
    for name in ("part-00007.parquet", ".pds-0-0.tmp"):
        write_file(f"x/{name}")
    # A manifest of another maker has parts with other names.
    manifest = json.loads(Path("x/manifest.json").read_text())
    Path("x/data.parquet").rename("x/rows.parquet")
    Path("x/manifest.json").write_text(json.dumps({**manifest, "parts": ["rows.parquet"]}))
    assert run(*argv, "--yes")[::2] == (0, "")
    assert not Path("x").exists()


@pytest.mark.parametrize("argv", DELETIONS, ids=" ".join)
@pytest.mark.parametrize("kind", ["table", "chain"])
def test_what_is_not_deleted_with_a_dataset_is_named_first(run: Run, argv: list[str], kind: str) -> None:
    if kind == "table":
        pds.write_table("x/t", ROWS)
    else:
        pds.odf.Dataset.create(pds.Store("x"), "t")
    before = list_files()
    for flags in ([], ["--recursive"], ["--recursive", "--yes"]):
        code, out, err = run(*argv, *flags)
        assert (code, out, "'x/t' is a table, a pipeline or a chain" in err) == (2, "", True), err
        assert list_files() == before


def test_a_terminal_is_told_what_else_is_deleted() -> None:
    pds.write_dataset("x/y", ROWS)
    leader, follower = pty.openpty()
    os.write(leader, b"y\n")
    command = [sys.executable, "-m", "pds", "drop", "x", "--recursive"]
    done = subprocess.run(command, stdin=follower, capture_output=True, text=True, check=False)
    os.close(leader)
    os.close(follower)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(
        "delete the dataset 'x' with all of its rows, and what else is in its folder: 1 other dataset? [y/N] "
    )
    assert not Path("x").exists()


def test_a_table_is_dropped_alone(run: Run) -> None:
    pds.write_table("t", ROWS)
    write_file("t/notes.csv")
    code, out, err = run("drop", "t", "--recursive", "--yes")
    assert (code, out, "leave out --recursive" in err) == (2, "", True)
    assert run("drop", "t", "--yes")[0] == 0
    assert [path for path in list_files() if path.startswith("t/")] == ["t/notes.csv"]


def test_what_is_in_the_folder_of_a_dataset_is_listed(run: Run) -> None:
    pds.write_dataset("x/y", ROWS)
    pds.write_dataset("x/a/b/c", ROWS)
    pds.write_table("x/a/t", ROWS)
    pds.write_dataset("x/a/t/inside", ROWS)
    pds.odf.Dataset.create(pds.Store("x/y"), "chain")
    pds.write_dataset("w", ROWS)
    below_x = [("dataset", "a/b/c"), ("table", "a/t"), ("dataset", "y"), ("chain", "y/chain")]
    assert list_things(run, "x") == [("dataset", ""), *below_x]
    assert list_things(run, ".") == [
        ("dataset", "w"),
        ("dataset", "x"),
        *((kind, f"x/{path}") for kind, path in below_x),
    ]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["list", "nowhere"], "there is nothing at 'nowhere'"),
        (["list", ".", "nowhere"], "there is nothing at 'nowhere' in '.'"),
        (["verify", "nowhere"], "there are no datasets below 'nowhere'"),
        (["verify", "empty"], "there are no datasets below 'empty'"),
        (["clean", ".", "nowhere", "--yes"], "there is nothing at 'nowhere' in '.'"),
    ],
    ids=str,
)
def test_what_is_not_there_is_an_error(run: Run, argv: list[str], reason: str) -> None:
    Path("empty").mkdir()
    code, out, err = run("dataset", *argv)
    assert (code, out, reason in err) == (1, "", True), err
    assert not Path("nowhere").exists()


def test_an_empty_folder_has_no_datasets(run: Run) -> None:
    Path("empty").mkdir()
    assert run("dataset", "list", "empty") == (0, "", "")
    assert run("dataset", "list", ".", "empty") == (0, "", "")


def test_a_store_without_anything(store: pds.Store, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[Callable[[pds.Store, argparse.Namespace], int], str | None]] = [
        (stores.list_datasets, None),
        (stores.list_datasets, "k"),
        (stores.verify_datasets, None),
        (stores.clean_dataset, "k"),
    ]

    def call(command: Callable[[pds.Store, argparse.Namespace], int], key: str | None) -> int:
        return command(store, argparse.Namespace(url="any", key=key, yes=True, older_than=1.0, progress=False))

    for command, key in calls:
        # A local folder is there without anything in it.
        if not (command is stores.list_datasets and key is None and store.url.startswith("file:")):
            with pytest.raises(pds.NotFound):
                call(command, key)
    assert capsys.readouterr().out == ""
    pds.ParquetDatasetStore(store).write_dataset(ROWS, "k/d")
    assert [call(command, key) for command, key in calls] == [0, 0, 0, 0]
