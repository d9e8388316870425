"""The epilogue of kernels whose threads all follow one schedule: computes D from the accumulators and stores it.

The expression is an `Epilogue`, which `values` traces. Only elements inside of D are read and written. D may pass
through shared memory, in the place of A and B. Then the threads meet at a barrier before they write their elements, and
at another one before they copy whole lines to global memory.
"""

from __future__ import annotations

import itertools
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from cutegemm.kernels import lower
from cutegemm.kernels.glu import Both, as_accumulators, up_of
from cutegemm.kernels.reduce import Folds
from cutegemm.kernels.values import Values, as_result
from cutegemm.kernels.vectors import by_vectors, condition, copy_vector, zeros
from cutegemm.machine.arch import Arch
from cutegemm.plan.epilogue import Epilogue
from cutegemm.plan.epilogue_access import MANY_ACCUMULATORS, VECTORS_OF_TILES
from cutegemm.plan.launches import launches_of
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand
from cutegemm.plan.rules.registers import register_budget


class Reader:
    """Reads the operands of an epilogue from global memory, for the vectors of D that one thread computes.

    Elements that several vectors have in common, such as those of a row, are read once. All methods run while the
    kernel is traced.

    end        evaluates the epilogue and stores D in this kernel
    epilogue   the expressions whose operands are read
    parts      the thread's elements of each operand, by name: (elements of a vector, vectors)
    coords     coordinates (m, n) in D of the elements, with the same shape
    extents    (M, N) of D
    """

    def __init__(self, end: ScheduledEpilogue, epilogue: Epilogue, parts: dict[str, Any], coords, extents) -> None:
        self.end, self.plan, self.parts, self.coords, self.extents = end, end.plan, parts, coords, extents
        # If there are several tile operands, each has its own condition
        tiles = epilogue.tiles
        self.wanted = {name: True if len(tiles) == 1 else end.values.reads(epilogue, name) for name in tiles}
        self.known: dict[tuple[Any, int], cute.Tensor] = {}

    def read(self, i: int, is_inside) -> dict[str, Any]:
        """Read all operands of the i-th vector of D: name -> values, indexable by the elements of the vector.

        is_inside   predicate: whether the vector is inside of D
        """
        out = {key: self.of(key, i, is_inside) for key in self.parts}
        ups = {key[0]: out.pop(key) for key in list(out) if isinstance(key, tuple)}
        return {name: Both(out[name], ups[name]) if name in ups else out[name] for name in out}

    def of(self, key, i: int, is_inside):
        """Read one operand's elements of the i-th vector of D.

        key         name of the operand; or (name, "up") for the up projections of a gated row
        is_inside   predicate: whether the vector is inside of D
        """
        name = key if isinstance(key, str) else key[0]
        part, operand = self.parts[key][None, i], self.plan.operands.matrix(name)
        if not operand.broadcast:
            wanted = self.wanted[name]
            return self.loaded(name, part, is_inside if wanted is True else condition(is_inside[0] & wanted))
        place = (key, cute.crd2idx((0, i), self.parts[key].layout))
        if place not in self.known:
            there = condition(self.is_there(operand, self.coords[0, i]))
            self.known[place] = self.spread(name, part, there)
        return self.known[place]

    def is_there(self, operand: Operand, at):
        """Return a run-time predicate: whether a broadcast operand, such as a bias, has an element for an element of D.

        It has none if the element of D is outside of the matrix along the operand's mode.

        operand   the operand's expression: a row, a column or a single element
        at        coordinates (m, n) of the element of D
        """
        modes = [mode for mode, name in enumerate("mn") if name not in operand.broadcast]
        return at[modes[0]] < self.extents[modes[0]] if modes else Boolean(True)

    def loaded(self, name: str, part, where) -> cute.Tensor:
        """Load one vector of an operand whose elements are adjacent in memory like those of D.

        name    name of the operand
        part    the vector in global memory
        where   predicate: if it does not hold, nothing is read and the elements are 0
        """
        to = zeros(self.plan.store.atom.values, part.element_type)
        copy_vector(self.plan.access(name), part, to, where)
        return to

    def spread(self, name: str, part, where):
        """Load one vector of a broadcast operand: its elements, or one element that is repeated.

        name    name of the operand
        part    the vector in global memory
        where   predicate: if it does not hold, nothing is read and the elements are 0
        """
        if cute.cosize(part.layout) > 1:
            return self.loaded(name, part, where)
        one = cute.make_tensor(part.iterator, cute.make_layout((1,)))
        to = zeros(1, part.element_type)
        copy_vector(self.plan.access(name), one, to, where)
        return [to[0]] * self.plan.store.atom.values


