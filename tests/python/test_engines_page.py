"""The code of docs/engines.md runs as it stands there, one block after the other, and prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
# Blocks of `py` need packages that are not among those of the tests.
BLOCK = re.compile(r"^```(python|py)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
PRINTED = {"dask": "6\n", "ibis": "3\n(3, 3)\n", "ray": "6\n"}


def make_ray() -> types.ModuleType:
    """Ray, as far as the page uses it: calls are pickled without their functions, and so are their results."""

    def copy(value: Any) -> Any:
        return pickle.loads(pickle.dumps(value))  # noqa: S301 our own

    def remote(function: Any) -> Any:
        return types.SimpleNamespace(remote=lambda *args: copy(function(*map(copy, args))))

    module: Any = types.ModuleType("ray")
    module.remote = remote
    module.get = list
    module.data = types.SimpleNamespace(from_arrow_refs=lambda refs: types.SimpleNamespace(to_arrow_refs=lambda: refs))
    return module


def run_blocks(optional: str | None = None) -> list[str]:
    """Run the blocks, and of those with other packages the one of `optional`; return the packages of the latter."""
    text, names, packages = PAGE.read_text(), {}, []  # type: ignore[var-annotated]
    for block in BLOCK.finditer(text):
        language, code, expected = block.groups()
        if language == "py":
            package = re.split(r"[ ,.\n]", code.removeprefix("import "))[0]
            packages.append(package)
            if package != optional:
                continue
            expected = PRINTED[package]
        printed = io.StringIO()
        line = text[: block.start()].count("\n") + 1
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            if language == "py":
                warnings.simplefilter("ignore")
            # With the line numbers of the page in tracebacks.
            exec(compile("\n" * line + code, str(PAGE), "exec"), names)  # noqa: S102 the page is ours
        assert printed.getvalue() == (expected or ""), f"line {line}"
        if language == "py":
            break
    return packages


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorted(run_blocks()) == sorted(PRINTED)


@pytest.mark.parametrize("package", PRINTED)
def test_the_code_for_other_packages_runs(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if package == "ray":
        monkeypatch.setitem(sys.modules, "ray", make_ray())
    assert run_blocks(package)[-1] == package
