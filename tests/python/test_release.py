"""What is published: one version everywhere, the same platforms everywhere, and the checks of wheels and the sdist."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
import yaml

import check_dist
import pds
import third_party
from third_party import ROOT, Crate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

VERSION = check_dist.read_version()
INFO = f"pds-{VERSION}.dist-info"
WHEEL = f"pds-{VERSION}-cp311-abi3-manylinux_2_28_x86_64.whl"

LOCKS = [
    *ROOT.glob("requirements*.lock"),
    *(ROOT / "benches").rglob("requirements.lock"),
    ROOT / "tests/readers/requirements.lock",
]


def test_the_version_is_the_same_everywhere(run: Run) -> None:
    assert pds.__version__ == version("pds") == VERSION
    assert run("--version")[1].startswith(f"pds {VERSION},")
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(VERSION)} \((unreleased|\d{{4}}-\d\d-\d\d)\)", sections[0])


def test_wheels_are_built_and_checked_for_the_same_platforms() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    matrix = workflow["jobs"]["wheel"]["strategy"]["matrix"]["include"]
    system = {
        "macos": "apple-darwin",
        **{name: check_dist.SYSTEMS[name[:9]] for name in ("manylinux_2_28", "musllinux_1_2")},
    }
    built = {f"{entry['target']}-{system[entry['platform']]}" for entry in matrix}
    deny = tomllib.loads((ROOT / "deny.toml").read_text())
    assert built == set(third_party.TARGETS) == set(deny["graph"]["targets"])


def test_actions_are_pinned_by_their_commit() -> None:
    for workflow in (ROOT / ".github/workflows").iterdir():
        for action in re.findall(r"uses: (.+)", workflow.read_text()):
            assert re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", action), f"{workflow.name}: {action}"


def test_installs_and_audits_name_lock_files_by_hash() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installs = [
        line for line in makefile.replace("\\\n", " ").splitlines() if "pip install" in line and "--requirement" in line
    ]
    assert len(installs) == 5
    assert all("--require-hashes" in line for line in installs)
    command = ["make", "--dry-run", "--directory", str(ROOT), "advisories"]
    planned = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (audited,) = re.findall(r"for lock in (.+?);", planned)
    assert {ROOT / name for name in audited.split()} == set(LOCKS) - {ROOT / "requirements-oldest.lock"}


def test_the_places_of_unsafe_code_are_counted() -> None:
    sources = [path.read_text() for folder in ("src", "python/src") for path in (ROOT / folder).rglob("*.rs")]
    allowed = sum(len(re.findall(r"#\[(?:expect|allow)\(\s*unsafe_code", source)) for source in sources)
    assert allowed == 9
    assert "but for nine items with a reason" in (ROOT / "SECURITY.md").read_text()


def test_lock_files_have_hashes_and_no_address() -> None:
    for lock in LOCKS:
        entries = re.split(r"\n(?=\S)", lock.read_text().strip())
        assert all("==" in entry and "--hash=sha256:" in entry for entry in entries), lock
        assert "://" not in lock.read_text(), lock


@pytest.mark.parametrize(
    ("tag", "target"),
    [
        ("manylinux_2_28_x86_64", "x86_64-unknown-linux-gnu"),
        ("manylinux_2_28_aarch64", "aarch64-unknown-linux-gnu"),
        ("musllinux_1_2_aarch64", "aarch64-unknown-linux-musl"),
        ("macosx_11_0_arm64", "aarch64-apple-darwin"),
        ("macosx_10_12_x86_64", "x86_64-apple-darwin"),
        ("linux_x86_64", "x86_64-unknown-linux-gnu"),
        ("win_amd64", None),
        ("manylinux_2_28_ppc64le", None),
    ],
)
def test_the_target_of_a_wheel(tag: str, target: str | None) -> None:
    assert check_dist.find_target(f"pds-{VERSION}-cp311-abi3-{tag}.whl") == target


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of a sound wheel into which one crate is linked."""
    monkeypatch.setattr(check_dist, "find_linked", lambda _target: {("ring", "0.17.14")})
    components = [{"name": "ring", "version": "0.17.14"}]
    return {
        "pds/_pds.abi3.so": b"",
        "pds/py.typed": b"",
        f"{INFO}/METADATA": b"",
        f"{INFO}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{INFO}/licenses/THIRD-PARTY.txt": third_party.OUTPUT.read_bytes(),
        f"{INFO}/sboms/pds-python.cyclonedx.json": json.dumps({"components": components}).encode(),
    }


