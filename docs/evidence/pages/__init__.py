"""Generators of the measured pages."""
