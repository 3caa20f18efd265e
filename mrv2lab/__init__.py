"""mrv2lab: five real bugs of vLLM's Model Runner V2, reproduced, repaired and measured.

The family: host code runs once, when a CUDA graph is captured, and what it decided then stays
frozen in the graph. Start with `notebooks/00_start_here.ipynb` or `mrv2lab doctor`.
"""

__version__ = "0.1.0"
