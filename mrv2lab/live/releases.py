"""The engine of other releases: which variants are other edits there, and which have no place any more."""

from functools import partial
from importlib.metadata import PackageNotFoundError, version

from mrv2lab.live import lora, lora_grid, mla, stale_view
from mrv2lab.live.run import Variant
from mrv2lab.live.variants import VARIANTS
from mrv2lab.upstream.probes.lora_device_assert import CRASH
from mrv2lab.upstream.probes.lora_frozen_grid import EVERY_KEY_WITH_NOBODY, LAST_KEY_WITH_NOBODY
from mrv2lab.upstream.releases import TARGET
from mrv2lab.upstream.unfix import Edit

WITHOUT_ADAPTERS = Edit(
    "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.maybe_select_dummy_loras",
    find="self._set_active_loras(_, _, _, _)",
)
"""Dummy runs program no mapping, as before #43139. Since #35536 it is this method that programs them."""

CAPTURED_WITHOUT_ADAPTERS = Edit(
    "vllm.v1.worker.gpu.lora_utils:create_lora_capture_hook",
    find="with runner.maybe_select_dummy_loras(_, _, num_active_loras=num_active_loras): ...",
    put="""
with runner.maybe_select_dummy_loras(lora_config, num_scheduled, num_active_loras=0):
    pass
""",
)
"""Every graph is captured with a mapping without adapters, as #43139 left it; the keys of graphs stay."""

ONE_FORWARD = Edit(
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.capture",
    find="forward_fn = create_forward_fn(desc, warmup=False)",
    put='self.__dict__.setdefault("kept", []).append(forward_fn)',
)
"""Capture with the state that warm-up has used, as before #42444. Since #48261 nobody else keeps it alive."""

PAIR_REMOVED = "the place is gone since 0.26.0: AttentionStatePair was removed (#48261)"

NO_KEYS = "not there yet: graphs are keyed by adapters since 0.24.0 (#35536)"
"""Those of Model Runner V2. V1 has such keys in 0.21.0 already (`v1/cudagraph_dispatcher.py`)."""

CHANGED: dict[str, dict[str, dict[str, Variant | str]]] = {
    TARGET: {"lora_frozen_grid": dict.fromkeys(("keyed_short", "keyed_last", "keyed_full"), NO_KEYS)},
    "0.26.0": {
        "lora_device_assert": {
            "dummy_adapters": Variant(lora.observe_start_up),  # as released
            "unwritten": Variant(lora.observe_start_up, (WITHOUT_ADAPTERS,), crash=CRASH),
            "zero_mapping": "the place is gone since 0.24.0: dummy runs have adapters instead (#35536)",
        },
        "lora_short_circuit": {
            "zero_mapping": Variant(lora.observe_matches, (CAPTURED_WITHOUT_ADAPTERS,)),
            "forced_launch": "the place is gone since 0.24.0: graphs are captured with dummy adapters, "
            "and no flag is set by hand (#35536)",
        },
        "breakable_graph": {
            "whole_graph": "the place is gone since 0.24.0: plain attention is decorated, graphs break there",
        },
        "flashmla_lazy_init": {
            "shared_state": Variant(partial(mla.observe_speculation, shared=True), (ONE_FORWARD,)),
            "captured_reused": PAIR_REMOVED,
            "state_pair": PAIR_REMOVED,
            "fresh_always": Variant(mla.observe_random_plan),  # as released
        },
        "stale_view": {
            **dict.fromkeys(("one_state", "kept_pairs", "zeroed_buffers"), PAIR_REMOVED),
            "own_copies": Variant(stale_view.observe_copies_of_fresh),
            "fresh_inputs": Variant(stale_view.observe),  # as released
        },
        "lora_frozen_grid": {
            "one_slot": "the place is gone since 0.24.0: graphs are keyed by adapters (#35536)",
            "keyed_short": Variant(lora_grid.observe),  # as released
            "keyed_last": Variant(lora_grid.observe, (LAST_KEY_WITH_NOBODY,)),
            "keyed_full": Variant(lora_grid.observe, (LAST_KEY_WITH_NOBODY, EVERY_KEY_WITH_NOBODY)),
        },
    },
}
"""By release, case and variant: how it is run there, or why it cannot be. All others are as in `VARIANTS`."""

ENGINES = tuple(CHANGED)
"""Releases whose engine can be run."""


def variants(case: str, release: str) -> dict[str, Variant]:
    """The variants that the engine of a release can run."""
    every = VARIANTS.get(case, {}) | CHANGED.get(release, {}).get(case, {})
    return {name: variant for name, variant in every.items() if isinstance(variant, Variant)}


def gone(case: str, release: str) -> dict[str, str]:
    """The variants that it cannot run, and why."""
    changed = CHANGED.get(release, {}).get(case, {})
    return {name: why for name, why in changed.items() if isinstance(why, str)}


def installed() -> str:
    """The release that is installed here, or `not installed`."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return "not installed"
