"""Run the command line: `python -m cutegemm` does the same as `cutegemm`."""

from cutegemm.cli import main

main()
