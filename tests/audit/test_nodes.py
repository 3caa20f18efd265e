"""What decides outside of Python: a number in C++, the kernel that a library chooses, compiled code."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import mrv2lab_vllm
from mrv2lab.audit import audit, evidence, nodes

pytestmark = pytest.mark.gpu

SOURCE = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

static float scale = 2;
static int64_t num_blocks = 2;
__global__ void scaled_kernel(const float* x, float* y, int n, float scale) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 1024) y[i] = x[i] * scale;
}
void set_scale(double value) { scale = value; }
void set_blocks(int64_t value) { num_blocks = value; }
at::Tensor scaled(const at::Tensor& x) {
  auto y = at::zeros_like(x);
  auto stream = at::cuda::getCurrentCUDAStream();
  scaled_kernel<<<num_blocks, 32, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), scale);
  return y;
}
TORCH_LIBRARY(mrv2lab_nodes, m) {
  m.def("scaled(Tensor x) -> Tensor", scaled);
  m.def("set_scale(float value) -> ()", set_scale);
  m.def("set_blocks(int value) -> ()", set_blocks);
}
"""


@pytest.fixture(scope="module")
def ops():
    """Ops in C++ that launch a kernel with a number and a grid of their own."""
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    from torch.utils.cpp_extension import load_inline

    load_inline("mrv2lab_nodes", cpp_sources="", cuda_sources=SOURCE, is_python_module=False)
    return torch.ops.mrv2lab_nodes


@pytest.fixture
def x():
    return torch.arange(64.0, device="cuda")


@pytest.mark.parametrize("scale", [3.0, 2.0])
def test_a_number_in_an_op_of_c_is_named_by_parameter_and_line(ops, x, scale):
    ops.set_scale(2)

    def vary():
        ops.set_scale(scale)
        x.add_(1)

    found = audit(lambda: ops.scaled(x) + 1, vary=vary, backend="cuda").findings
    named = [(f.kind, f.subject, f.change, "ops.scaled" in f.where.source) for f in found]
    expected = [("frozen-host-value", "parameter 3 of scaled_kernel", (2.0, 3.0), True)]
    assert named == (expected if scale == 3 else [])


def test_a_grid_in_an_op_of_c_is_named_by_its_line(ops, x):
    ops.set_blocks(1)
    step = lambda: ops.scaled(x)  # noqa: E731
    found = audit(step, vary=lambda: ops.set_blocks(2), backend="cuda").findings
    ops.set_blocks(2)
    assert [(f.kind, f.subject, "ops.scaled" in f.where.source) for f in found] == [
        ("frozen-grid", "scaled_kernel", True)
    ]


def test_a_launch_that_no_op_makes_is_named_by_the_value_behind_it(x):
    source = 'extern "C" __global__ void shift(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }'
    shift, batch = torch.cuda._compile_kernel(source, "shift"), SimpleNamespace(size=3)

    def step():
        y = x * 2
        shift((1, 1, 1), (64, 1, 1), (y, batch.size))
        return y + 0

    def vary():
        batch.size = 5

    (found,) = audit(step, vary=vary, backend="cuda").findings
    assert (found.kind, found.subject, found.change) == ("frozen-host-value", "batch.size", (3, 5))
    assert "parameter 1 of shift" in found.evidence and found.where.source.startswith("shift(")


@pytest.mark.parametrize("allows", [True, False])
def test_the_kernel_that_a_library_chooses_is_named_by_its_line(allows):
    a, b = (torch.randn(256, 256, device="cuda") for _ in range(2))
    options = torch.backends.cuda.matmul
    before, options.allow_tf32 = options.allow_tf32, False

    def vary():
        options.allow_tf32 = allows
        a.add_(0.01)

    def step():
        hidden = a.relu()
        return hidden @ b

    try:
        found = audit(step, vary=vary, backend="cuda").findings
    finally:
        options.allow_tf32 = before
    named = [(f.kind, f.where.source) for f in found]
    lost = [("lost-kernel", "return hidden @ b")]  # behind torch's setting, which ops ask for in C++
    assert named[-1:] == (lost if allows else []) and len(named) <= 1 + allows


@pytest.mark.parametrize("scale", [3.0, 2.0])
def test_a_number_in_a_compiled_function_is_named_by_the_value_behind_it(x, scale):
    batch = SimpleNamespace(scale=2.0)
    compiled = torch.compile(lambda t: (t * batch.scale).relu() + 1)

    def vary():
        batch.scale = scale
        x.add_(1)

    found = audit(lambda: compiled(x) * 2, vary=vary, backend="cuda").findings
    expected = [("frozen-host-value", "batch.scale", (2.0, 3.0))] if scale == 3 else []
    assert [(f.kind, f.subject, f.change) for f in found] == expected


class Served:
    """A step over what Inductor wrote, called as vLLM calls it: by no frame that Dynamo looks at."""

    def __init__(self, x):
        mrv2lab_vllm.see_allocations()
        graph = make_fx(lambda x, w: (torch.softmax(x * 2 + w, -1) @ w).relu() + x.sum())(x, x)
        self.compiled = torch._inductor.standalone_compile(graph, [x, x])
        self.x, self.w, self.rows = x, torch.randn_like(x), len(x)
        self.compiled(x, x)

    def __call__(self):
        y = self.compiled(self.x, self.w)[0]
        return y[: self.rows] * 2


VARIED = {
    "right": (lambda e: e.x.add_(1), None),
    "rebound": (lambda e: setattr(e, "w", e.w + 1), ("moved-address", "self.w", "self.compiled(")),
    "number": (lambda e: setattr(e, "rows", 2), ("frozen-host-value", "self.rows", "y[: self.rows]")),
}


@pytest.mark.parametrize("vary, expected", VARIED.values(), ids=VARIED)
def test_what_inductor_wrote_is_watched_like_any_step(vary, expected):
    step = Served(torch.randn(8, 8, device="cuda"))
    report = audit(step, vary=lambda: vary(step), backend="cuda")
    found = [(f.kind, f.subject, expected and expected[2] in f.where.source) for f in report.findings]
    assert found[:1] == ([(*expected[:2], True)] if expected else []), report


def test_what_lies_between_marks_belongs_to_the_line_that_was_left(x):
    def step():
        y = x * 2
        y = torch.nn.functional.softmax(y, 0) + y
        return y.sum()

    def vary():
        x.add_(1)

    with evidence.kept() as seen:
        audit(step, vary=vary, backend="cuda")
    positions = seen[0].session.positions
    found = [positions.place(made.position).source for made in nodes.own(seen[0])]
    assert found == ["y = x * 2"] + 2 * ["y = torch.nn.functional.softmax(y, 0) + y"] + ["return y.sum()"]
