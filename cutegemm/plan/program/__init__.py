"""Programs: what the roles of a kernel do, in the order in which things happen."""
