"""What vLLM and Triton must find in the environment before either is imported."""

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # with no device to see, vLLM keeps Triton although there is no driver
    "TRITON_INTERPRET": "1",  # read where a kernel is defined, Triton's own included
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",  # none of the reader's machine
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "HF_HUB_OFFLINE": "1",
}
