"""What a hunt has found: what explains it, an account of each, and the record."""

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from mrv2lab import results
from mrv2lab.hunt_grid import FEATURES, MODES, Configuration, has_latent_attention
from mrv2lab.live.hunt_models import MODELS, draw
from mrv2lab.live.hunted import BATCHES, ENGINE, LENGTHS, Outcome, Verdict
from mrv2lab.live.models import spread_weights
from mrv2lab.live.rung import ENVIRONMENT
from mrv2lab.results import RECORDS, Kept
from mrv2lab.upstream.releases import TARGET

_NAME = "hunt-vllm-"  # of a record's file, and then the release


class Hunted(Kept):
    """What a hunt has found on one machine; `reused` outcomes were in its folder before it began, and so many
    configurations were `asked` for."""

    outcomes: list[Outcome] = Field(min_length=1)
    # None in files that were made before these were counted
    reused: int | None = Field(default=None, ge=0)
    asked: int | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [(one.model, one.mode, one.feature) for one in self.outcomes]
        if self.provenance.gpu is None or {one.release for one in self.outcomes} != {self.provenance.vllm}:
            raise ValueError("a hunt without a GPU, or an outcome of another release of vLLM")
        if len(set(names)) < len(names) or (self.reused or 0) > len(names):
            raise ValueError("a configuration twice, or more outcomes reused than there are")
        if self.asked not in (None, len(names)):
            raise ValueError(f"{self.asked} configurations were asked for, and {len(names)} are there")
        for model, mode, feature in names:
            if model not in MODELS or mode not in MODES or feature not in FEATURES:
                raise ValueError(f"no hunt has {model} {mode} {feature}")
        return self


