"""What vLLM's worker processes import, tried on vLLM's own classes without a GPU."""

import sys

import pytest

from mrv2lab.live.pp import EDITS
from mrv2lab.upstream.process import environment

SCRIPT = """
import gc, inspect
from mrv2lab.upstream import platform

platform.apply()
import mrv2lab.live.extension
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

gc.collect()  # a fix stays out only as long as somebody holds the context
source = inspect.getsource(GPUModelRunner.execute_model)
print("copied" if "copy_(intermediate_tensors" in source else "not copied")
"""


@pytest.mark.source
@pytest.mark.parametrize("variant, told", [("moving_buffers", "not copied"), ("full_graphs", "copied")])
def test_a_worker_takes_the_fix_out_for_as_long_as_it_lives(warm_releases, variant, told):
    env = environment("0.23.0") | {EDITS: f"pp_eager_fallback {variant}"}
    done = warm_releases.run([sys.executable, "-P", "-c", SCRIPT], env)
    assert done.stdout.strip().splitlines()[-1:] == [told], done.stderr[-2000:]
