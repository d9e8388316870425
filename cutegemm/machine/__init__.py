"""Architectures and devices: every number of a chip, once, with its source."""
