"""What probes report from their process to ours."""

from typing import Literal

from pydantic import Field

from mrv2lab.results import Latency, Strict, Verdict

Word = Literal["not there", "buggy", "fixed", "replaced", "unreachable"]


class Outcome(Strict):
    """What one variant showed. Fields as in `results.Run`; `where` is a line of vLLM's."""

    verdict: Verdict
    errors: list[float] = Field(default_factory=list)
    step_modes: list[Literal["eager", "graph"]] = Field(default_factory=list)
    eager_share: float | None = None
    kernels: dict[str, int] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    message: str | None = None
    where: str | None = None
    log_tail: list[str] = Field(default_factory=list)
    latency_ms: Latency | None = None
    # In the engine, of each step the likeliest next token of each request. Not recorded.
    tokens: list[list[int]] = Field(default_factory=list)


class Cell(Strict):
    """What one release showed of a bug."""

    row: str  # names the line where a bug has more than one, for example `speculator`
    word: Word  # `unreachable` where the probe could not tell
    observation: str  # what was seen that the word stands for
