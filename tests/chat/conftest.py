"""The two vocabularies, trained once."""

from __future__ import annotations

import pytest
from vocabularies import family_vocabulary, phrase_vocabulary

from armillary.chat.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("vocabularies")
    return {
        "phrases": phrase_vocabulary(folder / "phrases"),
        "family": family_vocabulary(folder / "family"),
    }


@pytest.fixture(scope="session", params=["phrases", "family"])
def tokenizer(vocabularies: dict[str, Tokenizer], request: pytest.FixtureRequest) -> Tokenizer:
    return vocabularies[request.param]


@pytest.fixture(scope="session")
def thinking(vocabularies: dict[str, Tokenizer]) -> Tokenizer:
    """A vocabulary with reasoning marks."""
    return vocabularies["family"]
