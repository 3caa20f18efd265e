"""The real engine, always in another process: a checkpoint made on the spot, a fix taken out, a verdict."""