def _check_wheel(files: dict[str, bytes], folder: Path, file_name: str = WHEEL) -> list[str]:
    with zipfile.ZipFile(folder / file_name, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return check_dist.check_wheel(folder / file_name)


def test_a_sound_wheel(wheel: dict[str, bytes], tmp_path: Path) -> None:
    assert _check_wheel(wheel, tmp_path) == []


def test_a_wheel_of_an_unknown_platform(wheel: dict[str, bytes], tmp_path: Path) -> None:
    (problem,) = _check_wheel(wheel, tmp_path, f"pds-{VERSION}-cp311-abi3-win_amd64.whl")
    assert problem == "the platform in the file name is not known"


def test_a_wheel_from_the_sdist_needs_no_configuration_of_pyo3(tmp_path: Path) -> None:
    """What make would run, in a clone without anything that was built: the file that it exports is made, or unset."""
    environment = os.environ | {"CARGO_TARGET_DIR": str(tmp_path / "target"), "PDS_CACHE": str(tmp_path / "cache")}
    command = ["make", "--dry-run", "--directory", str(ROOT), "wheel-from-sdist"]
    planned = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    lines = planned.splitlines()
    config, sdist, wheel = (
        next(at for at, line in enumerate(lines) if text in line)
        for text in ("pyo3-abi3-py311.txt", "maturin sdist", "-m pip wheel")
    )
    assert config < sdist < wheel
    assert "-u PYO3_CONFIG_FILE" in lines[wheel]


def test_problems_of_a_wheel(wheel: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel["pds/notes.txt"] = b""
    del wheel[f"{INFO}/licenses/THIRD-PARTY.txt"]
    wheel[f"{INFO}/sboms/pds-python.cyclonedx.json"] = b'{"components": []}'
    monkeypatch.setattr(check_dist, "WHEEL_BYTES", 10)
    problems = _check_wheel(wheel, tmp_path)
    assert problems[:3] == [
        "stray file pds/notes.txt",
        f"{INFO}/licenses/THIRD-PARTY.txt is missing or not that of the repository",
        "no SBOM lists ring 0.17.14",
    ]
    assert problems[3].endswith("bytes, 10 are allowed")


def test_problems_of_an_sdist(tmp_path: Path) -> None:
    path = tmp_path / f"pds-{VERSION}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("Cargo.lock", "LICENSE", "src/lib.rs", "tests/rust/main.rs"):
            archive.addfile(tarfile.TarInfo(f"pds-{VERSION}/{name}"), io.BytesIO())
    problems = check_dist.check_sdist(path)
    assert problems[0] == "stray file tests/rust/main.rs"
    assert "THIRD-PARTY.txt is missing" in problems
    assert not any("LICENSE" in problem for problem in problems)


def test_texts_of_licences(tmp_path: Path) -> None:
    """Apache-2.0 alone needs no text of its own, what a crate bundles does; a crate without a text has a sibling's."""
    for name in ("apache/LICENSE-MIT", "apache/bundled/LICENSE", "bsd/LICENSE"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}  \r\n")
    apache = Crate("apache", "1.0.0", "MIT/Apache-2.0", folder=tmp_path / "apache")
    bsd = Crate("bsd", "2.0.0", "BSD-3-Clause", repository="r", folder=tmp_path / "bsd")
    sibling = Crate("sibling", "2.0.0", "BSD-3-Clause", repository="r", folder=tmp_path / "sibling")
    mit = Crate("mit", "3.0.0", "MIT", authors=("A. Author",), folder=tmp_path / "mit")
    text = third_party.render([apache, bsd, mit, sibling])
    assert "text of apache/LICENSE-MIT" not in text
    assert "apache 1.0.0\n" in text
    assert "text of apache/bundled/LICENSE\n" in text
    assert text.count("text of bsd/LICENSE\n") == text.count("bsd 2.0.0, sibling 2.0.0") == 1
    assert "Copyright (c) A. Author" in text


def test_a_crate_without_a_text_is_refused(tmp_path: Path) -> None:
    lonely = Crate("lonely", "1.0.0", "BSD-3-Clause", folder=tmp_path)
    with pytest.raises(SystemExit, match=r"lonely 1\.0\.0"):
        third_party.render([lonely])


def test_apache_within_an_and_is_not_enough() -> None:
    assert Crate("a", "1", "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT").is_apache()
    assert not any(
        Crate("a", "1", licence).is_apache()
        for licence in ("Apache-2.0 AND ISC", "(Apache-2.0 OR MIT) AND BSD-3-Clause", "MIT")
    )
