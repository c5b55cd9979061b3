"""One small vocabulary for all tests of this room."""

from __future__ import annotations

import pytest
from wire import Wire, call_text

from armillary.chat.template import HermesTemplate
from armillary.chat.train_tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Wire:
    texts = [call_text("ls -la"), "The answer is 42, naïve 😀."] * 20
    folder = tmp_path_factory.mktemp("vocabulary")
    return Wire(train_tokenizer(texts, HermesTemplate.phrases, folder, size=400))
