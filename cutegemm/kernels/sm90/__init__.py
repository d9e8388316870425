"""Hopper kernels: TMA, wgmma, warp-specialized roles."""
