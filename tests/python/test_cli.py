"""The ``pds`` command: output, exit codes, errors as one line."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa
import pytest

import hung
import pds
from pds import cli

if TYPE_CHECKING:
    from tests.python.conftest import Run

ROWS = pa.table({"id": list(range(100)), "name": [f"n{index}" for index in range(100)]})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def datasets(url: str) -> pds.ParquetDatasetStore:
    return pds.ParquetDatasetStore(pds.Store(url))


def _one_line(err: str) -> bool:
    return err.startswith("pds: ") and err.endswith("\n") and err.count("\n") == 1


def _damage(store: pds.Store, key: str, part: str = "data.parquet") -> None:
    content = bytearray(store.read_bytes(f"{key}/{part}"))
    content[len(content) // 3] ^= 1
    store.write(f"{key}/{part}", bytes(content), overwrite=True)


def test_list(run: Run, url: str, datasets: pds.ParquetDatasetStore) -> None:
    for key in ["b/two", "a/one", "b/one", "c"]:
        datasets.write_dataset(ROWS, key)

    assert run("dataset", "list", url) == (0, "a/one\nb/one\nb/two\nc\n", "")
    assert run("dataset", "list", url, "b") == (0, "b/one\nb/two\n", "")


def test_list_of_nothing(run: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    assert run("dataset", "list", url) == (0, "", "")


def test_show_prints_the_manifest(run: Run, url: str, datasets: pds.ParquetDatasetStore) -> None:
    manifest = datasets.write_dataset(ROWS, "a", run_id="r1", metadata={"owner": "ü"})

    code, out, err = run("dataset", "show", url, "a")

    assert (code, err) == (0, "")
    assert pds.DatasetManifest.from_json(out) == manifest
    assert json.loads(out)["metadata"] == {"owner": "ü"}


def test_verify(run: Run, url: str, datasets: pds.ParquetDatasetStore) -> None:
    datasets.write_dataset(ROWS, "a/b")
    report = datasets.verify_dataset("a/b")

    code, out, err = run("dataset", "verify", url, "a/b")

    assert (code, err) == (0, "")
    assert out.startswith("a/b: ok, 100 rows")
    assert f"{report.bytes} bytes" in out
    assert "1 parts, 1 with checksums" in out


def test_verify_tells_damage(run: Run, url: str, datasets: pds.ParquetDatasetStore) -> None:
    datasets.write_dataset(ROWS, "a")
    _damage(datasets.store, "a")

    code, out, err = run("dataset", "verify", url, "a")

    assert (code, out) == (1, "")
    assert _one_line(err)
    assert "data.parquet" in err


def test_verify_of_all_goes_on_after_damage(run: Run, url: str, datasets: pds.ParquetDatasetStore) -> None:
    for key in ["a", "b", "c"]:
        datasets.write_dataset(ROWS, key)
    _damage(datasets.store, "b")

    code, out, err = run("dataset", "verify", url)

    assert code == 1
    assert [line.partition(":")[0] for line in out.splitlines()] == ["a", "c"]
    assert _one_line(err)


def test_clean_removes_leftovers(run: Run, url: str, datasets: pds.ParquetDatasetStore, tmp_path: Path) -> None:
    datasets.write_dataset(ROWS, "a")
    program = """
import os, signal, sys
import pyarrow as pa, pds
write = pds.ParquetDatasetStore(pds.Store(sys.argv[1])).begin_write("a", overwrite=True)
write.prepare(pa.table({"id": list(range(500_000))}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, url], check=False)
    before = {path.name for path in (tmp_path / "store" / "a").iterdir()}

    assert run("dataset", "clean", url, "a")[:2] == (2, "")
    assert run("dataset", "clean", url, "a", "--yes") == (0, "a: 0 leftovers removed\n", "")
    code, out, err = run("dataset", "clean", url, "a", "--older-than", "0", "--yes")

    assert (code, err) == (0, "")
    assert out == "a: 1 leftovers removed\n"
    left = {path.name for path in (tmp_path / "store" / "a").iterdir()}
    assert left == {"data.parquet", "manifest.json", "_SUCCESS"} < before
    assert datasets.read_dataset("a").equals(ROWS)


