"""The profiler: its command line, the CSV of ncu, the comparison, and a run under a stand-in for ncu."""

import json
import os
import pickle
import stat
import sys
import textwrap
from pathlib import Path

import pytest

from cutegemm.analysis import check
from cutegemm.build import simt_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.compile.cubin import ResourceReport
from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.plan import Operands, Problem
from cutegemm.profile import Case, compare, profile, render, to_dict
from cutegemm.profile.child import environment, printed
from cutegemm.profile.compare import QUANTITIES
from cutegemm.profile.ncu import NcuError, command, known_metrics, parse_csv, unknown_metrics
from docs.evidence.counters.cases import hopper_cases, mma_cases, proof_cases, proof_probes, traffic_cases
from docs.evidence.counters.misses import REASONS
from docs.evidence.counters.recorded import Evidence, Recorded, describe, measure, replay
from docs.evidence.pages.analysis import TABLES, Runs, regenerated, summary_table
from tests.evidence.test_commands import status

DOCS = Path(__file__).parents[2] / "docs"

# ruff: noqa: E501 - the lines are ncu's
# In the form that ncu 2024 and 2025 print with --csv: messages, a header, a row for each metric and launch.
RECORDED = textwrap.dedent("""\
    ==PROF== Connected to process 4242 (/usr/bin/python3.11)
    ==PROF== Profiling "kernel_cutegemm_SimtGemm" - 0: 0%....50%....100% - 9 passes
    ==PROF== Profiling "kernel_cutegemm_SimtGemm" - 1: 0%....50%....100% - 9 passes
    ==PROF== Disconnected from process 4242
    "ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
    "0","4242","python3.11","127.0.0.1","kernel_cutegemm_SimtGemm","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","379,584,512"
    "0","4242","python3.11","127.0.0.1","kernel_cutegemm_SimtGemm","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","launch__registers_per_thread","register/thread","220"
    "0","4242","python3.11","127.0.0.1","kernel_cutegemm_SimtGemm","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","sm__maximum_warps_per_active_cycle_pct","%","12.50"
    "1","4242","python3.11","127.0.0.1","kernel_cutegemm_SimtGemm","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Mbyte","12.5"
    "1","4242","python3.11","127.0.0.1","kernel_cutegemm_SimtGemm","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","usecond","3.25"
    "1","4242","python3.11","127.0.0.1","kernel_cutegemm_SimtGemm","1","7","(256, 1, 1)","(1024, 1, 1)","0","9.0","Command line profiler metrics","lts__t_sectors_op_read.sum","sector","n/a"
    """)


def test_the_recorded_table():
    first, second = parse_csv(RECORDED)
    assert first == {
        "dram__bytes_read.sum": 379584512.0,
        "launch__registers_per_thread": 220.0,
        "sm__maximum_warps_per_active_cycle_pct": 12.5,
    }
    assert second == {"dram__bytes_read.sum": 12.5e6, "gpu__time_duration.sum": 3250.0}


def test_ten_launches_stay_in_order():
    header = '"ID","Metric Name","Metric Unit","Metric Value"\n'
    rows = "".join(f'"{i}","a.sum","","{i * 100}"\n' for i in (10, 2, 0, 1))
    assert [c["a.sum"] for c in parse_csv(header + rows)] == [0, 100, 200, 1000]


def test_no_table_is_an_error_that_shows_what_was_said():
    with pytest.raises(NcuError, match="ERR_NVGPUCTRPERM"):
        parse_csv("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")


def test_the_command_line():
    line = command(["python", "x.py"], ["a.sum", "b.sum"], "kernel", "out.csv")
    assert line[:4] == ["ncu", "--clock-control", "none", "--profile-from-start"]
    assert line[line.index("-k") + 1] == "regex:kernel"
    assert line[line.index("--log-file") + 1] == "out.csv"
    assert line[line.index("--metrics") + 1] == "a.sum,b.sum"
    assert line[-2:] == ["python", "x.py"]


