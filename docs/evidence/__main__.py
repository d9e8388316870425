"""`python -m docs.evidence` is the command line of the measurements."""

from docs.evidence.commands import main

main()
