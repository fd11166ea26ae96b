"""The documents tell the truth: their Python runs, the commands and files that they name exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)\b")
CODE = re.compile(r"`([^`\n]+)`")
TEST_NAME = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def fenced(document: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(document.read_text()) if found == language]


WITH_PYTHON = [document for document in DOCUMENTS if fenced(document, "python")]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", WITH_PYTHON, ids=lambda path: path.name)
def test_python_blocks_run_in_order(document: Path, tmp_path: Path) -> None:
    # One process per document: a reader types the blocks one after the other.
    script = tmp_path / f"{document.stem}.py"
    script.write_text("\n\n".join(fenced(document, "python")))
    activated = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    activated.pop("PYSPARK_PYTHON", None)
    finished = subprocess.run(
        ["python", str(script)], cwd=tmp_path, env=activated, capture_output=True, text=True, timeout=280
    )
    assert finished.returncode == 0, f"{document.name}:\n{finished.stdout[-3000:]}\n{finished.stderr[-6000:]}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    missing = [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = " ; ".join([*fenced(document, "bash"), *CODE.findall(document.read_text())])
    assert not set(MAKE.findall(code)) - targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_tests_exist(document: Path) -> None:
    missing = []
    for path, name in TEST_NAME.findall(document.read_text()):
        file = ROOT / path
        if not file.exists() or not re.search(rf"\b(def|class) {name}\b", file.read_text()):
            missing.append(f"{path}::{name}")
    assert not missing


def test_architecture_map_names_every_package() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    packages = [p.parent.name for p in ROOT.glob("spark_ring/*/__init__.py")]
    native = [p.name for p in (ROOT / "csrc").iterdir() if p.is_dir()]
    assert not [name for name in packages + native if name not in text]
