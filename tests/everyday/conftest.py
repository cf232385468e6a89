"""Give every test of everyday situations one runner for the whole session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from situations import Answered, Runner, Situation


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Run everything of a session in one folder, so that each script is collected once."""
    runner = Runner(tmp_path_factory.mktemp("everyday"))
    yield runner
    runner.close()


@pytest.fixture
def number(request: pytest.FixtureRequest) -> Any:
    """The row of a test that has no other form, which stands in its name."""
    return request.param


@pytest.fixture
def answer(runner: Runner, request: pytest.FixtureRequest) -> Callable[[Situation], Answered]:
    """Ask about a situation, and keep what was said for `python -m quality.everyday`."""

    def ask(situation: Situation) -> Answered:
        answered = runner.answer(situation)
        said = {"asked": situation.asked, "exit_code": answered.exit_code, "first_line": answered.first_line}
        request.node.user_properties += said.items()
        return answered

    return ask
