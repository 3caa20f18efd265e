"""Host values that lie where no attribute is: of a thread, of a context, behind `get`, in a cache."""

import contextlib
import dataclasses
import functools
import sys
import threading
import weakref
from collections import ChainMap
from contextvars import ContextVar

import numpy as np
import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.errors import AuditError

programs = sys.modules["audit_programs"]


class Own(threading.local):
    n = 1


def of_a_thread(x):
    own = Own()
    return lambda: x * own.n, lambda: setattr(own, "n", 3), "own.n"


def loops_of_a_thread(x):
    own = threading.local()
    own.n = 1

    def step():
        y = x
        for _ in range(own.n):
            y = y + 1
        return y

    return step, lambda: setattr(own, "n", 3), "own.n"


def of_a_context(x):
    scale = ContextVar("scale", default=2.0)
    return lambda: x * scale.get(), lambda: scale.set(3.0), "scale.get()"


def branch_of_a_context(x):
    wanted = ContextVar("wanted", default=False)

    def step():
        y = x + 1
        if wanted.get():
            y = y * 2
        return y

    return step, lambda: wanted.set(True), "wanted.get()"


def behind_get(x):
    settings = {"scale": 2.0, "other": 1.0}
    return (
        lambda: x * settings.get("scale", 1.0),
        lambda: settings.update(scale=3.0),
        "settings.get('scale', 1.0)",
    )


def new_behind_get(x):
    settings = {}

    def step():
        y = x + 1
        if settings.get("wanted"):
            y = y * 2
        return y

    return step, lambda: settings.update(wanted=True), "settings.get('wanted')"


def by_getattr(x):
    class Config:
        def __getattr__(self, name):
            if name == "scale":
                return self.__dict__["n"] * 2.0
            raise AttributeError(name)

    config = Config()
    config.n = 1
    return lambda: x * config.scale, lambda: setattr(config, "n", 4), "self.__dict__['n']"


def by_getattr_from_layers(x):
    """Of what a call saw, what was passed is named, and not what was read before it."""

    class Config:
        def __getattr__(self, name):
            layers = self.__dict__["layers"]
            if len(layers) > 5:
                return None
            top = layers[-1]
            return top[name]

    config = Config()
    config.layers = [{"scale": 2.0}]

    def vary():
        config.layers.append({"scale": 3.0})

    return lambda: x * config.scale, vary, "top[name]"


def double(x):
    return x * 2


def triple(x):
    return x * 3


def called(x):
    w = programs.Worker(x.device)
    w.act = double
    return lambda: w.act(x), lambda: setattr(w, "act", triple), "w.act"


def layer_that_is_called(x):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.act = torch.nn.ReLU()

        def forward(self, x):
            return self.act(x)

    model = Model()
    return lambda: model(x), lambda: setattr(model, "act", torch.nn.Sigmoid()), "self.act"


def layer_of_a_list(x):
    layers = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.ReLU()])
    return lambda: layers[1](x), lambda: layers.__setitem__(1, torch.nn.Sigmoid()), "layers[1]"


def layer_of_a_dictionary(x):
    layers = torch.nn.ModuleDict({"act": torch.nn.ReLU()})
    return lambda: layers["act"](x), lambda: layers.update({"act": torch.nn.Sigmoid()}), "layers['act']"


def behind_three_local_variables(x):
    w = programs.Worker(x.device)
    w.config = {"scale": 2.0}

    def step():
        scale = w.config["scale"]
        more = scale + 1
        most = more * 2
        return x * most

    return step, lambda: w.config.update(scale=3.0), "w.config['scale']"


def in_a_dictionary_of_scales(x):
    scales = {"a": 1.0, "b": 2.0}
    return lambda: x * sum(scales.values()), lambda: scales.update(b=4.0), "scales"


def loops_over_a_dictionary(x):
    scales = {"a": 1.0, "b": 2.0}

    def step():
        y = x
        for _, scale in scales.items():
            y = y * scale
        return y

    return step, lambda: scales.update(b=4.0), "scales"


