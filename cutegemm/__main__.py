"""`python -m cutegemm` is the command line."""

from cutegemm.cli import main

main()
