"""A pass of which only what comes of it is noted: no value, no event, no pattern in fresh memory.

It takes a fifth of one that is watched. Whatever differs is run again, and watched. What a step does once,
and remembers somewhere, it does not do again then: of that a look tells the branch that led to it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab.audit import kernel_source
from mrv2lab.audit.lines import MONITORS, KnownLines
from mrv2lab.audit.memory import Saved, pattern, storage_of
from mrv2lab.audit.ops import Given, arguments_of, beyond, is_traced, schema_of, sort_argument
from mrv2lab.audit.order import patched
from mrv2lab.audit.recorder import Recorder, Session, launches
from mrv2lab.errors import AuditError
from mrv2lab.graphs.mode import DispatchMode
from mrv2lab.graphs.nested import tensors_in


class Glance(DispatchMode):
    """Knows what memory a pass has made, and saves what it writes of other. Into ops of Python's it does not
    look: what they write and do not declare is not put back."""

    def __init__(self, session: Session, lines: KnownLines, are_checked: bool = False) -> None:
        super().__init__()
        self._session, self._lines = session, lines
        self._are_checked = are_checked  # whether indices are looked at before they are used
        self.saved, self.born = Saved(), dict[int, None]()

    @contextmanager
    def over(self, recorder: Recorder) -> Iterator[None]:
        """Look at what goes on in here, beside a recorder that does not."""
        with recorder.unwatched(), patched(launches(), self._launching), self, self._lines:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tracer = None if MONITORS else sys.gettrace()
        if tracer is not None:  # below here runs torch's Python
            sys.settrace(None)
        try:
            return self._look(func, args, kwargs or {})
        finally:
            if tracer is not None:
                sys.settrace(tracer)

    def _look(self, func: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(func, HigherOrderOperator) or is_traced():
            return func(*args, **kwargs)
        schema = schema_of(func)
        if schema.writes or (self._are_checked and schema.indexes):
            scalars, tensors = arguments_of(schema, args, kwargs)
            if self._are_checked and (told := beyond(schema, scalars, tensors)):
                raise AuditError(told)
            self._save(tensors)
        result = func(*args, **kwargs)
        if schema.sort != "view":
            passed = () if schema.is_pure else {storage_of(tensor) for tensor in tensors_in(args, kwargs)}
            for tensor in [result] if isinstance(result, torch.Tensor) else tensors_in(result):
                if (storage := storage_of(tensor)) not in passed:
                    self.born.pop(storage, None)  # lent anew
                    self.born[storage] = None
                    if schema.sort == "alloc" and tensor.layout is torch.strided:
                        tensor.fill_(pattern(tensor.dtype, 1))  # another one than in a graph
        return result

    def _save(self, given: list[Given]) -> None:
        for one in given:
            if one.written and one.storage not in self.born and self._session.on_device(one.tensor):
                self.saved.save(one.tensor.detach())

    def _launching(self, original: Any) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            _, parameters, use = kernel_source.of_launch(kernel)
            bound, given = dict(zip(parameters, args, strict=False)) | kwargs, list[Given]()
            for label in use.written & bound.keys():
                sort_argument(label, bound[label], True, [], given)
            self._lines.paused = True
            try:
                with (
                    _disable_current_modes(),
                    torch._C.DisableTorchFunction(),
                ):  # what an interpreter does is no op
                    self._save(given)
                    return original(kernel, *args, **kwargs)
            finally:
                self._lines.paused = False

        return run
