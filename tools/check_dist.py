"""What is published: ``python -m check_dist dist/*`` checks wheels and the sdist, and installs nothing.

A wheel has the licences, lists what is linked into it, and fits the size limit; the sdist has the sources alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from third_party import OUTPUT, ROOT, find_linked

# A wheel for x86-64 Linux has 39 MB, a fifth of it for DataFusion's interface; PyPI refuses files above 100 MB.
WHEEL_BYTES = 40 * 10**6
SDIST_BYTES = 5 * 10**6
SDIST_FILES = re.compile(
    r"(Cargo\.(toml|lock)|CHANGELOG\.md|LICENSE|PKG-INFO|README\.md|SECURITY\.md|THIRD-PARTY\.txt|pyproject\.toml"
    r"|(src|python/src)/.*\.rs|python/Cargo\.toml|python/(pds|pyspark_pds)/.*\.(py|pyi|typed))"
)
WHEEL_FILES = re.compile(r"(pds/_pds\.abi3\.so|(pds|pyspark_pds)/.*\.(py|pyi|typed)|pds-[^/]+\.dist-info/.*)")
# A wheel that pip builds from the sdist has the tag `linux`: it is of the machine's own glibc, and PyPI refuses it.
SYSTEMS = {
    "manylinux": "unknown-linux-gnu",
    "musllinux": "unknown-linux-musl",
    "macosx": "apple-darwin",
    "linux": "unknown-linux-gnu",
}
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def read_version() -> str:
    """The version in Cargo.toml."""
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]
    version: str = workspace["package"]["version"]
    return version


def find_target(wheel: str) -> str | None:
    """The compiler's name of the platform in a wheel's file name; None for a platform that is not known."""
    tag = wheel.removesuffix(".whl").split("-")[-1]
    system = next((SYSTEMS[name] for name in SYSTEMS if tag.startswith(name)), None)
    architecture = next((ARCHITECTURES[name] for name in ARCHITECTURES if tag.endswith(name)), None)
    return f"{architecture}-{system}" if system and architecture else None


def check_wheel(path: Path) -> list[str]:
    """The problems of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        info = f"pds-{read_version()}.dist-info"
        problems = [f"stray file {name}" for name in names if not WHEEL_FILES.fullmatch(name)]
        for licence in (ROOT / "LICENSE", OUTPUT):
            name = f"{info}/licenses/{licence.name}"
            if name not in names or wheel.read(name) != licence.read_bytes():
                problems.append(f"{name} is missing or not that of the repository")
        listed = {
            (component["name"], component["version"])
            for name in names
            if re.fullmatch(rf"{re.escape(info)}/sboms/.*\.cyclonedx\.json", name)
            for component in json.loads(wheel.read(name))["components"]
        }
    target = find_target(path.name)
    if target is None:
        problems.append("the platform in the file name is not known")
    else:
        unlisted = find_linked(target) - listed
        problems += [f"no SBOM lists {name} {version}" for name, version in sorted(unlisted)]
    if (size := path.stat().st_size) > WHEEL_BYTES:
        problems.append(f"{size} bytes, {WHEEL_BYTES} are allowed")
    return problems


def check_sdist(path: Path) -> list[str]:
    """The problems of a source distribution."""
    folder = f"pds-{read_version()}"
    with tarfile.open(path) as sdist:
        names = {name.removeprefix(f"{folder}/") for name in sdist.getnames()}
    problems = [f"stray file {name}" for name in sorted(names) if not SDIST_FILES.fullmatch(name)]
    needed = {"Cargo.lock", "LICENSE", OUTPUT.name, "src/lib.rs", "python/src/lib.rs", "python/pds/__init__.py"}
    problems += [f"{name} is missing" for name in sorted(needed - names)]
    if (size := path.stat().st_size) > SDIST_BYTES:
        problems.append(f"{size} bytes, {SDIST_BYTES} are allowed")
    return problems


def main() -> None:
    """Check the files named on the command line."""
    parser = argparse.ArgumentParser(prog="check_dist", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    failed = False
    for path in parser.parse_args().files:
        problems = check_wheel(path) if path.suffix == ".whl" else check_sdist(path)
        if f"pds-{read_version()}" not in path.name:
            problems.append(f"Cargo.toml has version {read_version()}")
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {'; '.join(problems) or 'ok'}")
        failed = failed or bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
