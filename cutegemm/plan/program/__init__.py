"""Programs: what the roles of a kernel do, step by step."""
