"""Protocol of a kernel with warp roles: the programs of a plan, executed in many orders to find synchronization faults.

`protocol` makes the operations of each role of each CTA from the plan's programs. `machine` executes them one by one,
with the contents of epilogue stages (`epi_stage_state`) and of the workspace for K splits (`split_state`).
`interleavings` chooses the order.
"""
