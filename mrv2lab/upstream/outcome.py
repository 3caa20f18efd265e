"""What probes report from their process to ours."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from mrv2lab.results import Latency, Verdict

Word = Literal["not there", "buggy", "fixed", "replaced", "unreachable"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Outcome(_Strict):
    """What one variant showed. Fields as in `results.Run`; `where` is a line of vLLM's."""

    verdict: Verdict
    errors: list[float] = []
    step_modes: list[Literal["eager", "graph"]] = []
    kernels: dict[str, int] = {}
    metrics: dict[str, float] = {}
    message: str | None = None
    where: str | None = None
    latency_ms: Latency | None = None


class Cell(_Strict):
    """What one release showed of a bug.

    Attributes:
        row: names the line where a bug has more than one, for example `speculator`.
        word: `unreachable` where the probe could not tell.
        observation: what was seen that the word stands for.
    """

    row: str
    word: Word
    observation: str
