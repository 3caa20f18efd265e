"""The step only keeps books; there is nothing to capture."""

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["device work", "no ", "empty", "nothing", "step"]


def make():
    books = {"n": 0}

    def step():
        books["last"] = "tick"
        return None

    return {"step": step, "vary": lambda: books.update(n=1), "reset": None}
