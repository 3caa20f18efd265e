"""What the host knows of the batch that is being run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Parts = dict[str, Callable[..., Any]]  # by seam


@dataclass
class StepState:
    """Shared by the parts of one engine."""

    is_dummy: bool = True  # the batch is one of warm-up or capture; nobody keeps what it computes
    has_context: bool = False  # a layer has already worked out where this batch's context lies

    def start(self) -> None:
        """A batch of requests begins."""
        self.is_dummy = self.has_context = False
