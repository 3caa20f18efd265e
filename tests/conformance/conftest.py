"""The mini runner beside the vLLM release that MRV2LAB_VLLM names, in a process made for it.

Without that variable `tests/conftest.py` leaves this folder alone. With it, whatever is missing is an error:

    MRV2LAB_VLLM=0.23.0 TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES= PYTHONPATH=.:<release> \\
        pytest tests/conformance --hypothesis-show-statistics

The random examples are the same in every run: 100 of each property, and with `--hypothesis-profile thorough`
2000. What is allowed to differ stands in `test_differences.py`.
"""

import os
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from packaging.version import Version

if not os.environ.get("MRV2LAB_VLLM"):
    raise pytest.UsageError("say in MRV2LAB_VLLM which release of vLLM is on the path, for example 0.23.0")
RELEASE = Version(os.environ["MRV2LAB_VLLM"])

# Triton reads these when it is imported, which may have happened already.
for name, wanted in (("TRITON_INTERPRET", "1"), ("CUDA_VISIBLE_DEVICES", "")):
    if os.environ.get(name) != wanted:
        raise pytest.UsageError(f"{name} must be {wanted!r} before Python starts")

os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"  # read where an op is decorated
os.environ["TQDM_DISABLE"] = "1"  # a progress bar for every example would be all there is to see

import_module("mrv2lab.upstream.platform").apply()
if Version(version("vllm")) != RELEASE:
    raise pytest.UsageError(f"MRV2LAB_VLLM={RELEASE}, but vLLM {version('vllm')} is on the path")

for name, max_examples in (("conformance", 100), ("thorough", 2000)):
    settings.register_profile(
        name,
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("conformance")


@pytest.fixture(scope="session")
def release():
    """The version of vLLM that runs here."""
    return RELEASE


@pytest.fixture(scope="session")
def vllm_config():
    """One `VllmConfig` for all examples; each writes what its classes read."""
    upstream = import_module("mrv2lab.upstream.model_runner")
    return upstream.make_vllm_config(upstream.Setup("FULL", (1,), max_num_reqs=1))


@pytest.fixture(scope="session")
def upstream_manager(vllm_config):
    """`upstream_manager(setup)`: the release's `CudaGraphManager`, or another class of its module.

    With a `lora_config` it is keyed by adapters, in releases that do that.
    """
    upstream = import_module("mrv2lab.upstream.model_runner")
    utils = import_module("vllm.v1.worker.gpu.cudagraph_utils")

    def make(setup, cls="CudaGraphManager", lora_config=None):
        runner = SimpleNamespace(vllm_config=vllm_config, lora_config=lora_config)
        vllm_config.scheduler_config.max_num_seqs = setup.max_num_reqs
        vllm_config.compilation_config.cudagraph_capture_sizes = list(setup.capture_sizes)
        vllm_config.compilation_config.max_cudagraph_capture_size = max(setup.capture_sizes)
        return upstream.make_manager(getattr(utils, cls), runner, setup)

    return make


@pytest.fixture(scope="session")
def mini_config():
    """`mini_config(setup)`: the mini runner's config for what a `Setup` chooses."""
    runner = import_module("mrv2lab.runner")

    def make(setup):
        return runner.RunnerConfig(
            cudagraph_mode=runner.CUDAGraphMode[setup.mode],
            cudagraph_capture_sizes=setup.capture_sizes,
            max_num_reqs=setup.max_num_reqs,
            max_num_tokens=max(setup.capture_sizes),
            num_speculative_tokens=setup.decode_query_len - 1,
        )

    return make


@pytest.fixture(scope="session")
def described():
    """`described(desc)`: a descriptor of either side as plain values that can be compared."""
    return lambda desc: (desc.cg_mode.name, desc.num_tokens, desc.num_reqs, desc.uniform_token_count)
