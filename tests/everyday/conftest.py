"""Give every test of everyday situations one runner for the whole session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from situations import Answered, Runner, Situation


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Run everything of a session in one folder, so that each script is collected once."""
    runner = Runner(tmp_path_factory.mktemp("everyday"))
    yield runner
    runner.close()


@pytest.fixture
def answer(runner: Runner, request: pytest.FixtureRequest) -> Callable[[Situation], Answered]:
    """Ask about a situation, and keep what was said for `python -m quality.everyday`."""

    def ask(situation: Situation) -> Answered:
        answered = runner.answer(situation)
        names = ("outcome", "exit_code", "first_line", "failures")
        request.node.user_properties += [(name, getattr(answered, name)) for name in names]
        return answered

    return ask
