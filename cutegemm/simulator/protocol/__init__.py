"""The protocol of a kernel whose warps have roles: the programs of a plan, played in many orders.

`protocol` takes the operations of each role of each CTA from the plan's programs; `machine` plays them one by
one, with what epilogue stages hold (`slot_state`) and what the parts of a tile have written (`part_state`);
`interleavings` chooses whose turn it is.
"""
