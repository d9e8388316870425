"""Small plans of every family under compute-sanitizer: which, what the tool prints, and one table of it."""
