"""Machine code to results: what is asked, which plan answers it, and calls on a GPU or on a CPU."""
