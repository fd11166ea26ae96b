"""The page about the wire says what the code does: constants are read from the sources and looked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/wire-format.md").read_text()


def _source(path: str) -> str:
    return (ROOT / path).read_text()


def _enumerators(path: str, name: str) -> dict[str, int]:
    """Names and numbers of a C++ enumeration whose first value is given."""
    body = re.search(rf"enum class {name}[^{{]*{{([^}}]*)}}", _source(path))
    assert body is not None
    names, number = {}, -1
    for entry in body.group(1).split(","):
        if not entry.strip():
            continue
        text, _, value = entry.partition("=")
        number = int(value) if value.strip() else number + 1
        names[text.strip()] = number
    return names


@pytest.mark.parametrize(
    ("path", "enumeration"),
    [
        ("csrc/rendezvous/handshake.h", "Purpose"),
        ("csrc/transport/control_plane.h", "Type"),
        ("csrc/engine/letter.h", "Mark"),
    ],
)
def test_every_number_of_an_enumeration_is_on_the_page(path: str, enumeration: str) -> None:
    missing = [
        f"{number} {name}"
        for name, number in _enumerators(path, enumeration).items()
        if f"{number} {name}" not in PAGE
    ]
    assert not missing


@pytest.mark.parametrize(
    ("path", "pattern", "said"),
    [
        ("csrc/rendezvous/handshake.cc", r"kProofBytes = 32;", "proof    32 bytes"),
        ("csrc/rendezvous/handshake.cc", r"kVerdictBytes = 40;", "verdict  40 bytes"),
        ("csrc/rendezvous/handshake.cc", r"\{'S', 'P', 'K', 'R', 'I', 'N', 'G', '1'\}", "SPKRING1"),
        ("csrc/transport/control_plane.cc", r"kMaxPayload = size_t\{64\} << 20", "at most\n64 MiB"),
        ("csrc/engine/letter.h", r"kHeader = 32;", "| id    | extents"),
        ("csrc/engine/letter.h", r"kMaxDimensions = 64;", "At most 64 dimensions"),
        ("csrc/collective/shm_layout.h", r"kLine = 128;", "128 bytes apart"),
        ("csrc/collective/shm_layout.h", r"kDepth = 2;", "per rank two blocks"),
        ("spark_ring/rendezvous.py", r"MAX_REQUEST = 64 \* 1024", "at most 64 KiB"),
        ("spark_ring/peers.py", r"MAX_TEXT = 4096", "at most 4096 bytes"),
    ],
)
def test_what_the_page_says_is_in_the_code(path: str, pattern: str, said: str) -> None:
    assert re.search(pattern, _source(path))
    assert said in PAGE
