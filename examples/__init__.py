"""Examples that run, and that the tests run too."""