def without_places(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """With paths that begin where packages are installed, not at the root of this machine."""
    spec = find_spec("vllm")
    folder = json.dumps(f"{Path(spec.origin).parents[1]}/")[1:-1] if spec and spec.origin else ""
    return [Outcome.model_validate_json(one.model_dump_json().replace(folder, "")) for one in outcomes]


def recorded() -> list[Path]:
    """What is recorded, a file for each release."""
    return sorted(RECORDS.glob(f"{_NAME}*.json"))


def hunted_releases() -> list[str]:
    """Those with which a hunt was tried: a record is here."""
    return [path.stem.removeprefix(_NAME) for path in recorded()]


def load(path: Path) -> Hunted:
    """Read a record. RecordError: not there, damaged, or something else."""
    return Hunted.read(path, "hunt", "make one with mrv2lab hunt vllm --save")


class Known(NamedTuple):
    """A bug that is known, and which wrong outcomes it may explain. It may hide another cause behind it: of
    what is explained one is audited too."""

    page: str  # or case
    releases: tuple[str, ...]  # where it was seen, or read from end to end
    named: tuple[str, ...]  # what an audit that sees it names, one of them
    fits: Callable[[Outcome], bool]


# In 0.33.0 the one is repaired, and the kernel that the other one needs was not compared.
_FULL = ("0.21.0", "0.23.0", "0.24.0", "0.26.0", "0.28.0")
_KEYED = ("0.24.0", "0.26.0", "0.28.0", "0.33.0")

_KEYS, _QUERY = ("frozen-host-value: max_seqlen_k",), ("frozen-host-value: max_seqlen_q",)
_GRID = ("frozen-grid: _lora_shrink_kernel", "frozen-grid: _lora_expand_kernel")
_WHOLE = ("frozen-host-value: attn_metadata", "lost-kernel: _vllm_fa3_C.fwd")

EXPLAINED: tuple[Known, ...] = (
    Known(
        "docs/findings/window_decode.md", _FULL, _KEYS, lambda o: o.model == "mistral" and _is_at_decode(o)
    ),
    Known("docs/findings/full_mixed.md", _FULL, _QUERY, lambda o: o.begins_at_prompt and _loses_mask(o)),
    Known("docs/findings/lora_frozen_grid.md", _KEYED, _GRID, lambda o: _has_frozen_grid(o)),
    Known("case lora_frozen_grid", ("0.22.1", TARGET), _GRID, lambda o: _has_frozen_grid(o)),
    Known("case breakable_graph", (TARGET,), _WHOLE, lambda o: o.mode == "breakable" and _is_not_broken(o)),
)


def _is_not_broken(of: Outcome) -> bool:
    return not has_latent_attention(of.model)


def _loses_mask(of: Outcome) -> bool:
    """FlashAttention 3 does, of a paged cache, where heads are not of 65 to 128 elements."""
    return of.graphs == "FULL" and not 64 < MODELS[of.model].get("head_dim", 0) <= 128


def _is_at_decode(of: Outcome) -> bool:
    return of.graphs.startswith("FULL") and not of.begins_at_prompt


def _has_frozen_grid(of: Outcome) -> bool:
    """It was seen in full graphs alone; those of decodes serve no prompt."""
    return of.feature == "adapters_keyed" and (of.graphs == "FULL" or _is_at_decode(of))


def explained(outcome: Outcome) -> str:
    """The page or case that explains a wrong outcome; empty: it is open."""
    if outcome.verdict != "wrong":
        return ""
    known = (k for k in EXPLAINED if outcome.release in k.releases and k.fits(outcome))
    return next((k.page for k in known if not _is_denied(outcome, k)), "")


def _is_denied(of: Outcome, known: Known) -> bool:
    """Its own audit, not that of one that looks alike, has found something else alone."""
    return "".join(of.audit[:1]).startswith("audit of ") and not {*known.named} & {*of.audit}


def account(outcome: Outcome, made: results.Provenance) -> str:
    """What to tell of an outcome, in Markdown: settings, what was seen, how it is seen again."""
    one = Configuration(model=outcome.model, mode=outcome.mode, feature=outcome.feature)
    settings = {"engine": _arguments(one), "env": _environment(one)}
    again = " ".join(f"--{kind} {value}" for kind, value in one.model_dump().items())
    return f"""# {one.name}: {outcome.verdict}

{made.machine}, driver {made.driver}, commit {made.commit}

Relative error of logits, graphs against none: {_number(outcome.error)} at most, 90th percentile
{_number(outcome.usual)}. Without graphs, batches halved: {_number(outcome.natural)} and
{_number(outcome.natural_usual)}. A graph was replayed in {outcome.replayed} of {outcome.steps} steps, mode
{outcome.graphs or "unknown"}.

First wrong step: {outcome.first or "none"}. Explained by: {explained(outcome) or "nothing yet, it is open"}

```
{chr(10).join(outcome.audit or [outcome.message])}
```

Again: `mrv2lab hunt vllm --to FOLDER {again}`

Settings: `{json.dumps(settings)}`

Without mrv2lab, tokens and log-probabilities; no request has an adapter here:

```python
{script(one)}```
"""


def _arguments(one: Configuration) -> dict[str, Any]:
    """What `vllm.LLM` is given beside the model."""
    asked, engine = one.job_settings(), FEATURES[one.feature].engine
    compilation = {"mode": asked["compilation"], "cudagraph_mode": asked["graphs"]}
    compilation["cudagraph_capture_sizes"] = list(asked["sizes"])
    return ENGINE | engine | {"compilation_config": compilation}


def _environment(one: Configuration) -> dict[str, str]:
    return ENVIRONMENT | {"VLLM_USE_BREAKABLE_CUDAGRAPH": str(int(one.breaks))}


def script(one: Configuration) -> str:
    """The engine alone, for vLLM's maintainers: it answers with graphs, and with any argument without."""
    return f"""import json, os, sys, tempfile
import torch
os.environ |= {_environment(one)}
from vllm import LLM, SamplingParams
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

{getsource(spread_weights)}
{getsource(draw)}
DummyModelLoader.load_weights = lambda self, model, model_config: draw(model)
folder = tempfile.mkdtemp()
json.dump({MODELS[one.model]}, open(folder + "/config.json", "w"))
arguments = {_arguments(one)}
if len(sys.argv) > 1:
    arguments["compilation_config"]["cudagraph_mode"] = "NONE"
llm = LLM(model=folder, load_format="dummy", **arguments)
prompts = [{{"prompt_token_ids": [(7 * i + 3 * n) % 2000 for i in range(n)]}} for n in {LENGTHS}]
params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False, logprobs=1)
for number in {BATCHES}:
    for request, output in enumerate(llm.generate(prompts[:number], params, use_tqdm=False)):
        given = [(token, round(step[token].logprob, 3)) for token, step in zip(
            output.outputs[0].token_ids, output.outputs[0].logprobs)]
        print(number, request, *given)
"""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def table(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """How many of each verdict, by model and mode, and how many are open; the last row counts all."""
    verdicts = [verdict for verdict in get_args(Verdict) if any(o.verdict == verdict for o in outcomes)]
    rows = [["model", "mode", *verdicts, "open"]]
    parts = dict.fromkeys((outcome.model, outcome.mode) for outcome in outcomes)
    for part in [*parts, ("all", "")]:
        of = [o for o in outcomes if part[0] == "all" or (o.model, o.mode) == part]
        counts = [sum(o.verdict == verdict for o in of) for verdict in verdicts]
        counts.append(sum(o.verdict == "wrong" and not explained(o) for o in of))
        rows.append([*part, *(str(count or "") for count in counts)])
    return rows


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Each that is not right, or was not at first, in a line: open ones last."""
    pages = [(explained(one), one) for one in outcomes if one.verdict != "correct" or one.once]
    told = [f"{one}" + (f"; explained by {page}" if page else "") for page, one in pages]
    return sorted(told, key=lambda line: "; explained by " not in line and ": wrong; " in line)