def test_names_of_metrics_in_messages_and_listings():
    assert unknown_metrics("==ERROR== Failed to find metric regex:^no__such.sum$\nfine") == {"no__such.sum"}
    listing = "Device NVIDIA H200 (GH100)\n-----\nMetric Name  Metric Type\ndram__bytes_read  Counter byte\n"
    assert known_metrics(listing) == {"dram__bytes_read"}


def counters(analysis):
    """What a GPU would count if the analysis were right."""
    out = {}
    for q in QUANTITIES:
        if not q.less:  # what is subtracted has a quantity of its own
            out[q.metrics[0]] = q.predicted(analysis)
            out.update(dict.fromkeys(q.metrics[1:], 0.0))
    far = analysis.traffic.far_bytes / 32
    out["lts__t_sectors_op_read.sum"] = out["lts__t_sectors_srcunit_tex_op_read.sum"] + far
    return out


def test_a_right_prediction_holds_and_a_wrong_one_is_seen():
    case = Case("one", simt_plan(), Problem(512, 512, 256))
    analysis = check(case.plan, case.problem)
    right = counters(analysis)
    found = compare(case, analysis, right)
    assert found.misses == ()
    assert all(row.error == pytest.approx(0) for row in found.rows)
    wavefronts = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
    for factor, misses in ((1.01, 0), (0.99, 0), (1.05, 1), (0.5, 1)):
        assert len(compare(case, analysis, {**right, wavefronts: right[wavefronts] * factor}).misses) == misses
    registers = {**right, "launch__registers_per_thread": right["launch__registers_per_thread"] + 1}
    assert [row.name for row in compare(case, analysis, registers).misses] == ["registers of a thread"]
    none = compare(case, analysis, {})
    assert none.misses == ()
    assert all(row.measured is None for row in none.rows)


def test_sums_of_parts_are_compared_without_a_promise():
    """As counted on an H200 (2026-11-20): 64 KiB of sums from each of 1,024 CTAs, more than L2 keeps until they are
    read again by 256 of them."""
    operands = Operands.of("f32")
    problem = Problem(2048, 2048, 1024, operands=operands)
    case = Case("one", plan_named("sgemm_13_split_last", operands), problem)
    analysis = check(case.plan, problem, device="h200", search=False)
    seen = {
        "l1tex__m_xbar2l1tex_read_sectors.sum": 10_242_302.0, "dram__bytes_read.sum": 65_300_992.0,
        "lts__t_sectors_srcunit_tex_op_read.sum": 9_679_675.0, "lts__t_sectors_op_read.sum": 11_034_560.0,
    }  # fmt: skip
    rows = {row.name: row for row in compare(case, analysis, seen).rows}
    assert rows["sectors read into L1"].predicted == 8_388_608 + 1024 * 65536 // 32
    assert rows["sectors read into L1"].error == pytest.approx(0.024, abs=0.001)
    assert abs(rows["DRAM bytes read"].error) < 0.1
    assert abs(rows["L2 read sectors from another partition"].error) < 0.1
    assert rows["DRAM bytes written"].predicted == 2048 * 2048 * 4 + 1024 * 65536
    assert rows["sectors read into L1"].holds is rows["DRAM bytes read"].holds is None
    whole = compare(case, check(simt_plan(operands), problem, device="h200", search=False), {})
    assert {row.tolerance for row in whole.rows if row.name == "DRAM bytes read"} == {0.1}


