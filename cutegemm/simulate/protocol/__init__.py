"""Who waits for whom in a kernel whose warps have roles: programs of barriers, played in many orders.

| programs | of                                                             | what they change  |
|----------|----------------------------------------------------------------|-------------------|
| `queue`  | a producer and its consumers, and the stages of shared memory  | in `machine`      |
| `slots`  | D and C on their way through slots of shared memory            | `slot_state`      |
| `parts`  | consumers that add up the parts of a tile                      | `part_state`      |

`program` has the operations that they are made of; `machine` plays these one by one, and `interleavings` chooses
whose turn it is.
"""
