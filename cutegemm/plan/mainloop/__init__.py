"""Mainloops: how consumers multiply the k-tiles of a work tile, one file each.

`base` is the interface. A plan with warp roles has one of them as `plan.body.mainloop`.
"""
