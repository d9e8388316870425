"""Traffic through the L2 cache: which bytes hit, and which come from memory."""