def left_by_a_key_error(x):
    settings = {"scale": 2.0}

    def step():
        try:
            settings["scale"]
        except KeyError:
            return x * 7
        return x + 1

    return step, settings.clear, "settings['scale']"


def filled_in_after_a_key_error(x):
    biases = {}

    def step():
        y = x * 2
        try:
            y = y + biases["bias"]
        except KeyError:
            y = y * 1
        return y

    return step, lambda: biases.update(bias=3.0), "biases['bias']"


def raised_inside_of_a_call(x):
    limits = {"n": 1}

    def check():
        if limits["n"] > 2:
            raise ValueError

    def step():
        y = x * 2
        try:
            check()
        except ValueError:
            y = y.clamp(max=1)
        return y

    return step, lambda: limits.update(n=3), "limits['n']"


def left_by_what_is_suppressed(x):
    limits = {"n": 1}

    def step():
        y = x * 2
        with contextlib.suppress(ValueError):
            if limits["n"] > 2:
                raise ValueError
            y = y + 1
        return y

    return step, lambda: limits.update(n=3), "limits['n']"


def from_a_cache(x):
    @functools.lru_cache(None)
    def table(n):
        return torch.arange(n, n + 8.0, device=x.device)

    w = programs.Worker(x.device, n=1)
    tables = table(1), table(5)
    assert len(tables) == 2
    return lambda: x + table(w.n), lambda: setattr(w, "n", 5), "w.n"