def test_the_age_of_leftovers_is_in_days(
    run: Run, url: str, datasets: pds.ParquetDatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.write_dataset(ROWS, "a")
    ages: list[float] = []
    monkeypatch.setattr(
        pds.ParquetDatasetStore, "clean_dataset", lambda *_, older_than: ages.append(older_than) or len(ages)
    )
    for days in ((), ("--older-than", "0.5")):
        assert run("dataset", "clean", url, "a", "--yes", *days)[0] == 0
    assert ages == [86400.0, 43200.0]
    for days, reason in {"nan": "out of range", "-1": "negative", "1e300": "out of range"}.items():
        code, out, err = run("dataset", "clean", url, "a", "--yes", "--older-than", days)
        assert (code, out, reason in err) == (2, "", True), err
    assert len(ages) == 2


def test_delete(run: Run, url: str, datasets: pds.ParquetDatasetStore) -> None:
    datasets.write_dataset(ROWS, "a")

    code, out, err = run("dataset", "delete", url, "a")
    assert (code, out, "needs --yes" in err) == (2, "", True)
    assert datasets.store.exists("a")
    assert run("dataset", "delete", url, "a", "--yes") == (0, "a: deleted\n", "")
    assert not datasets.store.exists("a")


def test_delete_refuses_what_is_no_dataset(run: Run, url: str, datasets: pds.ParquetDatasetStore) -> None:
    pds.write_table(f"{url}/lake/my table", ROWS)
    pipeline = pds.open_pipeline(f"{url}/p")
    pipeline.source("s", key=pa.int64(), value=pa.int64())
    pipeline.update(s=pds.Changes([(1, 1)]))
    pds.odf.Dataset.create(datasets.store, "c")
    datasets.write_dataset(ROWS, "b/one")
    datasets.store.write("raw/part-1.parquet", b"of somebody else")
    before = [file.path for file in datasets.store.list_files(recursive=True)]

    for key, reason in {
        "lake/my table": f"is a table, not a dataset; use `pds drop {url}/lake/my%20table`",
        "lake": "is not a dataset, and has other files",
        "p": "is a pipeline, not a dataset; pds has no command",
        "c": "is a chain, not a dataset; pds has no command",
        "b": "'b/one/",
        "raw": "'raw/part-1.parquet'",
    }.items():
        code, out, err = run("dataset", "delete", url, key, "--yes")
        assert (code, out, reason in err) == (2, "", True), err
    for key in ("lake/my table", "p", "c"):
        code, out, err = run("dataset", "clean", url, key, "--yes")
        assert (code, out, f"pds vacuum {shlex.quote(url + '/' + quote(key))}" in err) == (2, "", True), err
    assert [file.path for file in datasets.store.list_files(recursive=True)] == before


@pytest.mark.parametrize("name", ["_SUCCESS", "manifest.json"])
def test_delete_removes_what_is_left_of_a_dataset(
    run: Run, url: str, datasets: pds.ParquetDatasetStore, name: str
) -> None:
    datasets.write_dataset(ROWS, "a")
    datasets.store.delete(f"a/{name}")

    assert run("dataset", "delete", url, "a", "--yes") == (0, "a: deleted\n", "")
    assert not datasets.store.exists("a")


@pytest.mark.parametrize("verb", ["show", "verify", "delete"])
def test_what_is_not_there_is_one_line(run: Run, url: str, verb: str) -> None:
    code, out, err = run("dataset", verb, url, "ghost", *(["--yes"] if verb == "delete" else []))

    assert (code, out) == (1, "")
    assert _one_line(err)
    assert "ghost" in err


def test_doctor(run: Run, store: pds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pds.store.Store", lambda *_args, **_options: store)

    code, out, err = run("doctor", "any://store")

    assert (code, err) == (0, "")
    assert [line.split(":")[0].split(maxsplit=1) for line in out.splitlines()] == [
        ["ok", "write"],
        ["ok", "read"],
        ["ok", "list"],
        ["ok", "conditional create"],
        ["ok", "conditional replace"],
        ["ok", "concurrent creates"],
        ["ok", "concurrent replaces"],
        ["ok", "delete"],
        ["safe"],
    ]


def test_doctor_leaves_nothing(run: Run, url: str, tmp_path: Path) -> None:
    run("doctor", url)

    assert list((tmp_path / "store").rglob("*")) == []


def test_doctor_removes_the_folders_that_it_created(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("doctor", f"{tmp_path}/empty/a b/c")[0] == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "empty"]
    assert run("doctor", f"{tmp_path}/empty")[0] == 0
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_doctor_of_a_store_that_cannot_be_reached(run: Run) -> None:
    options = [
        "aws_endpoint=http://127.0.0.1:9",
        "aws_access_key_id=k",
        "aws_secret_access_key=hush",
        "max_retries=0",
    ]

    code, out, err = run("doctor", "s3://bucket", *(f"--option={item}" for item in options))

    assert code == 1
    *findings, verdict = out.splitlines()
    assert all(line.startswith("FAIL") for line in findings)
    assert verdict.startswith("UNKNOWN: ")
    assert "127.0.0.1:9" in out
    assert "hush" not in out + err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["dataset"],
        ["dataset", "list"],
        ["dataset", "show", "memory://"],
        ["dataset", "grow", "memory://", "a"],
        ["dataset", "list", "memory://", "a", "b"],
        ["dataset", "list", "memory://", "--shout"],
        ["dataset", "clean", "memory://", "a", "--older-than", "soon"],
        ["doctor"],
        ["doctor", "memory://", "a"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_2(run: Run, argv: list[str]) -> None:
    code, out, err = run(*argv)

    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("pds")


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["dataset", "list", "ftp://host/x"], "ftp"),
        (["dataset", "list", "s3:/no-bucket"], "URL"),
        (["dataset", "list", "memory://", "--option", "aws_regoin=x"], "aws_regoin"),
        (["dataset", "list", "s3://b", "--option", "novalue"], "NAME=VALUE"),
        (["dataset", "list", "s3://b", "--option", "=v"], "NAME=VALUE"),
        (["doctor", "s3://b", "--option", "a=1", "--option", "a=2"], "twice"),
        (["dataset", "show", "memory://", ""], "path"),
        (["dataset", "delete", "memory://", "../x", "--yes"], "../x"),
        (["dataset", "verify", "memory://", "a\nb"], "path"),
    ],
    ids=str,
)
def test_a_bad_value_is_2_in_one_line(run: Run, argv: list[str], word: str) -> None:
    code, out, err = run(*argv)

    assert (code, out) == (2, "")
    assert _one_line(err)
    assert word in err


