"""Plans to machine code: compiled by many processes, cached, exported and loaded; and memory for what it calls."""
