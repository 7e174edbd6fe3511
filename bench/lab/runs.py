"""Runs of weir-lab for the figures: many at a time, each once.

A spec is a dict of weir-lab's options without their dashes:

    {"workload": "B-extreme", "strategy": "queue+fa", "capacity": 1000, "delay-ms": 1, "crash": ["3@20-40"], "copy": True}

Lists are options given several times, True is a flag, None and False leave the option out. A spec's runs are those of the
seeds 1 to `runs`; each is a process of its own and is kept under _build/lab/results by the hash of the binary, the options
and the seed, so that asking again, or for more runs, costs only what is new.

    make([(spec, runs)])    makes what is missing, all cores at work; the rest only reads
    results(specs, runs)    for each spec {"runs": [report, ...], "mean": {field: number or None}}
    series(spec, runs)      the means of what weir-lab says of each second, as a Series
    decisions(spec, seed)   the decisions of one run, as a list of Decision

WEIR_LAB names another binary than bin/weir-lab, WEIR_JOBS another number of processes than there are cores, WEIR_LAB_RUNS
another number of runs than 10 (for those who draw: fewer).
"""

import csv
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "_build" / "lab" / "results"
RUNS = int(os.environ.get("WEIR_LAB_RUNS", 10))

Decision = namedtuple("Decision", "time_ms user node admitted central")


class Series:
    """Means of runs, second by second: an array for each column of weir-lab's CSV, and `time`, the ends of the seconds.

    A run that has ended counts as nothing (0) from then on, as in the thesis: its nodes are gone. `users`, and what was
    counted so far, stay. `ended` is the share of runs that had ended before each second.
    """

    STAYS = ("users",)

    def __init__(self, runs):
        length = max(len(run["time"]) for run in runs)
        self.time = numpy.arange(1, length + 1)
        self.columns = {}
        for name in runs[0]:
            rows = [self._padded(run[name], length, name) for run in runs]
            self.columns[name] = numpy.mean(rows, axis=0)
        self.ended = numpy.mean([numpy.arange(length) >= len(run["time"]) for run in runs], axis=0)

    def _padded(self, values, length, name):
        fill = values[-1] if name in self.STAYS else 0.0
        return numpy.concatenate([values, numpy.full(length - len(values), fill)])

    def __getattr__(self, name):
        try:
            return self.__dict__["columns"][name]
        except KeyError:
            raise AttributeError(name) from None

    def so_far(self, name):
        return numpy.cumsum(self.columns[name])


@functools.lru_cache(maxsize=1)
def binary():
    path = pathlib.Path(os.environ.get("WEIR_LAB", ROOT / "bin" / "weir-lab"))
    if not path.exists():
        sys.exit(f"{path} is missing: `make build` builds it")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def arguments(spec):
    """The spec as weir-lab's arguments, in an order that depends on nothing but the spec."""
    args = []
    for name in sorted(spec, key=lambda option: (option not in ("workload", "strategy"), option)):
        value = spec[name]
        if value is None or value is False:
            continue
        if value is True:
            args.append(f"--{name}")
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            args += [f"--{name}", str(one)]
    return args


def command(spec, runs=None):
    """The command line that does what this spec says, for the page."""
    return " ".join(["bin/weir-lab run", *arguments(spec)] + (["--runs", str(runs)] if runs else []))


def _place(spec, seed, ending):
    key = hashlib.sha256(json.dumps([arguments(spec), seed]).encode()).hexdigest()[:24]
    return RESULTS / binary()[1] / f"{key}{ending}"


def _run(spec, seed, ending=".json"):
    """Runs one seed unless it is kept: its report, its seconds, and if these are asked for its decisions. Each file appears
    whole or not at all, the one that is asked for last."""
    done = _place(spec, seed, ending)
    if done.exists():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=done.parent) as scratch:
        made = {end: pathlib.Path(scratch) / f"run{end}" for end in (".csv", ".decisions", ".json")}
        line = [str(binary()[0]), "run", *arguments(spec), "--seed", str(seed), "--json", "--quiet", "--series", str(made[".csv"])]
        if ending == ".decisions":
            line += ["--decisions", str(made[".decisions"])]
        ran = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise RuntimeError(f"{' '.join(line)}\n{ran.stderr}")
        made[".json"].write_text(ran.stdout)
        for end in sorted(made, key=lambda one: (one == ending, one == ".json")):
            if made[end].exists():
                made[end].rename(_place(spec, seed, end))
    return done


def _tell(done, of):
    if sys.stderr.isatty():
        print(f"\r{done}/{of} runs", end="\n" if done == of else "", file=sys.stderr, flush=True)
    elif done == of or done % max(1, of // 10) == 0:
        print(f"{done}/{of} runs", file=sys.stderr, flush=True)


# Those that take longest go first, so that no core is left with one of them at the end.
SLOW = ("C", "logins", "hot", "steady", "A", "weighted")


def _slowness(spec):
    workload = str(spec.get("workload", ""))
    place = next((at for at, name in enumerate(SLOW) if workload.split(":")[0].startswith(name)), len(SLOW))
    return place, spec["strategy"] != "counter"


def make(wanted, ending=".json"):
    """Makes the runs of these (spec, number of runs) that are not kept yet; of ending .decisions, their decisions."""
    missing = {}
    for spec, runs in sorted(wanted, key=lambda one: _slowness(one[0])):
        for seed in range(1, runs + 1):
            place = _place(spec, seed, ending)
            if not place.exists():
                missing[place] = (spec, seed)
    if not missing:
        return
    jobs = int(os.environ.get("WEIR_JOBS", os.cpu_count() or 1))
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_run, spec, seed, ending) for spec, seed in missing.values()]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                _tell(done, len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _mean(reports):
    mean = {}
    for field, value in reports[0].items():
        if isinstance(value, dict):
            continue
        numbers = [report[field] for report in reports if isinstance(report[field], (int, float))]
        mean[field] = sum(numbers) / len(numbers) if numbers else None
    return mean


def results(specs, runs=RUNS):
    """For each spec, in order: the reports of its runs and the means of their numbers (None where no run has one)."""
    make([(spec, runs) for spec in specs])
    answer = []
    for spec in specs:
        reports = [json.loads(_place(spec, seed, ".json").read_text()) for seed in range(1, runs + 1)]
        answer.append({"runs": reports, "mean": _mean(reports)})
    return answer


def series(spec, runs=RUNS):
    """What the runs of a spec did second by second, as means."""
    make([(spec, runs)])
    return Series([_columns(_place(spec, seed, ".csv")) for seed in range(1, runs + 1)])


def _columns(path):
    with open(path, newline="") as lines:
        header = next(csv.reader(lines))
        table = numpy.loadtxt(lines, delimiter=",", ndmin=2)
    columns = dict(zip(header, table.T))
    columns["time"] = columns.pop(header[0])
    return columns


def decisions(spec, seed=1):
    """The decisions of the run of one seed, in the order in which they were made."""
    with open(_run(spec, seed, ending=".decisions"), newline="") as lines:
        return [Decision(int(time), user, int(node), admitted == "1", central == "1")
                for time, user, node, admitted, central in list(csv.reader(lines))[1:]]
