"""Run GEMMs: check the arguments, choose and compile a plan, and launch it on a GPU or emulate it on a CPU."""
