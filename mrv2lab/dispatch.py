"""vLLM's own table from the shape of a batch to the graph that it is given, as people read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from string import ascii_letters

from mrv2lab.tables import Table
from mrv2lab.upstream.dispatch import Dispatched, Question, Row, ask

__all__ = ["DispatchTable", "Dispatched", "Question", "ask"]

_SHORT = {
    "num_tokens": "tokens",
    "num_reqs": "reqs",
    "uniform_token_count": "uniform",
    "num_active_loras": "loras",
}
"""Names in a key; others stay what they are."""


@dataclass(frozen=True, repr=False)
class DispatchTable(Table):
    """What a release answers. Batches in a row that are given the same graph share a line."""

    answer: Dispatched

    @property
    def _letters(self) -> dict[str, str]:
        """For what would be more of a graph; the note says what they stand for."""
        more = dict.fromkeys(change for row in self.answer.batches for change in row.more)
        return dict(zip(more, ascii_letters, strict=False))

    def rows(self) -> list[list[str]]:
        """A header, then the lines; the key says to how many tokens and requests a batch is padded."""
        lines: dict[tuple[str, ...], list[int]] = {}
        for _, batches in groupby(self.answer.batches, _given):
            run = list(batches)
            first, more = run[0], " ".join(self._letters[change] for change in run[0].more)
            shape = (_range([one.num_reqs for one in run]), _range([one.num_tokens for one in run]))
            line = (first.batch, *shape, *self._graph(first), more)
            lines.setdefault(line, []).append(first.num_active_loras)
        header = ["batch", "reqs", "tokens", "loras", "runs as", "key", "more if"]
        anyhow = self.answer.asked.max_loras > 0 and not self.answer.knows_loras
        body = ([*line[:3], "any" if anyhow else _range(n), *line[3:]] for line, n in lines.items())
        table = [header, *body]
        if self.answer.asked.max_loras:
            return table
        return [[*line[:3], *line[4:]] for line in table]  # a terminal of 80 columns has no room for more

    def _graph(self, row: Row) -> list[str]:
        """How it runs, and the key of its graph; of what only later releases know what differs."""
        if row.mode == "NONE":
            return ["eager", ""]
        apart = {name for name in row.key if len({one.key[name] for one in self.answer.batches}) > 1}
        names = [name for name in row.key if name in _SHORT.keys() | apart - {"cg_mode"} and row.key[name]]
        return [row.mode, ", ".join(f"{_SHORT.get(name, name)} {row.key[name]}" for name in names)]

    def _below(self) -> str:
        answer, asked = self.answer, self.answer.asked
        told = [f"{letter}: {change}" for change, letter in self._letters.items()]
        if told:
            told.insert(0, "more if: what, changed alone, would give the batch more of a graph")
        sizes = ", ".join(map(str, answer.capture_sizes)) or "none"
        instead = "" if answer.mode == asked.cudagraph_mode else f" for {asked.cudagraph_mode}"
        runner = f"Model Runner V2 of vllm {answer.release}, cudagraph_mode {answer.mode}{instead}"
        support = f"attention support {asked.attention_support} (of several backends, the weakest)"
        told.append(f"{runner}, {support}")
        limits = f"max_num_seqs {asked.max_num_seqs}, max_num_batched_tokens {answer.max_num_batched_tokens}"
        told.append(f"{limits}, capture sizes {sizes}")
        told += [f"vllm says: {said}" for said in answer.said]
        if asked.max_loras and not answer.knows_loras:
            told.append("dispatch of this release is not told how many adapters a batch has")
        return "\n".join(told)


def _given(row: Row) -> tuple[object, ...]:
    """What batches have in common that are given the same graph; an eager one is not padded."""
    return row.batch, row.num_active_loras, row.mode, row.more, row.mode == "NONE" or str(row.key)


def _range(numbers: Sequence[int]) -> str:
    """`3`, or `3-8` for all from the first to the last."""
    return f"{numbers[0]}-{numbers[-1]}" if numbers[0] != numbers[-1] else f"{numbers[0]}"
