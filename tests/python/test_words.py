"""Names and messages use the field's words: what had to be explained does not come back."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder, pattern in (
        ("src", "*.rs"),
        ("python/src", "*.rs"),
        ("python/pds", "*.py"),
        ("tests/rust", "*.rs"),
        ("fuzz/src", "*.rs"),
    )
    for path in (ROOT / folder).rglob(pattern)
)

# Identifiers: riddles, participles as functions, one name for many types.
BANNED = frozenset(
    """
    Abilities Carried Feeder Flow GivenFile Going Held Hit Instead Merging Numbering OfFiles OfGroups Opener Passenger
    Places Recipe Seat Shortener Superseded Tally Then Turn Unfinished Wanted WatchedBody Weather
    AGAIN_PAUSE AGAIN_WITHIN MAX_SENT PATIENCE PIECE_BYTES
    again announced back_from began_at carry_out_ours caused_by conform consistently counted_below exchange
    folded followed_by found given give_up go_alone gone hinted horizon in_python is_a_finding is_certain is_shown
    looked looked_at made made_from meant named_by persistently plans_again publish_plainly remade resident
    restored_since ride_along roots shorten show_part show_parts stage_hashed stamped tag_is_dead take_along
    take_out take_turn told unless_certain wanted wasteful widens
    """.split()  # noqa: SIM905 a list of words is read as one
)

# Parts of messages that left the reader to guess.
RIDDLES = (
    "again and again",
    "are no Parquet file",
    "cannot be held by Parquet",
    "came first in every attempt",
    "changed meanwhile",
    "does not end",
    "does not show",
    "is no moment",
    "is no operation",
    "is no time",
    "leads nowhere",
    "names files elsewhere",
    "not one of those there are",
    "nothing to tell of",
    "rows were looked at",
    "the file system refused",
    "the reader has gone",
    "the store did not do it",
    "there are no more offsets",
    "took the publish over while",
)


def rust_identifiers(text: str) -> list[str]:
    """The identifiers of Rust code, without those of comments and literals."""
    pattern = r'//[^\n]*|b?r(#*)"[\s\S]*?"\1|b?"(?:\\.|[^"\\])*"|' + r"'(?:\\[^']+|[^'\\])'|([A-Za-z_]\w*)"
    return [match[2] for match in re.finditer(pattern, text, re.DOTALL) if match[2]]


def python_identifiers(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.NAME]


def unbroken(text: str) -> str:
    """Text whose sentences are on one line: literals that are continued, comments of several lines."""
    return re.sub(
        r"\\\n\s*|\"\n\s*f?\"|\n\s*(?://[/!]?|#)\s", lambda m: " " if "/" in m[0] or "#" in m[0] else "", text
    )


def test_identifiers_are_found() -> None:
    rust = """
    // again
    fn wanted<'a>(x: &'a str) -> char { let y = "found \\" gone"; r#"told " made"#; '\\''; 'g' }
    """
    assert [word for word in rust_identifiers(rust) if word in BANNED] == ["wanted"]
    assert "y" in rust_identifiers(rust)
    python = '''def told(x):
    """Found."""
    return x.made("gone")  # wanted
'''
    assert [word for word in python_identifiers(python) if word in BANNED] == ["told", "made"]


def test_riddles_are_found_across_lines() -> None:
    assert "the reader has gone" in unbroken('"the reader \\\n     has gone"')
    assert "the reader has gone" in unbroken("/// the reader\n    /// has gone")
    assert "the reader has gone" in unbroken('("the reader "\n    f"has gone")')


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_words_are_those_of_the_field(path: Path) -> None:
    text = path.read_text()
    identifiers = python_identifiers(text) if path.suffix == ".py" else rust_identifiers(text)
    assert sorted(set(identifiers) & BANNED) == []
    sentences = unbroken(text)
    assert [riddle for riddle in RIDDLES if riddle in sentences] == []