class ScheduledEpilogue:
    """Emits the end of a kernel without warp roles: all threads evaluate the epilogue and store their elements of D.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    values            the operands of the epilogue in the kernel that is traced
    launches          the kernels of a call, by name
    register_budget   number of registers that a thread may use
    """

    values: Values

    def __init__(self, plan: GemmPlan, arch: Arch) -> None:
        self.plan, self.launches = plan, launches_of(plan, arch)
        self.register_budget = register_budget(plan, arch)

    @cute.jit
    def store_d(
        self,
        thr_mma: cutlass.Constexpr,
        mD: cutlass.Constexpr,
        sD: cutlass.Constexpr,
        acc: cutlass.Constexpr,
        epilogue: cutlass.Constexpr,
        tile_mnl: cutlass.Constexpr,
        tid: Int32,
        which: cutlass.Constexpr = None,
    ):
        """Store D = epilogue(acc) for the elements of a CTA's tile that are inside of D.

        If it is known only at run time whether M x N operands such as C matter (beta may be 0), a second path does not
        read them.

        thr_mma    the thread's slice of the tiled MMA
        mD         D (M, N, L)
        sD         D's tile in shared memory; None: D is stored from registers
        acc        accumulators of the thread
        epilogue   the expression that computes D
        tile_mnl   (m_tile, n_tile, batch) of the CTA's tile
        tid        index of the thread
        which      index of the only vector that `acc` holds; None: it holds all
        """
        if cutlass.const_expr(sD is not None):
            cute.arch.sync_threads()
        reads = self.values.reads(epilogue)
        if cutlass.const_expr(isinstance(reads, bool)):
            self.write(thr_mma, mD, sD, acc, epilogue, tile_mnl, tid, which)
        else:
            if reads:  # known only at run time
                self.write(thr_mma, mD, sD, acc, epilogue, tile_mnl, tid, which)
            else:
                self.write(thr_mma, mD, sD, acc, epilogue.without_tiles, tile_mnl, tid, which)
        if cutlass.const_expr(sD is not None):
            cute.arch.sync_threads()
            self.drain(mD, sD, tile_mnl, tid)

    def tiles_of(self, tensors, tile_mnl) -> list[cute.Tensor]:
        """Return the CTA's tile of each matrix, followed by the tile of the coordinates (m, n).

        tensors    matrices (M, N, L)
        tile_mnl   (m_tile, n_tile, batch) of the tile
        """
        m_tile, n_tile, batch = tile_mnl
        shape = (tensors[0].shape[0], tensors[0].shape[1])
        whole = [*(t[None, None, batch] for t in tensors), cute.make_identity_tensor(shape)]
        return [cute.local_tile(t, self.plan.d_tile, (m_tile, n_tile)) for t in whole]

    def write(self, thr_mma, mD, sD, acc, epilogue: Epilogue, tile_mnl, tid, which) -> None:
        """Evaluate the epilogue for a thread's vectors, and write them to shared or to global memory.

        thr_mma    the thread's slice of the tiled MMA
        mD, sD     D (M, N, L), and its tile in shared memory; if sD is None, results are written to mD
        acc        accumulators of the thread
        tile_mnl   (m_tile, n_tile, batch) of the CTA's tile
        tid        index of the thread
        which      index of the only vector that `acc` holds; None: it holds all
        """
        values, names, results = self.values, epilogue.tensors, epilogue.outputs[1:]
        halved = epilogue.halved
        gD, *others, coords = self.tiles_of(
            (
                mD,
                *[values.tensors[name] for name in names],
                *[up_of(values.tensors[name], self.plan.operands.matrix(name)) for name in halved],
                *[values.results[name] for name in results],
            ),
            tile_mnl,
        )
        tiles = (gD, *others, coords, gD if sD is None else sD)
        parts = [thr_mma.partition_C(as_accumulators(tile, self.plan)) for tile in tiles]
        vD, *vX, vcD, vsD = [self.by_vectors(part) for part in parts]
        held_by = {which: acc}
        if which is None:
            vAcc = self.by_vectors(acc)
            held_by = {i: vAcc[None, i] for i in range(cute.size(vAcc, mode=[1]))}
        ups_by = {}
        if self.plan.operands.gated:
            ups_by = {gate: held_by[up] for gate, up in self.plan.paired_vectors}
            held_by = {gate: held_by[gate] for gate in ups_by}
        many = self.plan.registers()["accumulators"] > MANY_ACCUMULATORS
        at_once = VECTORS_OF_TILES // 2 if many else VECTORS_OF_TILES
        extents = (mD.shape[0], mD.shape[1])
        keys = [*names, *[(name, "up") for name in halved]]
        reader = Reader(self, epilogue, dict(zip(keys, vX, strict=False)), vcD, extents)
        folds = Folds(self.plan, values.results, tile_mnl, tid, extents) if epilogue.reductions else None
        stored = list(held_by)
        for first in range(0, len(stored), at_once):
            group = stored[first : first + at_once]
            inside = [condition(cute.elem_less(vcD[0, i], extents)) for i in group]
            old = [reader.read(i, is_inside) for i, is_inside in zip(group, inside, strict=True)]
            for i, is_inside, operands in zip(group, inside, old, strict=True):
                out = self.computed(epilogue, held_by[i], operands, mD.element_type, ups_by.get(i))
                if folds is not None:
                    # A gated epilogue numbers its gate vectors only
                    number = i if which is not None else stored.index(i)
                    self.reduce(folds, out, number, is_inside[0], vcD[None, i])
                for name, to in zip(results, vX[len(keys) :], strict=True):
                    copy_vector(self.plan.access(name), out[name], to[None, i], is_inside)
                if sD is None:
                    copy_vector(self.plan.store.atom, out["d"], vD[None, i], is_inside)
                else:
                    copy_vector(self.plan.store.atom, out["d"], vsD[None, i])

    def reduce(self, folds: Folds, out: dict[str, cute.Tensor], i, is_inside, coords) -> None:
        """Combine the results of one stored vector with the epilogue's reductions. Elements outside of D do not count.

        folds       the reductions of the CTA's tile
        out         results of the vector, by name
        i           index of the vector among those that the thread stores
        is_inside   predicate: whether the vector is inside of D
        coords      (vector) coordinates in D
        """
        vector = self.plan.store.atom.values
        for name, fold in folds.by_name.items():
            values = [cutlass.select_(is_inside, out[name][v], fold.identity) for v in range(vector)]
            by_vectors = fold.folding.units > 1
            unit, first = (i, 0) if by_vectors else (0, i * vector)
            folds.add(name, values, first, [coords[v] for v in range(vector)], unit)

    def computed(self, epilogue: Epilogue, accumulators, operands, kind, ups=None) -> dict[str, cute.Tensor]:
        """Evaluate an epilogue for one vector: name of a result, or of the input of a reduction -> values.

        accumulators   (vector) accumulators
        operands       (vector) elements of each operand, by name
        kind           element type of D
        ups            up accumulators of the vector, if D is gated; else None
        """
        vector, values = self.plan.store.atom.values, self.values
        kinds = {name: values.results[name].element_type for name in epilogue.beside}
        reduced = [(name, reduction.child) for name, reduction in epilogue.reductions]
        out = {name: cute.make_rmem_tensor((vector,), of) for name, of in {"d": kind, **kinds}.items()}
        for v in range(vector):
            elements, known = {name: held[v] for name, held in operands.items()}, {}
            for name, expression in (*epilogue.results, *reduced):
                held = accumulators[v] if ups is None else (accumulators[v], ups[v])
                total = values.element(expression, held, elements, values.kind, known)
                out[name][v] = as_result(total, out[name].element_type)
        return out

    def by_vectors(self, tensor) -> cute.Tensor:
        """View a thread's elements of a tile of D as (elements of a vector, vectors).

        The vectors are the ones that D is stored in.

        tensor   the elements, with three modes: elements of an MMA atom, MMA atoms along M, MMA atoms along N
        """
        return by_vectors(tensor, self.neighbours(tensor, self.plan.store.atom.values))

    def neighbours(self, acc, vector: int):
        """Return how many accumulators of a thread, in each mode, make up a vector of neighbouring elements of D.

        acc       accumulators, with three modes: elements of an MMA atom, MMA atoms along M, MMA atoms along N
        vector    number of elements of the vector
        returns   number of neighbours in each of these modes; their product is `vector`
        """
        if cute.size(acc, mode=[0]) % vector == 0:
            return (vector, 1, 1)
        return (1, 1, vector) if self.plan.operands.d.major == "n" else (1, vector, 1)

    def drain(self, mD, sD, tile_mnl, tid) -> None:
        """Copy the tile of D from shared memory to global memory, one vector of a thread at a time.

        mD         D (M, N, L)
        sD         the tile in shared memory
        tile_mnl   (m_tile, n_tile, batch) of the tile
        tid        index of the thread
        """
        gD, coords = self.tiles_of((mD,), tile_mnl)
        thr = lower.tiled_copy(self.plan.store.line_copy).get_slice(tid)
        tDsD, tDgD, tDcD = thr.partition_S(sD), thr.partition_D(gD), thr.partition_S(coords)
        atom = self.plan.store.line_copy.atom
        line = cute.make_rmem_tensor(tDsD[None, 0, 0].shape, mD.element_type)
        for i, j in itertools.product(range(cute.size(tDsD, mode=[1])), range(cute.size(tDsD, mode=[2]))):
            copy_vector(atom, tDsD[None, i, j], line)
            is_inside = cute.elem_less(tDcD[0, i, j], (mD.shape[0], mD.shape[1]))
            copy_vector(atom, line, tDgD[None, i, j], condition(is_inside))