@pytest.mark.parametrize(
    "make",
    [
        of_a_thread, loops_of_a_thread, of_a_context, branch_of_a_context, behind_get, new_behind_get,
        by_getattr, by_getattr_from_layers, called, layer_that_is_called, layer_of_a_list,
        behind_three_local_variables, layer_of_a_dictionary, in_a_dictionary_of_scales,
        loops_over_a_dictionary, left_by_a_key_error, filled_in_after_a_key_error,
        raised_inside_of_a_call, left_by_what_is_suppressed, from_a_cache,
    ],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_a_value_is_named_wherever_it_lies(make, device, backend):
    step, vary, subject = make(torch.ones(8, device=device))
    first = audit(step, vary=vary, backend=backend).findings[0]
    assert (first.kind, first.subject) == ("frozen-host-value", subject)


class Pool:
    """What it holds no walk from a step finds: a class method leads there, or a method that is bound."""

    made = None

    def __init__(self, device):
        self.kv, self.scratch = (torch.zeros(8, device=device) for _ in range(2))

    @classmethod
    def get(cls):
        return cls.made


def written_in_a_singleton(w, y):
    if w.lora:
        Pool.get().kv.copy_(y)
    return y


def read_in_a_singleton(w, y):
    if w.lora:
        Pool.get().kv.copy_(y)
    return y + 0 * Pool.get().kv


def written_in_a_cache(w, y):
    if w.lora:
        w.cached().copy_(y)
    return y


def written_by_a_bound_method(w, y):
    if w.lora:
        w.put(y)
    return y


def written_in_a_scratch_of_all_steps(w, y):
    """What a step reads only where it has written it is no result."""
    if w.lora:
        return Pool.get().scratch.copy_(y) + 0
    return y + 0


def written_in_memory_that_is_gone(w, y):
    if w.once is not None:
        w.once(y)
    return y


@pytest.mark.parametrize(
    ("body", "is_wrong"),
    [
        (written_in_a_singleton, True), (read_in_a_singleton, True), (written_in_a_cache, True),
        (written_by_a_bound_method, True), (written_in_a_scratch_of_all_steps, False),
        (written_in_memory_that_is_gone, False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_memory_without_a_name_is_a_result_if_others_hold_it(body, is_wrong, device, backend):
    Pool.made, w = Pool(device), programs.Worker(device)
    w.lora, w.put = True, torch.zeros(8, device=device).copy_
    w.cached = functools.lru_cache(lambda: torch.zeros(8, device=device))
    w.once = torch.zeros(8, device=device).copy_

    def vary():
        w.x.add_(1)
        w.lora, w.once = False, None

    found = audit(lambda: body(w, w.x * 2), vary=vary, backend=backend).findings
    assert [one.subject for one in found] == ["w.lora"] * is_wrong


def test_to_look_at_what_is_of_a_thread_runs_nothing(device, backend):
    made = []

    class Counted(threading.local):
        def __init__(self):
            made.append(self)

    own, x = Counted(), torch.ones(4, device=device)
    own.n = 1
    audit(lambda: x * own.n, vary=lambda: setattr(own, "n", 2), backend=backend)
    assert len(made) == 1


@pytest.mark.parametrize("is_written", [True, False])
def test_memory_of_eight_bit_floats_is_poisoned_too(device, backend, is_written):
    x = torch.ones(4, device=device)

    def step():
        quantized = torch.empty(4, dtype=torch.float8_e4m3fn, device=device)
        (quantized if is_written else quantized[:2]).copy_(x[: 4 if is_written else 2])
        return quantized.float()

    report = audit(step, vary=lambda: x.mul_(2), backend=backend)
    assert [finding.kind for finding in report.findings] == ([] if is_written else ["unwritten-read"])


def test_of_a_number_that_a_module_of_torchs_has_passed_it_is_told_what_holds_it(device, backend):
    """No line of the user's reads it, so the finding is of the op. Where two would fit, none is told."""
    x, held = torch.arange(12.0, device=device).view(4, 3), torch.nn.BatchNorm1d(3, momentum=0.25).to(device)
    norm = torch.nn.Sequential(held)

    def step():
        norm(x)
        return held.running_mean * 1

    def reset():
        held.reset_running_stats()

    def vary():
        held.momentum = 0.5

    [first, *_] = audit(step, vary=vary, reset=reset, backend=backend).findings
    assert first.kind == "frozen-host-value" and first.subject.startswith("momentum of aten."), first
    assert ".momentum was and is: no line shows what reads it" in first.evidence
    held.momentum, held.other = 0.25, 0.25

    def vary_both():
        held.momentum = held.other = 0.5

    [first, *_] = audit(step, vary=vary_both, reset=reset, backend=backend).findings
    assert first.subject.startswith("momentum of aten.") and "was and is" not in first.evidence, first


def test_of_a_number_that_an_optimizer_has_passed_with_another_sign_it_is_told_what_holds_it(device, backend):
    x, weight = torch.ones(4, device=device), torch.ones(4, device=device)
    weight.grad = x
    optimizer = torch.optim.SGD([weight], lr=0.25)

    def step():
        optimizer.step()
        return weight * 1

    def vary():
        optimizer.param_groups[0]["lr"] = 0.5

    [first, *_] = audit(step, vary=vary, backend=backend).findings
    assert first.kind == "frozen-host-value" and first.subject.startswith("alpha of aten."), first
    assert "as -optimizer.param_groups[0]['lr'] was and is" in first.evidence


def test_the_length_of_what_holds_weakly_is_read(device, backend):
    class Seat:
        pass

    seats, x = [Seat() for _ in range(9)], torch.ones(4, device=device)
    taken = weakref.WeakSet(seats)

    def step():
        return x * len(taken)

    [first] = audit(step, vary=seats.pop, backend=backend).findings
    assert (first.kind, first.subject) == ("frozen-host-value", "len(taken)")


# ---- results that lie where no attribute of a plain object is ----


@dataclasses.dataclass(slots=True)
class Base:
    logits: torch.Tensor


@dataclasses.dataclass(slots=True)
class Derived(Base):
    n: int = 0


class Private:
    __slots__ = ("__y",)

    def __init__(self, y):
        self.__y = y


class Single:
    __slots__ = "value"

    def __init__(self, value):
        self.value = value


class Output(dict):
    pass


class Rows(list):
    pass


class Owner:
    pass


def with_attribute(kind, y):
    made = kind()
    made.extra = y
    return made


def of_objects(y):
    made = np.empty(1, dtype=object)
    made[0] = y
    return made


RESULTS = {
    "a slot of a base class": Derived,
    "a private slot": Private,
    "the only slot": Single,
    "an attribute of a dict": lambda y: with_attribute(Output, y),
    "an attribute of a list": lambda y: with_attribute(Rows, y),
    "items of a dict": lambda y: {"y": y}.items(),
    "items of a chain of dicts": lambda y: ChainMap({"y": y}).items(),
    "what an exception says": lambda y: ValueError("x", y),
    "a key": lambda y: {y: "a"},
    "an array of objects": of_objects,
}


@pytest.mark.parametrize("pack", RESULTS.values(), ids=RESULTS)
def test_a_result_is_found_in(pack, device, backend):
    x, own, kept = torch.ones(4, device=device), Own(), torch.zeros(4, device=device)
    own.n = 1

    def step():
        kept.copy_(x)
        return kept, pack(x * own.n)

    def vary():
        x.add_(1)
        own.n += 1

    [first, *_] = audit(step, vary=vary, backend=backend).findings
    assert (first.kind, first.subject) == ("frozen-host-value", "own.n")


def test_a_result_is_found_in_weak_dictionaries_and_on_functions(device, backend):
    x, own, owner = torch.ones(4, device=device), Own(), Owner()
    by_owner, by_name = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary(a=owner)

    def to_key(y):
        by_owner[owner] = y

    def to_value(y):
        by_name["a"].y = y

    def to_function(y):
        to_key.y = y

    def vary():
        x.add_(1)
        own.n += 1

    for leave in (to_key, to_value, to_function):
        own.n = 1

        def step(leave=leave):
            leave(x * own.n)
            return x + 1

        [first, *_] = audit(step, vary=vary, backend=backend).findings
        assert (first.kind, first.subject) == ("frozen-host-value", "own.n"), leave


class Request:
    pass


def of_a_field(y):
    made = np.zeros(1, dtype=[("tag", object)])
    made["tag"][0] = y
    return made


def test_a_result_is_found_by_what_keys_without_a_name_are_and_not_by_where_they_lie(device, backend):
    x, own = torch.ones(4, device=device), Own()
    for pack in (lambda y: {Request(): y}, of_a_field):
        own.n = 1

        def step(pack=pack):
            return pack(x * own.n)

        assert not audit(step, vary=lambda: x.add_(1), backend=backend).findings

        def vary():
            x.add_(1)
            own.n += 1

        [first, *_] = audit(step, vary=vary, backend=backend).findings
        assert (first.kind, first.subject) == ("frozen-host-value", "own.n")


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_list_that_a_result_holds_twice_may_be_two_later(is_frozen, device, backend):
    """A step binds it anew in what it keeps, and a replay binds nothing."""
    x, own, metrics = torch.ones(4, device=device), Own(), {"loss": []}

    def step():
        metrics["loss"] = [x.mean() * own.n]
        return dict(metrics), metrics

    def vary():
        x.add_(1)
        own.n += is_frozen

    own.n = 1
    found = audit(step, vary=vary, backend=backend).findings
    assert [finding.subject for finding in found] == ["own.n"] * is_frozen, found


def test_a_set_of_tensors_is_told_not_to_be_looked_into(device, backend):
    x = torch.ones(4, device=device)
    report = audit(lambda: (x * 2, {x + 1, x.sum()}), vary=lambda: x.add_(1), backend=backend)
    assert not report.findings
    told = "what the step returns could not be looked into: the returned value[1] (a set)"
    assert report.notes == (told,)
    with pytest.raises(AuditError, match=r"the returned value \(a set\) cannot be looked into"):
        audit(lambda: {x + 1}, vary=lambda: x.add_(1), backend=backend)


CONTEXT = Own()


class Pipe:
    """Leaves what it makes where only its methods lead."""

    def __init__(self, x):
        self.x, self.guidance, self.done = x, 1.0, torch.zeros_like(x)

    def step(self):
        CONTEXT.latent = self.x * self.guidance
        self.done.add_(1)


def test_a_result_is_found_in_a_global_that_a_method_names(device, backend):
    pipe = Pipe(torch.ones(4, device=device))

    def vary():
        pipe.x.add_(1)
        pipe.guidance += 1.0

    [first, *_] = audit(lambda: pipe.step(), vary=vary, backend=backend).findings
    assert (first.kind, first.subject) == ("frozen-host-value", "self.guidance")
