"""Plans that split K on the CPU: partial accumulators in the workspace, and their exchange in a cluster."""
