"""Pre-training: configuration, engine, loop, callbacks."""
