"""A fresh, sound checkpoint for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Checkpoint, make_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Four versions, all of them committed by Spark."""
    return make_checkpoint(tmp_path / "checkpoint")
