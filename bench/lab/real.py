"""Real nodes on this machine: beside the lab's simulated ones (doc/lab-real.md), and as a benchmark (doc/benchmarks-cluster.md).

    real.py lab        makes the runs that are missing, and writes doc/lab-real.md
    real.py cluster    the same for doc/benchmarks-cluster.md
    real.py quick      a few seconds of each kind of run, to see that they work; writes nothing

A run is one of `weir-lab run --real`. It takes as long as its workload, and what it measured is kept under _build/lab/real: remove
that folder to measure again. Runs of C++ nodes go three at a time, those of nodes on the BEAM alone. No number of a page is typed
but those of options and goals.
"""

import collections
import csv
import functools
import hashlib
import json
import os
import pathlib
import platform
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy

import plots
import runs
from questions import number
from thesis import percent, table

KEPT = runs.ROOT / "_build" / "lab" / "real"
RECORDINGS = KEPT / "recordings"
B_KINDS = ["B-extreme", "B-substantial", "B-barely", "B-just", "B-unlimited"]
COMPARED = ["interval", "counter", "queue+fa"]
NODES = 5
CRASH = "2@20-30"
SIZES = [3, 5, 10]
IDLE_SECONDS = 30
USERS_OF_D = 40
SPEED = 10  # of the logins

# ---------------------------------------------------------------------------------------------------------------------
# Runs.

def application():
    """The compiled application, as weir-lab finds it; a run that is kept is of these bytes."""
    found = [folder for folder in (runs.ROOT / "_build" / profile / "lib" / "weir" for profile in ("default", "server", "test", "prod"))
             if (folder / "ebin" / "weir.app").exists()]
    return found[0] if found else sys.exit("no compiled weir: `make build` compiles it")


