"""The end of running an API call before there is anything to compare."""

from __future__ import annotations

from typing import Literal

Ending = Literal["error", "skip"]


class NotJudged(Exception):
    """An API call cannot be judged: the verdict on it and why. Raised only where no array is held."""

    def __init__(self, status: Ending, message: str) -> None:
        super().__init__(message)
        self.status: Ending = status
        self.message = message
