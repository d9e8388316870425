"""Parsers of the texts that users type at the command line and in the explorer: layouts, plans, epilogues."""