def test_a_counter_that_should_be_zero():
    case = Case("one", simt_plan(), Problem(512, 512, 256))
    analysis = check(case.plan, case.problem)
    seen = counters(analysis)
    seen["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] = 0.0
    assert any(row.error == float("inf") for row in compare(case, analysis, seen).rows)


def conflicts(cases, name, access):
    """Return the instruction of an access to shared memory of the case `name`, and its bank conflicts: 1 means none."""
    (case,) = [case for case in cases if case.name == name]
    found = check(case.plan, case.problem, "sm_90a", "h200", search=False)
    (one,) = [each for each in found.shared if each.name == access]
    return one.op, one.cost.ways


def test_the_proof_has_all_families():
    cases, probes = proof_cases(), proof_probes()
    assert len({c.name for c in cases}) == len(cases) >= 20
    assert len({p.name for p in probes}) == len(probes)
    assert [c.name for c in cases if c.plan.violations("sm_90a", c.problem)] == []
    for want in (2, 4, 8):
        assert conflicts(cases, f"read_a_vectors_{want}way", "read A") == ("load", want)
        assert conflicts(cases, f"read_a_vectors_{want}way_swizzled", "read A") == ("load", 1)
    for name, want in (("turned_pad0", 2), ("turned_pad4", 1), ("turned_swizzled", 1)):
        assert conflicts(cases, name, "fill A") == ("store", want)
    assert {(p.op, p.transpose) for p in probes} >= {
        ("load", False), ("store", False), ("cp.async", False),
        ("ldmatrix", False), ("ldmatrix", True), ("stmatrix", False), ("stmatrix", True),
    }  # fmt: skip
    assert all(max(p.offsets) + p.bits // 8 <= 1 << 16 for p in probes)
    assert pickle.loads(pickle.dumps(cases)) == cases
    assert all(p.compared({}).rows[0].predicted >= 1 for p in probes)


FAKE = """\
#!{python}
import csv, json, pickle, sys
arguments = sys.argv[1:]
if "--query-metrics" in arguments:
    print("\\n".join(name.split(".")[0] + "  Counter" for name in {metrics!r}))
    sys.exit()
wanted = arguments[arguments.index("--metrics") + 1].split(",")
if {refused!r} in wanted:
    print("==ERROR== Failed to find metric {refused}")
    sys.exit(1)
cases = pickle.load(open(arguments[-2], "rb"))
assert arguments[-3] == "cutegemm.profile.launch"
with open(arguments[arguments.index("--log-file") + 1], "w") as log:
    print("==PROF== a stand-in", file=log)
    out = csv.writer(log, quoting=csv.QUOTE_ALL)
    out.writerow(["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"])
    for i in range(len(cases)):
        for name in wanted:
            out.writerow([i, "kernel", name, "", f"{{7 + i:,}}"])
launched = list(range(len(cases)))
said = {{"device": "a stand-in", "arch": "sm_90a", "launched": launched, "failed": {{}}}}
json.dump(said, open(arguments[-1], "w"))
"""


@pytest.fixture
def fake_ncu(tmp_path):
    cases = [*proof_cases()[:1], *proof_probes()[:1]]
    refused = "sm__maximum_warps_per_active_cycle_pct"
    file = tmp_path / "ncu"
    listed = [name for case in cases for name in case.metrics if "ldgsts" not in name]
    file.write_text(FAKE.format(python=sys.executable, metrics=listed, refused=refused))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_a_run_under_a_stand_in(fake_ncu, monkeypatch):
    cases = [*proof_cases()[:1], *proof_probes()[:1]]
    report = ResourceReport("recorded", 168, 0, 0, 0, {})
    monkeypatch.setattr("docs.evidence.counters.recorded.resources_of", lambda *_: report)  # compiles nothing
    monkeypatch.setattr("cutegemm.compile.plans.compile_missing", lambda *_: None)
    found, run = measure(cases, device="h200", ncu=fake_ncu)
    assert run.machine["device"] == "a stand-in"
    assert not any("ldgsts" in name for name in run.cases[cases[0].name].launches[0])
    rows = {row.name: row for row in found[0].rows}
    assert rows["DRAM bytes read"].measured == 7
    assert rows["shared load instructions"].measured == 14  # of two counters
    assert rows["L2 read sectors from another partition"].measured == 0  # of two, one less the other
    assert rows["cp.async wavefronts, by instructions"].measured is None  # not listed, so not asked for
    assert rows["theoretical occupancy, %"].measured is None  # refused, so asked for without it
    assert found[1].rows[0].measured == 8
    text = render(found)
    assert cases[0].name in text
    assert "single instructions" in text
    json.dumps(to_dict(found))


def test_the_command(fake_ncu, tmp_path, capsys):
    out = tmp_path / "proof"
    assert status("counters", "plans", "--only", "turned_pad4", "--list") == 0
    assert "turned_pad4" in capsys.readouterr().out
    arguments = ("counters", "probes", "--only", "load32 in a row", "--ncu")
    assert status(*arguments, fake_ncu, "--out", str(out)) == 1
    saved = Evidence.load(out / "analysis_probes.json")
    assert saved.machine["command"] == "python -m docs.evidence counters probes"
    assert set(saved.cases["load32 in a row"].counters().values()) == {7}
    capsys.readouterr()
    assert status("replay", str(out / "analysis_probes.json")) == 1
    assert "differs" in capsys.readouterr().out
    assert status(*arguments, os.path.join(tmp_path, "no-such-ncu")) == 2


def test_an_ncu_that_hangs_is_ended_with_its_children(tmp_path):
    file = tmp_path / "ncu"
    file.write_text("#!/bin/sh\necho $$ > $0.pid\nsh -c 'echo $$ > '$0'.child; sleep 60'\n")
    file.chmod(0o755)
    with pytest.raises(TimeoutError, match="ncu took longer than 1 s"):
        printed([str(file)], environment(), 1.0)
    for name in ("pid", "child"):
        assert not Path(f"/proc/{(tmp_path / f'ncu.{name}').read_text().strip()}/cwd").exists()


def test_without_ncu():
    with pytest.raises(UnsupportedError, match="CUDA toolkit"):
        profile([], ncu="no-such-ncu")


# --- what was counted on a GPU ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs():
    return Runs(DOCS / "evidence" / "data")


def test_a_run_is_written_and_read_back(tmp_path):
    launches = ({"a.sum": 1.0, "b.pct": 12.5}, {"a.sum": 3.0}, {"a.sum": 10.0})
    evidence = Evidence({"gpu": "one"}, "sm_90a", "h200", {"x": Recorded("what", 168, launches)}, {"y": "why"})
    evidence.save(tmp_path / "e.json")
    assert Evidence.load(tmp_path / "e.json") == evidence
    assert evidence.cases["x"].counters() == {"a.sum": 3.0, "b.pct": 12.5}
    (tmp_path / "e.json").write_text("{}")
    with pytest.raises(CutegemmError, match="no counters"):
        Evidence.load(tmp_path / "e.json")


def test_a_case_that_has_changed_is_passed_over():
    one, other = proof_cases()[:2]
    recorded = {
        one.name: Recorded(describe(one), 200, ({},)),
        other.name: Recorded("another plan", 200, ({},)),
        "gone": Recorded("a plan", 200, ({},)),
    }
    found, stale = replay(Evidence({}, "sm_90a", "h200", recorded), proof_cases())
    assert [c.case for c in found] == [one.name]
    assert stale == [other.name, "gone"]
    registers = next(row for row in found[0].rows if row.name == "registers of a thread")
    assert registers.predicted == 200  # listing of the kernel that was compiled then


@pytest.mark.thorough
def test_every_pattern_of_a_single_instruction_is_exact(runs):
    counted = [c for c in runs.found["probes"] if c.rows[0].measured is not None]
    assert len(counted) >= 272
    assert sum(c.what.startswith("cp.async") for c in counted) >= 135
    assert [c.case for c in counted if c.rows[0].error != 0] == []


@pytest.mark.thorough
def test_copies_past_the_end_are_counted_or_not(runs):
    """All of the last stages - 1 k-tiles, or none."""
    cases = {case.name: case for case in (*proof_cases(), *mma_cases(), *traffic_cases())}
    for c in runs.plans("plans", "mma", "traffic"):
        row = next(r for r in c.rows if r.name == "cp.async instructions")
        if row.predicted:
            case = cases[c.case]
            past = row.predicted / case.plan.k_tiles(case.problem) * (case.plan.stages - 1)
            assert row.measured - row.predicted in (0, past)


@pytest.mark.thorough
def test_the_summary_says_what_is_kept(runs):
    lines = summary_table(runs).splitlines()
    assert lines[2].startswith("| shared load wavefronts | 2% | **")
    for name in ("shared load", "global load", "global store", "DRAM bytes", "registers", "theoretical"):
        line = next(x for x in lines if x.startswith(f"| {name}"))
        assert int(line.split("**")[1].split()[0]) >= 20


@pytest.mark.thorough
def test_promises_are_kept_or_the_reason_is_given(runs):
    plans = runs.plans()
    assert len(plans) >= 20
    replayed = {c.case for found in runs.found.values() for c in found}
    assert {(c.case, row.name) for c, row in runs.misses()} == {key for key in REASONS if key[0] in replayed}
    promised = {q.name for q in QUANTITIES if q.tolerance is not None}
    for name in ("shared load wavefronts", "global load sectors, cp.async too", "DRAM bytes read"):
        assert name in promised
        held = [row.holds for c in plans for row in c.rows if row.name == name and row.measured]
        held = [is_kept for is_kept in held if is_kept is not None]
        assert sum(held) >= 20
        assert sum(held) >= 0.9 * len(held)


@pytest.mark.thorough
def test_registers_and_occupancy_are_exact(runs):
    for c in runs.plans():
        for row in c.rows:
            if row.name in ("registers of a thread", "theoretical occupancy, %"):
                assert row.error == 0


@pytest.mark.thorough
def test_stores_beyond_the_prediction_are_waits(runs):
    """What a store's counter shows beyond the prediction, the counter of conflicts shows too.

    But for what a wait differs by from one of ncu's passes to the next.
    """
    for c in runs.plans("plans"):
        by_name = {row.name: row for row in c.rows}
        total, conflicts = by_name["shared store wavefronts"], by_name["shared store conflicts"]
        if total.predicted and c.case != "odd":
            beyond, conflicting = total.measured - total.predicted, conflicts.measured - conflicts.predicted
            assert beyond >= 0
            assert beyond == pytest.approx(conflicting, abs=2e-2 * total.measured)


@pytest.mark.thorough
def test_the_limit_of_shared_memory_is_that_of_some_carveout(runs):
    """KiB that the driver can set aside on sm_90, over what a CTA takes."""
    carveouts = (8, 16, 32, 64, 100, 132, 164, 196, 228)
    cases = {case.name: case for case in (*proof_cases(), *hopper_cases())}
    for c in runs.plans("plans", "hopper"):
        row = next(r for r in c.rows if r.name == "CTAs of a multiprocessor by shared memory")
        taken = -(-sum(cases[c.case].plan.smem_bytes().values()) // 128) * 128 + 1024
        assert row.measured in {kib * 1024 // taken for kib in carveouts}


@pytest.mark.thorough
def test_the_tables_of_the_document_are_up_to_date(runs):
    text = (DOCS / "measured" / "counters.md").read_text()
    assert all(f"<!-- table: {name} -->" in text for name in TABLES)
    assert regenerated(text, runs) == text, "run: python -m docs.evidence report"


@pytest.mark.thorough
def test_an_unknown_table_is_refused(runs):
    with pytest.raises(CutegemmError, match="'nothing'"):
        regenerated("<!-- table: nothing -->\n<!-- end -->", runs)


def test_more_cases_have_what_their_names_say():
    of_mma, of_traffic = mma_cases(), traffic_cases()
    assert [c.name for c in (*of_mma, *of_traffic) if c.plan.violations("sm_90a", c.problem)] == []
    assert conflicts(of_mma, "mma_ldmatrix_swizzled", "read A") == ("ldmatrix", 1)
    assert conflicts(of_mma, "mma_ldmatrix_plain", "read A") == ("ldmatrix", 8)
    assert conflicts(of_mma, "mma_ldmatrix_padded_2way", "read B") == ("ldmatrix", 2)
    assert conflicts(of_mma, "mma_ldmatrix_padded_4way", "read B") == ("ldmatrix", 4)
    assert conflicts(of_mma, "mma_lds_plain", "read A") == ("load", 8)
    transposed = {c.name: c.plan.a.read.name for c in of_mma if c.plan.a.read is not None}
    assert "trans" in transposed["mma_ldmatrix_transposed_swizzled"]
    assert len({c.name for c in (*proof_cases(), *hopper_cases(), *of_mma, *of_traffic)}) >= 60
