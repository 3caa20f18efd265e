from mrv2lab.testing import assert_nodes
from mrv2lab.upstream.model_runner import execute
from mrv2lab.upstream.probes.lora_model import STEPS, make_lora_runner, start_up
from mrv2lab.upstream.probes.lora_short_circuit import SETUP


def test_decodes_have_lora_kernels():
    runner = make_lora_runner(SETUP, memory=0)
    start_up(runner)
    assert_nodes(execute(runner, STEPS[0]).kernels, contains="_lora_shrink_kernel")
