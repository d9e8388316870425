"""Groups of a grouped GEMM as a user types them: `--groups 8 --along m --ends 100,300,512`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from cutegemm.errors import PlanError
from cutegemm.plan import Operands
from cutegemm.plan.memory.groups import with_group_ends


@dataclass(frozen=True)
class Groups:
    """The groups of a grouped GEMM.

    count   number of groups, 1 or more
    along   the mode that they divide: "m", "n" or "k"
    """

    count: int
    along: str

    def of(self, operands: Operands) -> Operands:
        """Return the operands of the grouped GEMM. If groups divide N, D is stored column by column, as it has to be.

        operands   operands of a GEMM without groups

        >>> grouped = Groups(8, "n").of(Operands.of("bf16", layout="nt"))
        >>> grouped.groups, grouped.d.major, grouped.of_mainloop
        ('n', 'm', ('ends',))
        """
        major = "m" if self.along == "n" else operands.d.major
        c, d = replace(operands.c, major=major), replace(operands.d, major=major)
        return with_group_ends(replace(operands, c=c, d=d, batched=True, groups=self.along))

    def ends(self, operation: str, extent: int, text: str | None, seed: int) -> tuple[int, ...]:
        """Return the end of each group, as given or with random sizes.

        operation   name of the command, for messages
        extent      extent of the mode that groups divide
        text        the ends, such as "100,300,512"; None: random ones, and the extent as the last one
        seed        seed of the random ends
        raises      PlanError for another number of ends, or for ends that decrease or exceed the extent

        >>> Groups(3, "m").ends("gemm", 512, "100,300,512", 0)
        (100, 300, 512)
        """
        if text is None:
            cuts = np.random.default_rng([seed, 2]).integers(0, extent + 1, self.count - 1)
            return (*np.sort(cuts).tolist(), extent)
        wanted = f"{self.count} ends from 0 to {self.along.upper()} = {extent} that do not decrease"
        digits = [part.strip() for part in text.split(",")]
        ends = tuple([int(part) for part in digits if part.isdigit()])
        if len(ends) != len(digits) or len(ends) != self.count or list(ends) != sorted(ends) or ends[-1] > extent:
            raise PlanError(operation, [f"--ends {text} is not a list of {wanted}, such as 100,300,512."])
        return ends


def ends_of(
    operation: str, groups: Groups | None, extent: int | None, ends: str | None, sizes: str | None
) -> tuple[int, ...] | None:
    """Return the end of each group that the option --ends or --sizes states; None without both.

    operation   name of the command, for messages
    groups      the groups; None without --groups
    extent      extent of the mode that groups divide; None without a problem
    raises      PlanError if both options are given, if groups or a problem are missing, for a size that is not a
                number, and for the reasons of `Groups.ends`

    >>> ends_of("check", Groups(3, "m"), 128, None, "100, 0,28"), ends_of("check", None, 128, None, None)
    ((100, 100, 128), None)
    """
    given = [f"--{name} {text}" for name, text in (("ends", ends), ("sizes", sizes)) if text is not None]
    if not given:
        return None
    wrong = [f"{' and '.join(given)} exclude each other."] if len(given) > 1 else []
    if groups is None or extent is None:
        wrong.append(f"{given[0]} needs --groups and --problem.")
    if sizes is not None and not all(part.strip().isdecimal() for part in sizes.split(",")):
        wrong.append(f"--sizes {sizes} is not a list of the size of each group, such as 100,0,28.")
    if wrong or groups is None or extent is None:
        raise PlanError(operation, wrong)
    text = ends if sizes is None else ",".join(map(str, accumulate(map(int, sizes.split(",")))))
    return groups.ends(operation, extent, text, 0)


def groups_of(operation: str, count: int | None, along: str) -> Groups | None:
    """Return the groups that the options --groups and --along state; None without --groups.

    operation   name of the command, for messages
    raises      PlanError for a number below 1 or an unknown mode
    """
    if count is None:
        return None
    wrong = [f"--groups {count} is less than 1."] if count < 1 else []
    wrong += [f"--along {along} is not m, n or k."] if along not in ("m", "n", "k") else []
    if wrong:
        raise PlanError(operation, wrong)
    return Groups(count, along)
