"""`pds demo`: it runs what it prints, and leaves what it says."""

from __future__ import annotations

import ast
import contextlib
import io
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pds

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from tests.python.conftest import Run


def test_the_demo_leaves_a_folder_to_look_at(run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "a lake"
    code, out, err = run("demo", str(lake))
    assert (code, err) == (0, "")
    assert [(entry.kind, entry.path) for entry in pds.list(lake)] == [
        ("dataset", "cities"),
        ("table", "people"),
        ("pipeline", "sales"),
    ]
    assert pds.open_table(lake / "people").scan().to_pyarrow().sort_by("id").to_pydict() == {
        "id": [1, 3, 4],
        "city": ["Riga", "Quito", "Bonn"],
    }
    assert str(lake) in out


def test_the_printed_lines_can_be_typed_in(run: Run, tmp_path: Path) -> None:
    out = run("demo", str(tmp_path / "first"))[1]
    lines = [line.removeprefix(">>> ") for line in out.splitlines() if line.startswith(">>> ")]
    lines[0] = f"lake = {str(tmp_path / 'second')!r}"
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.parse("\n".join(lines)), "demo", "exec"), names)  # noqa: S102 our own lines
    for line in printed.getvalue().splitlines():
        assert line in out
    for number in ("first", "second"):
        people = pds.open_table(tmp_path / number / "people")
        assert people.scan().to_pyarrow().num_rows == 3


def test_a_folder_with_files_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    for url in (tmp_path, tmp_path / "x"):
        code, out, err = run("demo", str(url))
        assert (code, out) == (2, "")
        assert "not an empty folder" in err
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_without_a_folder_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with pyarrow as the only package that pds may import."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"rich", "numpy", "pandas", "polars", "duckdb", "fsspec", "dagster", "pyspark"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
from pds import cli
sys.exit(cli.main(["demo"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    assert done.stdout.splitlines()[-1].startswith(f"{tmp_path}/pds-demo-")
