"""Benchmarks: commands that print a table and return its numbers."""
