"""The guard of refactorings: compare machine code, programs, interleavings and choices with a record.

`python -m tests.guard check` compiles every named plan and every form of the tests, which takes about 7 minutes on two
cores.
"""
