"""THIRD-PARTY.txt: the crates in the binary wheels, with the texts that their licences ask to hand on.

``python -m third_party`` writes it from Cargo.lock, for all platforms that wheels are built for; ``--check`` fails
where it is out of date. Where a crate offers Apache-2.0 among others, that is the licence taken: its text is the one
of pds.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "THIRD-PARTY.txt"
PACKAGE = "pds-python"
TARGETS = [
    f"{arch}-{system}"
    for system in ("unknown-linux-gnu", "unknown-linux-musl", "apple-darwin")
    for arch in ("x86_64", "aarch64")
]

APACHE = "Apache-2.0"
# Of its own text, which LICENSE is.
APPENDIX = "APPENDIX: How to apply"
LICENCE_FILE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|UNLICENSE)", re.IGNORECASE)
NOTICE_FILE = re.compile(r"NOTICE", re.IGNORECASE)
# The GPL, zstd's other licence, which is not taken; that of a picture in petgraph's documentation; copies in pyo3.
OTHER_FILES = {
    "zstd/COPYING",
    "assets/images/LICENSE.md",
    "pyo3-runtime/LICENSE-APACHE",
    "pyo3-runtime/LICENSE-MIT",
}
# For crates that name MIT and ship no text.
MIT = """\
MIT License

Copyright (c) {authors}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
HEAD = """\
Third-party software in the binary of pds

Made by `make third-party` from Cargo.lock; do not edit. The compiled module of pds contains the Rust standard library
(Apache-2.0) and the crates below. Those under Apache-2.0 are under the text of LICENSE beside this file.
"""


@dataclasses.dataclass(frozen=True, order=True)
class Crate:
    """A crate of the lock file."""

    name: str
    version: str
    licence: str = dataclasses.field(compare=False, default="")
    authors: tuple[str, ...] = dataclasses.field(compare=False, default=())
    repository: str = dataclasses.field(compare=False, default="")
    folder: Path = dataclasses.field(compare=False, default=Path())

    def __str__(self) -> str:
        """Name and version, as Cargo writes them."""
        return f"{self.name} {self.version}"

    def is_apache(self) -> bool:
        """Whether Apache-2.0 alone is enough."""
        return APACHE in re.split(r"\s+OR\s+|\s*/\s*", self.licence) and "(" not in self.licence

    def texts(self, pattern: re.Pattern[str], folders: str = "**") -> list[str]:
        """The contents of the crate's files with such names, in its folders too: those are of what it bundles."""
        paths = sorted(path for path in self.folder.glob(f"{folders}/*") if pattern.match(path.name) and path.is_file())
        chosen = [path for path in paths if path.relative_to(self.folder).as_posix() not in OTHER_FILES]
        texts = [clean_text(path.read_text(encoding="utf-8", errors="replace")) for path in chosen]
        return [text for text in texts if not (text.startswith("Apache License") and APPENDIX in text)]


def clean_text(text: str) -> str:
    """The text without what differs between copies of it: line ends and space around lines' ends."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def cargo(*arguments: str) -> str:
    """The output of a Cargo command on the workspace."""
    command = ["cargo", *arguments, "--locked"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def find_linked(target: str) -> set[tuple[str, str]]:
    """Names and versions of the crates linked into the module for a target; pds's own are left out."""
    tree = cargo(
        "tree", "--package", PACKAGE, "--edges", "normal,no-proc-macro", "--target", target,
        "--prefix", "none", "--format", "{p}",
    )  # fmt: skip
    crates = set()
    for line in filter(None, tree.splitlines()):
        name, version, *path = line.split()
        if not any(part.startswith("(/") for part in path):
            crates.add((name, version.removeprefix("v")))
    return crates


@functools.cache
def read_crates() -> list[Crate]:
    """All linked crates on all targets, sorted."""
    crates: set[Crate] = set()
    for target in TARGETS:
        missing = find_linked(target) - {(crate.name, crate.version) for crate in crates}
        # Metadata of one platform, since Cargo would download the crates of all others.
        metadata = (
            cargo("metadata", "--format-version", "1", "--filter-platform", target) if missing else '{"packages": []}'
        )
        for package in json.loads(metadata)["packages"]:
            if (package["name"], package["version"]) in missing:
                crates.add(
                    Crate(
                        package["name"],
                        package["version"],
                        package["license"] or "",
                        tuple(re.sub(r"\s*<[^>]*>", "", author) for author in package["authors"]),
                        package["repository"] or "",
                        Path(package["manifest_path"]).parent,
                    )
                )
    return sorted(crates)


def find_texts(crate: Crate, crates: list[Crate]) -> list[str]:
    """The licence texts of a crate: its own, those of a crate from the same repository, or the standard one."""
    siblings = [other for other in crates if other.repository == crate.repository and other.licence == crate.licence]
    for source in (crate, *siblings):
        if texts := source.texts(LICENCE_FILE):
            return texts
    if crate.licence != "MIT":
        raise SystemExit(f"{crate} ({crate.licence}) has no licence text: add one to {__file__}")
    return [clean_text(MIT.format(authors=", ".join(crate.authors) or f"the authors of {crate.name}"))]


def render(crates: list[Crate]) -> str:
    """The whole file."""
    apache = [crate for crate in crates if crate.is_apache()]
    sections = [HEAD, heading("Under Apache-2.0"), *(f"{crate}  {crate.repository}".rstrip() for crate in apache)]
    # Crates with the same text share it.
    users: dict[str, list[Crate]] = {}
    for crate in crates:
        licences = crate.texts(LICENCE_FILE, "*/**") if crate.is_apache() else find_texts(crate, crates)
        for text in crate.texts(NOTICE_FILE) + licences:
            users.setdefault(text, []).append(crate)
    for text, sharing in users.items():
        names = ", ".join(str(crate) for crate in sharing)
        stated = sorted({crate.licence for crate in sharing})
        sections += [heading(names), f"(stated: {'; '.join(stated)})\n", text]
    return "\n".join(sections) + "\n"


def heading(text: str) -> str:
    """A line that separates sections."""
    return f"\n{'=' * 100}\n{text}\n{'=' * 100}"


def main() -> None:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(prog="third_party", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where the file is out of date")
    text = render(read_crates())
    if not parser.parse_args().check:
        OUTPUT.write_text(text, encoding="utf-8")
    elif not OUTPUT.exists() or OUTPUT.read_text(encoding="utf-8") != text:
        sys.exit(f"{OUTPUT.name} is out of date: run `make third-party`")


if __name__ == "__main__":
    main()
