"""vLLM itself: releases fetched and cached, its classes under the emulator, fixes taken out."""
