"""Tiny files, written once."""

from pathlib import Path

import pytest

from scripts.tiny_tasks import write_texts


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what `scripts/tiny_tasks.py` trains on."""
    return write_texts(tmp_path_factory.mktemp("texts"))