@functools.lru_cache(maxsize=1)
def build():
    digest = hashlib.sha256(runs.binary()[1].encode())
    for path in sorted([*application().glob("ebin/*.beam"), *application().glob("priv/*.so")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _kept(spec, seed, ending):
    return KEPT / build() / (hashlib.sha256(json.dumps([runs.arguments(spec), seed]).encode()).hexdigest()[:24] + ending)


def run(spec, seed=1):
    """The report of a real run."""
    report, decisions = _kept(spec, seed, ".json"), _kept(spec, seed, ".csv")
    if report.exists() and decisions.exists():
        return json.loads(report.read_text())
    report.parent.mkdir(parents=True, exist_ok=True)
    line = [str(runs.binary()[0]), "run", "--real", *runs.arguments(spec), "--seed", str(seed), "--json", "--quiet",
            "--decisions", str(decisions)]
    print("running", " ".join(line[2:]), file=sys.stderr, flush=True)
    ran = subprocess.run(line, cwd=runs.ROOT, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(line)}\n{ran.stderr}")
    # (Of the last minute: who else was there.)
    report.write_text(json.dumps({**json.loads(ran.stdout), "load": os.getloadavg()[0]}))
    return json.loads(report.read_text())


def run_all(specs):
    """The reports of these runs: those on the BEAM one after the other, then C++ nodes, which do little, three runs at a time."""
    for spec in specs:
        if spec["strategy"] == "interval":
            run(spec)
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(run, specs))


def decisions_of(path, user):
    """Of a decisions' file: [(admitted, admitted centrally)] of that user's requests."""
    with open(path, newline="") as lines:
        return [(row["admitted"] == "1", row["central"] == "1") for row in csv.DictReader(lines) if row["user"] == user]


def agreement_of(path, user, digits=2):
    decided = decisions_of(path, user)
    return percent(sum(admitted == central for admitted, central in decided) / len(decided), digits)


def rejections_of(path, user):
    decided = decisions_of(path, user)
    return f"{sum(not admitted for admitted, _ in decided)} of {sum(not central for _, central in decided)}"


# ---------------------------------------------------------------------------------------------------------------------
# Recordings: what no workload of the lab is by itself.

def recording(name, make):
    """The file of that recording, made once; its name changes with what is in it."""
    RECORDINGS.mkdir(parents=True, exist_ok=True)
    text = "time_ms,user\n" + "".join(f"{time},{user}\n" for time, user in sorted(make()))
    path = RECORDINGS / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.csv"
    if not path.exists():
        path.write_text(text)
    return str(path.relative_to(runs.ROOT))


def requests_of(workload, capacity, *more):
    path = RECORDINGS / f"workload-{os.getpid()}.csv"
    RECORDINGS.mkdir(parents=True, exist_ok=True)
    subprocess.run([str(runs.binary()[0]), "workload", workload, "--capacity", str(capacity), "--seed", "1", "--out", str(path), "--quiet",
                    *more], check=True, cwd=runs.ROOT)
    with open(path, newline="") as lines:
        found = [(int(row["time_ms"]), row["user"]) for row in csv.DictReader(lines)]
    path.unlink()
    return found


@functools.cache
def users_of_b(capacity=1000):
    """One user of each kind of B, at once."""
    def make():
        everyone = []
        for kind in B_KINDS:
            asked = requests_of(kind, capacity)
            first = asked[0][0] // 1000 * 1000
            everyone += [(1_600_000_000_000 + time - first, kind) for time, _ in asked]
        return everyone
    return recording("b", make)


@functools.cache
def users_of_d():
    """USERS_OF_D users as that of D, each with a start and steps of its own.

    The one user of D asks in whole tenths of a second, as tokens come: a request that is a moment late gets another answer, so that
    two central limiters agree in 93 % only. Here steps are drawn, and next to no request falls in the instant of a token.
    """
    draw = random.Random(4)

    def make():
        for user in range(USERS_OF_D):
            time = 1_600_000_000_000 + draw.randrange(900)
            while time < 1_600_000_100_000:
                yield time, f"d-{user}"
                time += draw.randint(860, 940)
    return recording("d", make)


@functools.cache
def logins(capacity, users=300_000):
    """Ten minutes of the hour of logins, SPEED times as fast."""
    def make():
        asked = requests_of("logins", capacity, "--users", str(users))
        first = asked[0][0] + 600_000
        return [(1_600_000_000_000 + (time - first) // SPEED, user) for time, user in asked if 0 <= time - first < 600_000]
    return recording(f"logins-{capacity}", make)


@functools.cache
def cold():
    """Keys that are asked once: below every share."""
    draw = random.Random(1)
    return recording("cold", lambda: [(1_600_000_000_000 + draw.randrange(20_000), f"cold-{i}") for i in range(10_000)])


@functools.cache
def idle():
    return recording("idle", lambda: [(1_600_000_000_000, "first"), (1_600_000_000_000 + 1000 * IDLE_SECONDS, "last")])


# ---------------------------------------------------------------------------------------------------------------------
# Real nodes against the lab.

Compared = collections.namedtuple("Compared", "workload delay strategy spec real simulated")


def compared_spec(workload, delay, strategy):
    source = {"replay": users_of_b(), "capacity": 1000} if workload == "B" else {"replay": users_of_d(), "capacity": 5}
    return {**source, "refill": 1, "strategy": strategy, "nodes": NODES, "delay-ms": delay, "crash": [CRASH]}


def compare():
    places = [(workload, delay, strategy) for workload in ("B", "D") for delay in (0, 50) for strategy in COMPARED]
    specs = [compared_spec(*place) for place in places]
    simulated = runs.results(specs, runs.RUNS)
    return [Compared(*place, spec, real, result) for place, spec, real, result in zip(places, specs, run_all(specs), simulated)]


def apart(one):
    """How far the real run's agreement is outside what simulated runs of other seeds have, if further than the noise; a token
    that another request gets is two disagreements."""
    inside = [report["agreement"] for report in one.simulated["runs"]]
    noise = max(1 - one.real["noise_agreement"], 2 / one.real["requests"])
    beyond = max(min(inside) - one.real["agreement"], one.real["agreement"] - max(inside)) - noise
    return beyond if beyond > 1e-9 else 0


def compared_table(found):
    rows = []
    for one in found:
        real, mean = one.real, one.simulated["mean"]
        inside = [report["agreement"] for report in one.simulated["runs"]]
        beyond = apart(one)
        pair = lambda field, digits=2: f"{number(real[field], digits)} / {number(mean[field], digits)}"  # noqa: E731
        rows.append((one.workload, f"{one.delay} ms", f"`{one.strategy}`", f"{percent(real['agreement'], 2)} / {percent(mean['agreement'], 2)}",
                     f"{percent(min(inside), 2)} to {percent(max(inside), 2)}", percent(real["noise_agreement"], 2),
                     f"**by {percent(beyond, 2)}**" if beyond else "no", pair("rejection_ratio", 3), pair("overshoot_max"),
                     pair("sent_bytes"), pair("messages"), f"{number(real['delay_p50_ms'])}, {number(real['delay_p99_ms'])}"))
    return table(("", "delay", "strategy", "agreement, real / simulated", "simulated, least to most", "noise floor", "apart",
                  "rejections / central's", "overshoot", "bytes", "messages", "real delay, median, 99 %"), rows)


def kinds_table(found, what):
    rows = []
    for one in (one for one in found if one.workload == "B"):
        simulated = runs._run(one.spec, 1, ".decisions")
        rows.append((f"{one.delay} ms", f"`{one.strategy}`",
                     *(f"{what(_kept(one.spec, 1, '.csv'), kind)} / {what(simulated, kind)}" for kind in B_KINDS)))
    return table(("delay", "strategy", *B_KINDS), rows)


def machine(reports):
    load = [report["load"] for report in reports if "load" in report]
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    said = f"{number(min(load))} to {number(max(load))}" if load else "not noted"
    return f"{cpu}, {os.cpu_count()} CPUs, Linux {platform.release()}; load in the last minute of a run, that of the run included: {said}"


LAB_PAGE = """# Real nodes against the lab

What the lab's simulated nodes do is what real ones do: the same requests, at the same times on the same nodes, once with nodes as
processes of the operating system in real time, once simulated. `make lab-real` makes these runs, some {minutes} minutes, and writes this
page; only options were typed.

```sh
bin/weir-lab run --real --workload D --strategy interval --nodes 5 --delay-ms 50 --crash 2@20-30
bin/weir-lab run        --workload D --strategy interval --nodes 5 --delay-ms 50 --crash 2@20-30
```

## How

- The thesis' designs run as a C++ process each and talk over UDP on loopback; who receives a frame holds it back for the delay.
  `interval` is weir itself, on the BEAM, a VM a node; each connection of Erlang's distribution goes through a proxy that takes the delay.
- Requests are open loop: a node gets each a moment before it is due, and asks it when it is, whatever came of those before.
  (On the BEAM that is up to two milliseconds late, its timers being what they are.)
- The truth is a central limiter that gets the requests in the order and at the times at which the nodes decided them. The *noise
  floor* is how far two central limiters agree that get each request later, by two of the delays that messages really had.
- Node 2 of {nodes} is killed (SIGKILL) at 20 s and started again at 30 s. A C++ process is back at once, a BEAM node after {returned}
  ms; until then its requests go to the next node, as in simulated runs while it is down.
- *Apart* says that the real run's agreement lies outside what {count} simulated runs of different seeds span, by more than
  the noise (or one token that another request got). B is one user of each kind of B at once, c = 1000. D is {users_of_d} users at once
  as that of D, c = 5, with steps of 860 to 940 ms instead of 900, so that requests don't come in the very moment of a token. Refill
  one token a second.

Machine: {machine}.

## Figures

Real / simulated (mean of {count} runs).

{figures}
{said}

Bytes of `interval` are more on real nodes: runs and limiters are 32-bit numbers there, which the lab counts from 0.

## Each user of B

Agreement, real / simulated.

{kinds}
Rejections, real / simulated, of those that are due. What the dead node had not sent is lost: a user who exceeds the limit by less
than that is not limited at all.

{rejections}
## What a request costs

Processor time from the first request to the last, of all nodes together, for each 1000 requests. For C++ nodes it is mostly waking up; on
the BEAM also what the lab's injector needs. (On D some 44 requests a second come, over all nodes: its figures are mostly what nodes cost that are at rest.) *Late* is how long after its time a request was decided: median, 99 of 100, the latest.

{costs}"""


def costs_table(found):
    return table(("", "delay", "strategy", "CPU ms / 1000 requests", "late, ms", "the driver's CPU, s", "node back after, ms"),
                 [(one.workload, f"{one.delay} ms", f"`{one.strategy}`", number(one.real["cpu_ms_per_1000_requests"]),
                   ", ".join(number(one.real[f"late_{part}_ms"]) for part in ("p50", "p99", "max")), number(one.real["driver_cpu_seconds"]),
                   number(one.real["returned_ms"])) for one in found])


def lab():
    found = compare()
    off = [one for one in found if apart(one)]
    names = "; ".join(f"{one.workload}, {one.delay} ms, `{one.strategy}`" for one in off)
    returned = max(one.real["returned_ms"] for one in found if one.strategy == "interval")
    minutes = round(sum(one.real["wall_ms"] / (1 if one.strategy == "interval" else 3) for one in found) / 60_000)
    page = LAB_PAGE.format(
        minutes=minutes, nodes=NODES, users_of_d=USERS_OF_D, returned=number(returned), count=runs.RUNS, machine=machine([one.real for one in found]), figures=compared_table(found),
        said=f"{len(found) - len(off)} of {len(found)} agree within the noise." + (f" These don't: {names}." if off else ""),
        kinds=kinds_table(found, agreement_of), rejections=kinds_table(found, rejections_of), costs=costs_table(found))
    write("lab-real.md", page)


# ---------------------------------------------------------------------------------------------------------------------
# The benchmark of the cluster.

Case = collections.namedtuple("Case", "name capacity spec")


def cases():
    return [Case("the users of B, at once", 1000, {"replay": users_of_b(), "capacity": 1000, "refill": 1}),
            Case("Zipf, 100,000 keys", 100, {"workload": "zipf", "capacity": 100}),
            Case("1000 hot keys at once", 100, {"workload": "hot", "capacity": 100}),
            *(Case("logins", c, {"replay": logins(c), "capacity": c, "refill": SPEED * 0.001 * c}) for c in (3, 5, 10))]


def on(case, nodes, strategy="interval"):
    return {**case.spec, "strategy": strategy, "nodes": nodes, "settle-s": 20}


def measured():
    every = [(case, nodes) for nodes in SIZES for case in cases()]
    return [(case, nodes, report) for (case, nodes), report in zip(every, run_all([on(case, nodes) for case, nodes in every]))]


def quiet_runs():
    """{nodes: (idle, cold)}"""
    specs = [{"replay": one(), "capacity": 100, "strategy": "interval", "nodes": nodes, "settle-s": 20} for nodes in SIZES for one in (idle, cold)]
    reports = run_all(specs)
    return {nodes: (reports[2 * at], reports[2 * at + 1]) for at, nodes in enumerate(SIZES)}


def bound(report):
    return max(2, report["arrivals_in_delay_max"])


def misses(case, report):
    missed = []
    floor = min(0.999, report["noise_agreement"])
    if report["agreement"] < floor:
        missed.append(f"agreement {percent(report['agreement'], 3)}, {percent(floor - report['agreement'], 3)} short")
    if report["overshoot_max"] > bound(report):
        missed.append(f"overshoot {report['overshoot_max']} of {bound(report)}")
    return missed


def cluster_table(found):
    rows = []
    for case, nodes, report in found:
        admitted = max(1, report["admitted"])
        rows.append((nodes, case.name, case.capacity, number(report["requests"] / report["seconds"]), percent(report["agreement"], 3),
                     percent(report["noise_agreement"], 3), f"{report['overshoot_max']} (<= {bound(report)})",
                     "; ".join(misses(case, report)) or "met", number(report["sent_bytes"] / admitted), number(report["messages"] / admitted),
                     number(report["cpu_seconds"]), number(report["cpu_ms_per_1000_requests"]),
                     f"{number(report['delay_p50_ms'])}, {number(report['delay_p99_ms'])}",
                     f"{number(report['late_p50_ms'])}, {number(report['late_p99_ms'])}"))
    return table(("nodes", "workload", "c", "requests/s", "agreement", "noise floor", "overshoot", "goals", "bytes / admitted",
                  "messages / admitted", "CPU s a node", "CPU ms / 1000 requests", "delay ms: median, 99 %", "late ms: median, 99 %"), rows)


def cluster_kinds(found):
    rows = [(nodes, *(agreement_of(_kept(on(case, nodes), 1, ".csv"), kind, 3) for kind in B_KINDS))
            for case, nodes, _ in found if "users of B" in case.name]
    return table(("nodes", *B_KINDS), rows)


def quiet_table(found):
    rows = []
    for nodes, (still, once) in found.items():
        rows.append((nodes, number(still["heartbeat_messages"] / IDLE_SECONDS / nodes), data_of(still), still["repair_messages"],
                     number(1000 * still["cpu_seconds"] / IDLE_SECONDS), once["requests"], data_of(once), once["records"],
                     once["repair_messages"]))
    return table(("nodes", "idle: heartbeats/s a node", "messages of data", "of repair", "CPU ms a second and node", "cold keys",
                  "messages of data", "records", "messages of repair"), rows)


def data_of(report):
    return report["messages"] - report["repair_messages"]


# ---- growth

B_SECONDS = 120  # that the users of B take
GROWTH = {"interval": SIZES, "counter": [3, 10, 30], "queue+fa": [3, 10, 30]}
SIMULATED = [3, 5, 10, 30, 100]


def growth_case():
    return cases()[0]


def costs(found, quiet):
    """Least squares over the runs: processor ms of a request, of a message, and of a node's second."""
    reports = [(nodes, report) for _, nodes, report in found] + [(nodes, one) for nodes, pair in quiet.items() for one in pair]
    rows = [(report["requests"], report["messages"] + report["heartbeat_messages"], nodes * report["seconds"]) for nodes, report in reports]
    cpu = [1000 * sum(report["cpu_seconds_nodes"]) for _, report in reports]
    weights = 1 / numpy.sqrt(numpy.maximum(1, cpu))
    answer, *_ = numpy.linalg.lstsq(numpy.array(rows, float) * weights[:, None], numpy.array(cpu) * weights, rcond=None)
    return numpy.maximum(0, answer)


def growth(found, quiet):
    case = growth_case()
    real = {strategy: run_all([on(case, nodes, strategy) for nodes in sizes]) for strategy, sizes in GROWTH.items()}
    simulated = {strategy: [result["mean"] for result in runs.results([on(case, nodes, strategy) for nodes in SIMULATED], 1)]
                 for strategy in GROWTH}
    fig, axes = plots.new(columns=2, height=3.6)
    each = lambda report: report["sent_bytes"] / max(1, report["admitted"])  # noqa: E731
    for strategy, sizes in GROWTH.items():
        colour, _, marker = plots.STYLE[strategy]
        axes[0].plot(SIMULATED, [each(mean) for mean in simulated[strategy]], color=colour, linestyle="--", marker=marker,
                     markerfacecolor="white", label=f"{strategy}, simulated")
        axes[0].plot(sizes, [each(report) for report in real[strategy]], color=colour, linestyle="-", marker=marker, label=f"{strategy}, real")
        axes[1].plot(sizes, [report["cpu_ms_per_1000_requests"] for report in real[strategy]], color=colour, linestyle="-", marker=marker,
                     label=f"{strategy}, real" + ("" if strategy == "interval" else " (C++)"))
    request, message, second = costs(found, quiet)
    means = simulated["interval"]
    estimate = [(request * mean["requests"] + message * (mean["messages"] + mean["heartbeat_messages"]) + second * nodes * B_SECONDS)
                / mean["requests"] * 1000 for nodes, mean in zip(SIMULATED, means)]
    colour, _, marker = plots.STYLE["interval"]
    axes[1].plot(SIMULATED, estimate, color=colour, linestyle="--", marker=marker, markerfacecolor="white",
                 label="interval, estimated")
    for axis, label in zip(axes, ("bytes an admitted request", "CPU of all nodes (ms / 1000 requests)")):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(SIMULATED)
        axis.set_xticklabels([str(nodes) for nodes in SIMULATED])
        axis.minorticks_off()
        plots.finish(axis, "nodes", label, loc="best")
    figure = plots.save(fig, "q-growth", "Bytes and processor time of 3 to 100 nodes, real to 10 or 30, simulated beyond")
    return figure, (request, message, second), [(strategy, nodes, report, mean) for strategy, sizes in GROWTH.items()
                                                for nodes, report in zip(sizes, real[strategy])
                                                for mean in [dict(zip(SIMULATED, simulated[strategy])).get(nodes)]]


CLUSTER_PAGE = """# The cluster, measured

Real weir nodes on the BEAM, 3, 5 and 10 of them, on one machine.
({machine}.)
`make bench-cluster` makes the runs, some {minutes} minutes, and writes this page. How a run is made and judged: [lab-real.md](lab-real.md); every run is one of
`bin/weir-lab run --real --strategy interval`, links take 1 ms, nothing fails.

Goals: agreement of 99.9 % or within the noise floor (two central limiters that get each request later by the delays that were
measured); net overshoot at most the greater of 2 and what one user asks for within one delay (the 99th percentile of those
measured). {verdict}

{figures}
- Workloads last a minute (the users of B two, for the sake of the one below the rate). *Logins* are ten minutes of the lab's hour
  of logins with 300,000 keys, {speed} times as fast, the refill too.
- *Agreement* is judged at the times at which the nodes decided. *Overshoot* is of the worst key at the worst moment.
- Bytes and messages are of data and repair, frames as the machine made them. CPU is of the whole VM: weir, the distribution, and the
  lab's injector, which asks, answers and reports. *Late* is what the injector was behind a request's time.

The users of B apart:

{kinds}
## At rest

{still}
{idle} Messages of repair are digests by which nodes that have just met find that they know the
same; {seconds} s are looked at. {cold}

## Growth

The users of B, c = 1000, on 3 to 100 nodes. Real runs are solid lines, simulated ones dashed. Simulated nodes take no time; their
processor time is estimated by what the real runs above come to (least squares): {request} µs a request, {message} µs a message, sent and
received, and {second} ms each second that a node is there.

{growth}
{growth_table}"""


def spans(found, quiet):
    """Each report learns how long its workload took."""
    for _, _, report in found:
        report["seconds"] = B_SECONDS if "/b-" in report["config"]["workload"] else 60
    for still, once in quiet.values():
        still["seconds"], once["seconds"] = IDLE_SECONDS, 20


def cluster():
    found, quiet = measured(), quiet_runs()
    spans(found, quiet)
    figure, (request, message, second), grown = growth(found, quiet)
    missed = [f"{case.name} (c = {case.capacity}), on {nodes} nodes: {'; '.join(misses(case, report))}" for case, nodes, report in found
              if misses(case, report)]
    reports = [report for _, _, report in found] + [report for _, _, report, _ in grown] + [one for pair in quiet.values() for one in pair]
    still = all(data_of(report) == 0 for report, _ in quiet.values())
    silent = all(report["records"] == 0 and data_of(report) == 0 for _, report in quiet.values())
    rows = [(f"`{strategy}`", nodes, number(report["sent_bytes"] / max(1, report["admitted"])),
             number(mean["sent_bytes"] / max(1, mean["admitted"])), number(report["messages"] / max(1, report["admitted"])),
             number(mean["messages"] / max(1, mean["admitted"])), number(report["cpu_ms_per_1000_requests"]), percent(report["agreement"], 2),
             percent(mean["agreement"], 2)) for strategy, nodes, report, mean in grown]
    page = CLUSTER_PAGE.format(
        machine=machine(reports), minutes=round(sum(report["wall_ms"] / (1 if report["config"]["strategy"] == "interval" else 3) for report in reports) / 60_000), speed=SPEED,
        verdict="All are met." if not missed else f"{len(found) - len(missed)} of {len(found)} runs meet both. These don't: {'. '.join(missed)}.",
        figures=cluster_table(found), kinds=cluster_kinds(found), still=quiet_table(quiet), seconds=IDLE_SECONDS,
        idle="Idle nodes send heartbeats, two a second to each other node, and no data." if still else "**Idle nodes sent data.**",
        cold=("Keys below a node's share cost no record and no message of data." if silent else "**Keys below a node's share were sent.**"),
        request=number(1000 * request), message=number(1000 * message), second=number(second), growth=figure,
        growth_table=table(("strategy", "nodes", "bytes / admitted, real", "simulated", "messages / admitted, real", "simulated",
                            "CPU ms / 1000 requests", "agreement, real", "simulated"), rows))
    write("benchmarks-cluster.md", page)


# ---------------------------------------------------------------------------------------------------------------------

def write(name, page):
    (plots.DOC / name).write_text("\n".join(line.rstrip() for line in page.strip("\n").split("\n")) + "\n")
    print(f"doc/{name}; the runs are kept in {KEPT.relative_to(runs.ROOT)}")


def quick():
    draw = random.Random(1)
    file = recording("quick", lambda: [(1_600_000_000_000 + draw.randrange(3000), f"user-{i % 20}") for i in range(3000)])
    for strategy in COMPARED:
        report = run({"replay": file, "capacity": 50, "strategy": strategy, "nodes": 3}, seed=random.randrange(1 << 30))
        print(f"{strategy}: agreement {percent(report['agreement'], 2)}, late {number(report['late_p99_ms'])} ms (99 %), "
              f"{number(report['cpu_ms_per_1000_requests'])} CPU ms / 1000 requests")


if __name__ == "__main__":
    commands = {"lab": lab, "cluster": cluster, "quick": quick}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]]()