def test_secrets_stay_out_of_errors(run: Run) -> None:
    _, _, err = run("doctor", "s3://b", "--option", "aws_secret_access_key")
    assert "aws_secret_access_key" not in err
    _, out, err = run("doctor", "s3://b", "--option", "aws_secret_access_key=hush", "--option=x=1")
    assert "hush" not in out + err


def test_the_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="pds")
    assert script.load() is cli.main
    command = Path(sysconfig.get_path("scripts")) / "pds"
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "doctor" in done.stdout


def test_a_reader_that_stops_early_is_no_traceback(url: str, datasets: pds.ParquetDatasetStore) -> None:
    datasets.write_dataset(ROWS, "a")
    read, write = os.pipe()
    os.close(read)

    done = subprocess.run(
        [sys.executable, "-m", "pds", "dataset", "list", url],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (1, b"")


def test_ctrl_c_is_one_line() -> None:
    with hung.hung_server() as endpoint:
        options = [f"--option={name}={value}" for name, value in hung.options(endpoint).items()]
        command = [sys.executable, "-m", "pds", "dataset", "list", "s3://bucket", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(3)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=10)

    assert process.returncode == 130
    assert err == "pds: interrupted\n"


def _run_in_locale(settings: dict[str, str], *argv: str) -> tuple[int, str, str]:
    """Run the command in a process with another locale; its arguments are the bytes that a terminal of UTF-8 sends."""
    command = [sys.executable, "-m", "pds", *argv]
    done = subprocess.run(
        [os.fsencode(word) for word in command], env=os.environ | settings, capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode("ascii")


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_is_utf8_whatever_the_locale_is(datasets: pds.ParquetDatasetStore, url: str, encoding: str) -> None:
    datasets.write_dataset(pa.table({"größe": ["日本", "é"]}), "a")
    settings = ASCII | {"PYTHONIOENCODING": encoding}
    code, out, err = _run_in_locale(settings, "scan", f"{url}/a", "-o", "ndjson")
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [{"größe": "日本"}, {"größe": "é"}]


def test_an_argument_that_the_locale_cannot_decode_is_named(datasets: pds.ParquetDatasetStore, url: str) -> None:
    datasets.write_dataset(ROWS, "größe")
    for argv in (["dataset", "show", url, "größe"], ["show", f"{url}/größe"], ["ls", "größe"]):
        code, out, err = _run_in_locale(ASCII, *argv)
        assert (code, out) == (2, "")
        assert _one_line(err)
        assert r"gr\udcc3\udcb6\udcc3\udc9fe" in err
        assert "LC_ALL=C.UTF-8" in err


@pytest.mark.parametrize("argv", [["--option", "key=größe"], ["--option=key=größe"]])
def test_an_option_that_the_locale_cannot_decode_stays_secret(url: str, argv: list[str]) -> None:
    code, out, err = _run_in_locale(ASCII, "ls", url, *argv)
    assert (code, out) == (2, "")
    assert _one_line(err)
    assert "--option" in err
    assert "udcc3" not in err


def test_an_error_that_stderr_cannot_encode_is_escaped(url: str) -> None:
    settings = {"PYTHONUTF8": "1", "PYTHONIOENCODING": "ascii:strict"}
    code, out, err = _run_in_locale(settings, "show", f"{url}/größe")
    assert (code, out) == (1, "")
    assert _one_line(err)
    assert r"gr\xf6\xdfe" in err
