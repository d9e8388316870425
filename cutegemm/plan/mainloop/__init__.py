"""Mainloops: how consumers (warps that multiply) process the k-tiles of a work tile. One file each.

`base` is the interface. A plan with warp roles has one of them as `plan.body.mainloop`.
"""
