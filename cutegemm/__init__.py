"""cutegemm: a layout and tile algebra, and GEMMs that it describes."""
