"""Grouped GEMMs, such as the experts of a mixture: `functional.grouped_mm`, its kernels and its reference by torch."""
