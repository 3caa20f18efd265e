"""For tests and notebooks alike: nothing that runs here touches the progress of whoever runs it."""

import os
import tempfile

_folder = tempfile.TemporaryDirectory(prefix="mrv2lab-")
os.environ["MRV2LAB_PROGRESS"] = f"{_folder.name}/progress.json"  # kernels inherit it
