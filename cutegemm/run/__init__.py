"""Plans to machine code, and machine code to results: compile, cache, launch."""
