"""Each command of ``pds`` on each kind of thing: it works, or says which commands fit."""

from __future__ import annotations

import datetime as dt
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds
from pds.cli.parser import build_parser
from pds.cli.thing import ALL, KINDS_OF

if TYPE_CHECKING:
    from tests.python.conftest import Run

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
AT = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)
# What a command needs beside the URL.
ARGUMENTS = {"diff": ["1"], "drop": ["--yes"], "restore": ["1"], "vacuum": ["--yes"]}
URLS = {"table": "lake/t", "dataset": "lake/d", "pipeline": "lake/p", "chain": "lake/c"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("things") / "lake"
    pds.write_table(f"{lake}/t", ROWS, key="id", sort_by="id")
    pds.write_dataset(f"{lake}/d", ROWS)
    pipeline = pds.open_pipeline(f"{lake}/p")
    pipeline.source("s", key=pa.int64(), value=pa.string())
    pipeline.update(s=pds.Changes([(1, "a"), (1, "b")]))
    chain = pds.odf.Dataset.create(pds.Store(lake), "c")
    for number in range(3):
        chain.ingest(pa.table({"at": pa.array([AT], pa.timestamp("us", "UTC")), "x": [number]}), event_time="at")
    return lake


@pytest.fixture(autouse=True)
def lake(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(template, tmp_path / "lake")
    monkeypatch.chdir(tmp_path)


def lines(run: Run, *argv: str) -> list[dict[str, Any]]:
    code, out, err = run(*argv, "-o", "ndjson")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def _verbs_with_url() -> set[str]:
    (commands,) = [action for action in build_parser()._actions if action.dest == "command"]
    assert commands.choices is not None
    parsers: dict[str, Any] = dict(commands.choices)
    return {name for name, parser in parsers.items() if parser.get_default("verb") is not None}


def test_the_kinds_of_every_command_are_known() -> None:
    assert _verbs_with_url() - {"ls"} == KINDS_OF.keys()


def test_the_reference_says_which_kinds_a_command_is_for() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.read_text().splitlines() if "| yes |" in line
    ]
    printed = {row[0].strip("`"): tuple(kind for kind, cell in zip(ALL, row[2:], strict=True) if cell) for row in rows}
    assert printed == KINDS_OF


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("verb", KINDS_OF)
def test_a_command_works_or_says_which_fit(run: Run, verb: str, kind: str) -> None:
    stage = ["--stage", "s"] if kind == "pipeline" and verb in ("schema", "head", "scan") else []
    code, out, err = run(verb, URLS[kind], *ARGUMENTS.get(verb, []), *stage)
    if kind in KINDS_OF[verb]:
        assert (code, err) == (0, "")
        # A vacuum of what is new removes nothing.
        assert out or verb in {"vacuum", "diff"}
        return
    assert (code, out) == (2, "")
    assert err.startswith(f"pds: '{URLS[kind]}' is a {kind}, and `pds {verb}` is for ")
    fitting = err.rpartition(": ")[2].strip().split(", ")
    assert fitting == [name for name in KINDS_OF if kind in KINDS_OF[name]]


def test_the_files_of_a_pipeline_and_of_a_chain_exist(run: Run, tmp_path: Path) -> None:
    for url in ("lake/p", "lake/c"):
        files = lines(run, "files", url)
        assert files
        for file in files:
            assert (tmp_path / url / file["path"]).stat().st_size == file["size_bytes"]
    assert [file["first_offset"] for file in lines(run, "files", "lake/c")] == [0, 1, 2]
    run_files = lines(run, "files", "lake/p", "--as-of", "1")
    assert {(file["stage"], file["total_rows"]) for file in run_files if file["content"] == "rows"} == {("s", 2)}


def test_a_chain_is_combined(run: Run) -> None:
    before = [row["x"] for row in lines(run, "scan", "lake/c")]
    (result,) = lines(run, "optimize", "lake/c")
    assert result == {"head": pds.open_chain("lake/c").head}
    assert len(lines(run, "files", "lake/c")) == 1
    assert [row["x"] for row in lines(run, "scan", "lake/c")] == before
    assert lines(run, "optimize", "lake/c") == [result], "nothing is left to combine"
    assert run("optimize", "lake/c", "--sort")[0] == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["vacuum", "lake/t"],
        ["vacuum", "lake/p"],
        ["vacuum", "lake/c"],
        ["drop", "lake/t"],
        ["drop", "lake/d"],
        ["dataset", "delete", "lake", "d"],
        ["dataset", "clean", "lake", "d"],
        ["odf", "vacuum", "lake/c"],
    ],
    ids=" ".join,
)
def test_what_deletes_needs_consent(run: Run, argv: list[str], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.endswith("needs --yes\n")
    assert sorted(tmp_path.rglob("*")) == before
    assert run(*argv, "--yes")[0] == 0


def test_a_chain_is_vacuumed_dry_without_consent(run: Run) -> None:
    assert run("odf", "vacuum", "lake/c", "--dry-run")[0] == 0
    assert run("vacuum", "lake/c", "--dry-run")[0] == 0


@pytest.mark.parametrize(("answer", "code", "is_left"), [("n\n", 1, True), ("y\n", 0, False)])
def test_a_terminal_is_asked(answer: str, code: int, is_left: bool, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    os.write(leader, answer.encode())
    command = [sys.executable, "-m", "pds", "drop", "lake/d"]
    done = subprocess.run(command, stdin=follower, capture_output=True, text=True, check=False)
    os.close(leader)
    os.close(follower)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("delete the dataset 'lake/d' with all of its rows? [y/N] ")
    assert (tmp_path / "lake" / "d").exists() == is_left


def test_versions_that_do_not_exist_yet_are_2(run: Run) -> None:
    for argv in (["tag", "lake/p", "x", "99"], ["tag", "lake/t", "x", "99"], ["head", "lake/t", "--as-of", "99"]):
        code, out, err = run(*argv)
        assert (code, out, "there is no version 99; the newest is " in err) == (2, "", True), err
    assert lines(run, "tag", "lake/p", "x", "1") == [{"version": 2}]


@pytest.mark.parametrize(
    "argv", ["head lake/p --stage zz", "head lake/p --stage s --as-of zz", "tag lake/p --delete zz"]
)
def test_names_that_a_pipeline_does_not_have_are_2(run: Run, argv: str) -> None:
    code, out, err = run(*argv.split())
    assert (code, out, "'zz'" in err) == (2, "", True), err
