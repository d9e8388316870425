"""Small plans of every family under compute-sanitizer: the cases, the tool's output, and one table."""
