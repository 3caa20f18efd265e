from mrv2lab.upstream import platform

platform.apply()  # vLLM without a GPU
