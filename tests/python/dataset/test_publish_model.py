"""The publish protocol, searched: every order of two writers' requests, with lost answers, late and repeated requests.

Each rule of the protocol is switched off in turn as well: without it the search must find a counterexample.
"""

from __future__ import annotations

from typing import Any

import publish_model as model
import pytest

ONE_PART = {0: 1, 1: 1, 2: 1, 9: 1}
INLINE = {0: "mpu", 1: "inline", 2: "inline", 9: "inline"}
MIXED = {0: "mpu", 1: ("inline", "mpu"), 2: "inline", 9: "inline"}
GROWING = {0: 1, 1: 2, 2: 1, 9: 1}
DELETE = {1: "overwrite", 2: "delete"}
CREATES = {1: "create", 2: "create"}
ALONE = {"own": (1, 0), "ops": {1: "overwrite"}}
EVERY_KIND = ("putI", "putF", "part", "partI", "delI", "delP", "delM", "putM")
MARKER_VERSIONS = {
    "genM": 1,
    "bounded": ("putM", "partI"),
    "dup": ("putI", "putF", "part", "delI", "delP", "delM"),
}

HOLDS: dict[str, Any] = {
    "overwrites": {},
    "overwrites, inline": {"kind": INLINE},
    "overwrites that grow and shrink": {"kind": INLINE, "np": GROWING},
    "creates, inline": {"old": False, "kind": INLINE, "ops": CREATES},
    "overwrite and delete": {"ops": DELETE},
    "one file by one file, nothing in time": {
        "single": 1,
        "np": ONE_PART,
        "kind": INLINE,
        "bounded": (),
        "dup": EVERY_KIND,
    },
    "one file by one file, its upload vanishes": {
        "single": 1,
        "np": ONE_PART,
        "bounded": (),
        "dup": EVERY_KIND,
        "life": 1,
        "crashes": 2,
        **ALONE,
    },
    "a staged part is missing": {**ALONE, "lost": {(1, 1)}},
    "published twice": {"again": (1, 0), "faults": 0},
    "inline and staged, a part is missing": {**ALONE, "kind": MIXED, "lost": {(1, 1)}},
    "an overwrite and a clean": ALONE,
    "a reader without checksums": {**ALONE, "reader": "again", "faults": 0},
}

RULES: dict[str, Any] = {
    "what is staged is looked at": {"verify": 0, **ALONE, "lost": {(1, 1)}, "faults": 0, "crashes": 0},
    "the intent names what it replaces": {"base": 0, "kind": INLINE},
    "the manifest is put conditionally": {"condF": 0},
    "strays go before the marker": {"sweep_first": 0, "kind": INLINE, "np": GROWING},
    "late requests of one's own are waited for": {"wait": 0, "kind": INLINE},
    "deletes are conditional or bounded": {"condDel": 0, "kind": INLINE},
}

LARGE: dict[str, Any] = {
    "mixed parts": {"kind": MIXED, "crashes": 2},
    "two faults, two takeovers": {"faults": 2, "takeovers": 2},
    "inline, two of everything": {"kind": INLINE, "faults": 2, "takeovers": 2, "crashes": 2},
    "creates, two of everything": {
        "old": False,
        "kind": INLINE,
        "ops": CREATES,
        "faults": 2,
        "takeovers": 2,
        "crashes": 2,
    },
    "delete, two faults": {"ops": DELETE, "faults": 2},
    "a marker with versions": {**MARKER_VERSIONS, "faults": 2},
    "one file by one file, staged, two faults": {
        "single": 1,
        "np": ONE_PART,
        "bounded": (),
        "dup": EVERY_KIND,
        "faults": 2,
    },
}


def violations(config: Any, states: int) -> list[str]:
    """What is violated anywhere in the search, which must be complete."""
    config.cap = states
    _, complete, found, _ = model.explore(config, stop_first=False)
    assert complete or found, "the search was cut short"
    return sorted(found)


@pytest.mark.parametrize("scenario", HOLDS)
def test_the_protocol_holds(scenario: str) -> None:
    assert not violations(model.cfg(**HOLDS[scenario]), 120_000)


@pytest.mark.parametrize("scenario", [name for name in HOLDS if not name.startswith("one file")])
def test_the_protocol_holds_where_only_puts_are_conditional(scenario: str) -> None:
    assert not violations(model.class_b(**HOLDS[scenario]), 120_000)


@pytest.mark.parametrize("scenario", ["overwrites", "overwrite and delete", "creates, inline"])
def test_the_protocol_holds_where_a_marker_has_versions(scenario: str) -> None:
    assert not violations(model.cfg(**MARKER_VERSIONS, **HOLDS[scenario]), 120_000)


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_something_is_lost(rule: str) -> None:
    config = model.cfg(cap=120_000, **RULES[rule])
    _, _, found, _ = model.explore(config)
    assert found


@pytest.mark.parametrize(
    "scenario",
    [
        {**ALONE, "own": (1,), "lost": {(1, 1)}, "faults": 0, "crashes": 0},
        {"again": (1, 0), "faults": 0, "crashes": 0, "takeovers": 0},
        {"crashes": 0, "dup": ()},
        {"takeovers": 0, "dup": ("delI",)},
        {"kind": INLINE, "crashes": 0, "takeovers": 0, "dup": ("putI",)},
    ],
    ids=["vanished part", "second publish", "late request", "repeated release", "late intent"],
)
def test_a_plain_redo_log_loses_data(scenario: Any) -> None:
    _, _, found, _ = model.explore(model.today(cap=120_000, **scenario))
    assert found


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("scenario", LARGE)
def test_the_protocol_holds_in_large_searches(scenario: str) -> None:
    config = model.cfg(**LARGE[scenario])
    config.cap = 1_200_000
    _, _, found, _ = model.explore(config, stop_first=False)
    assert not found
