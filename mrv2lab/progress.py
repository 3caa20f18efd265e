"""How far long work is: told by who does it, shown by who asked for it.

Work that may take longer than a second says `shown` around itself and `tell` inside. In a notebook that is
watched that is a bar below the cell, gone when the work is done. It leaves an output without content, so what
is compared is the same with and without it. A notebook that is run to be stored has no bars.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from html import escape
from typing import Any
from uuid import uuid4

Listener = Callable[[str, float], None]  # hears what is being done, and which share of it is done: 0 to 1

_EVERY_S = 0.1

_listeners: list[Listener] = []


def tell(doing: str, share: float) -> None:
    """Say how far the work is, to the listener that came last; where there is none, to nobody."""
    if _listeners:
        _listeners[-1](doing, share)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Have a listener hear of what is done in the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def shown(work: str) -> Iterator[None]:
    """Show a bar in the notebook while the block runs, unless nobody watches or somebody listens already."""
    shell = watched()
    if shell is None or _listeners:
        yield
        return
    with closing(_Bar(work, shell)) as bar, heard_by(bar.tell):
        yield


def watched() -> Any:
    """The shell of the notebook that this process is the kernel of, if somebody sits before it; or None.

    Who runs a cell says whether they can be asked for input: JupyterLab can, nbconvert and nbval cannot.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    if not hasattr(shell, "kernel"):
        return None
    return shell if shell.get_parent()["content"].get("allow_stdin") else None


class _Bar:
    """HTML, no widget: of one that is gone soon after it was shown, ipywidgets complains on the console."""

    _places: tuple[int, str] = (-1, "")  # of the last cell that had a bar, and the id of its display

    def __init__(self, work: str, shell: Any):
        self._work, self._doing, self._told = work, "", 0.0
        self._show(work, 0.0, shell)

    def _show(self, text: str, share: float, shell: Any = None) -> None:
        bar = f'{escape(text)} <progress value="{share:.2f}"></progress>'
        self._publish({"text/html": f'<label class="mrv2lab-bar">{bar}</label>', "text/plain": text}, shell)

    def _publish(self, data: dict[str, str], shell: Any = None) -> None:
        """Into the place of the cell's first bar, if it had one."""
        from IPython.display import display

        is_first = shell is not None and shell.execution_count != _Bar._places[0]
        if is_first:
            _Bar._places = (shell.execution_count, uuid4().hex)
        display(data, raw=True, display_id=_Bar._places[1], update=not is_first)

    def tell(self, doing: str, share: float) -> None:
        now = time.monotonic()
        if doing != self._doing or now - self._told > _EVERY_S:  # what is new is shown at once
            self._doing, self._told = doing, now
            self._show(f"{self._work}: {doing}", share)

    def close(self) -> None:
        self._publish({})
