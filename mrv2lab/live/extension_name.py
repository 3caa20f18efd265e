"""Names that the engine's process and its workers share; importing `extension` itself would import vLLM."""

EXTENSION = "mrv2lab.live.extension.Extension"
EDITS = "MRV2LAB_LIVE_EDITS"
"""Environment variable: `CASE VARIANT` of the probe whose edits the workers make."""
