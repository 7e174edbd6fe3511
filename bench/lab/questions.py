"""What the thesis leaves open, `interval` under faults beside its bounds, and how fast the lab is: sections of doc/lab.md.

    wanted()     every run that the sections need, as [(spec, runs), ...] for runs.make
    wanted_decisions()   those of which it needs the decisions
    sections()   Markdown: the open questions with their figures, the tables of faults and of speed
    ratio_table()   `interval` beside the counter where nothing fails; whole_table() what the ratios leave out
    findings()   the rows of the table of faults that went past their bound

A figure is a function that draws it and returns its Markdown; a row of the table is a `Row`. Numbers in the text come
from the runs. Bounds come from the design of `interval` (include/weir/replica.hpp) and from the requests themselves:
`arrivals` counts what one user asks for within a delay, whoever limits it.
"""

import bisect
import functools
import math
from collections import defaultdict, namedtuple

import matplotlib.pyplot as plt
import numpy

import plots
import runs
from thesis import size

STRATEGIES = ["counter", "queue", "queue+fa", "interval"]
NODES = 30


def at_most(count):
    return min(count, runs.RUNS)


RUNS = at_most(3)  # a point of a figure

# ---------------------------------------------------------------------------------------------------------------------
# Measures: name with unit, value of a mean report, scale of the axis.

Measure = namedtuple("Measure", "label value scale")

AGREEMENT = Measure("decided as one limiter would (%)", lambda m: 100 * m["agreement"], "linear")
OVERSHOOT = Measure("overshoot, worst user (tokens)", lambda m: m["overshoot_max"], "symlog")
BYTES = Measure("bytes an admitted request", lambda m: m["sent_bytes"] / max(1, m["admitted"]), "log")
MESSAGES = Measure("messages an admitted request", lambda m: m["messages"] / max(1, m["admitted"]), "log")
MEMORY = Measure("memory of a node (bytes)", lambda m: m["memory_mean_bytes"], "log")
FOUR = [AGREEMENT, OVERSHOOT, BYTES, MESSAGES]


def number(value, digits=2):
    """A measured number as short as it stays honest."""
    if value is None:
        return "-"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.{digits}f}" if abs(value) >= 1 else f"{value:.{digits}g}"


def means(specs, count=RUNS):
    return [result["mean"] for result in runs.results(specs, count)]


# ---------------------------------------------------------------------------------------------------------------------
# Curves over one option.

class Sweep:
    """One question: what each strategy does for each value of an option."""

    def __init__(self, name, title, x, values, spec, measures=None, scale=None, strategies=None, labels=None, count=RUNS):
        self.name, self.title, self.x, self.values, self.make = name, title, x, values, spec
        self.measures, self.scale, self.count = measures or FOUR, scale, at_most(count)
        self.strategies = strategies or STRATEGIES
        self.labels = labels or [str(value) for value in values]

    def specs(self):
        return [self.make(strategy, value) for strategy in self.strategies for value in self.values]

    def table(self):
        """{strategy: [mean of each value]}"""
        all_means = iter(means(self.specs(), self.count))
        return {strategy: [next(all_means) for _ in self.values] for strategy in self.strategies}

    def draw(self):
        table = self.table()
        rows = (len(self.measures) + 1) // 2
        fig, axes = plots.new(columns=2, rows=rows, height=2.7)
        for at, (axis, measure) in enumerate(zip(numpy.ravel(axes), self.measures)):
            places = range(len(self.values)) if self.scale is None else self.values
            for strategy in self.strategies:
                points = [measure.value(mean) for mean in table[strategy]]
                style = {} if self.scale else {"linestyle": "none", "markersize": 7}
                shift = 0 if self.scale else 0.13 * (self.strategies.index(strategy) - (len(self.strategies) - 1) / 2)
                plots.line(axis, [place + shift for place in places], points, strategy, marks=len(self.values), **style)
            self.scale_axes(axis, measure)
            # Above the axes, where it covers no point.
            plots.finish(axis, self.x, measure.label, legend=at == 0, loc="lower left", bbox_to_anchor=(-0.1, 1.0), ncol=4,
                         frameon=False, columnspacing=1.2)
        return plots.save(fig, self.name, self.title)

    def scale_axes(self, axis, measure):
        if measure.scale == "symlog":
            axis.set_yscale("symlog", linthresh=1)
            axis.set_ylim(bottom=-0.3, top=axis.get_ylim()[1] * 1.5)
            axis.yaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:g}"))
        elif measure.scale == "log":
            axis.set_yscale("log")
        if self.scale == "log":
            axis.set_xscale("log")
        axis.set_xticks(range(len(self.values)) if self.scale is None else self.values)
        axis.set_xticklabels(self.labels)
        axis.minorticks_off()
        if self.scale is None:
            axis.set_xlim(-0.5, len(self.values) - 0.5)

    def says(self, measure=OVERSHOOT, at=(0, -1)):
        """`strategy` a / b; ...: a measure at some of the values."""
        table = self.table()
        return "; ".join(f"{strategy} " + " / ".join(number(measure.value(table[strategy][i])) for i in at)
                         for strategy in self.strategies)


def extreme(strategy, **more):
    return {"workload": "B-extreme", "strategy": strategy, "capacity": 1000, **{k.replace("_", "-"): v for k, v in more.items()}}


TOPOLOGY = Sweep(
    "q-topology", "Agreement, overshoot and traffic in four topologies", "topology of 30 nodes",
    ["full", "ring", "random:4", "regions:3"], lambda s, v: extreme(s, topology=v), labels=["full", "ring", "random 4", "3 regions"])
NODE_COUNT = Sweep(
    "q-nodes", "Agreement, overshoot and traffic of 3 to 100 nodes", "nodes", [3, 10, 30, 60, 100],
    lambda s, v: extreme(s, nodes=v), scale="log", count=2)
CAPACITY = Sweep(
    "q-capacity", "Agreement, overshoot and traffic at capacities of 5 to 10,000", "capacity c (tokens)",
    [5, 20, 100, 500, 2000, 10000],
    lambda s, v: {"workload": "B-substantial", "strategy": s, "capacity": v}, scale="log",
    labels=["5", "20", "100", "500", "2k", "10k"],
    measures=[AGREEMENT, OVERSHOOT, BYTES, MEMORY])
REFILL = Sweep(
    "q-refill", "Agreement, overshoot and traffic at refills of 0.1 to 100 tokens a second", "refill (tokens/s, c = 1000)",
    [0.1, 1, 10, 100], lambda s, v: extreme(s, refill=v), scale="log", labels=["0.1", "1", "10", "100"])
DELAY = Sweep(
    "q-delay", "Agreement, overshoot and traffic at delays of 1 to 250 ms", "delay of a link (ms)",
    [1, 10, 50, 250], lambda s, v: extreme(s, delay_ms=v), scale="log", labels=["1", "10", "50", "250"])
LOSS = Sweep(
    "q-loss", "Agreement, overshoot and traffic when messages are lost", "lost messages (%)",
    [0, 0.01, 0.05, 0.1], lambda s, v: extreme(s, loss=v), labels=["0", "1", "5", "10"])
LOST_AT = {"none lost": None, "lost at 1 s": ["1@1"], "lost 1-20 s": ["1@1-20"]}
REGIONS = Sweep(
    "q-regions", "Three regions, one of them lost while the bucket fills", "region 1 of 3 (10 of 30 nodes)", list(LOST_AT),
    lambda s, v: extreme(s, topology="regions:3", lose_region=LOST_AT[v]))
SWEEPS = [TOPOLOGY, NODE_COUNT, CAPACITY, REFILL, DELAY, LOSS, REGIONS]

# ---------------------------------------------------------------------------------------------------------------------
# Maps over two options.

GOSSIP = [100, 300, 1000, 3000]
DELAYS = [1, 10, 50, 250]
WINDOWS = [1, 3, 10, 33, 100]
THRESHOLDS = [3, 10, 30, 100, 2400]
MAP_RUNS = at_most(2)


def heat(axis, table, rows, columns, row_label, column_label, title, most=None):
    """Numbers on grey: the larger the darker, by their logarithms; black would be `most` (their greatest)."""
    shade = numpy.log10(1 + numpy.array(table)) / math.log10(1 + max(1, most or numpy.max(table)))
    axis.imshow(shade, cmap="Greys", vmin=0, vmax=1.3, aspect="auto")
    for i, line in enumerate(table):
        for j, value in enumerate(line):
            dark = shade[i][j] > 0.75
            axis.text(j, i, number(value, 1), ha="center", va="center", color="white" if dark else "black", fontsize=8)
    axis.set_xticks(range(len(columns)))
    axis.set_xticklabels(columns)
    axis.set_yticks(range(len(rows)))
    axis.set_yticklabels(rows)
    axis.set_xlabel(column_label)
    axis.set_ylabel(row_label)
    axis.set_title(title)


def gossip_specs():
    return [extreme(s, gossip_ms=g, delay_ms=d) for s in STRATEGIES for g in GOSSIP for d in DELAYS]


@functools.cache
def gossip_table():
    found = iter(means(gossip_specs(), MAP_RUNS))
    return {s: [[next(found)["overshoot_max"] for _ in DELAYS] for _ in GOSSIP] for s in STRATEGIES}


def draw_gossip():
    table = gossip_table()
    most = max(max(map(max, cells)) for cells in table.values())
    fig, axes = plots.new(columns=2, rows=2, height=2.6)
    for axis, strategy in zip(numpy.ravel(axes), STRATEGIES):
        heat(axis, table[strategy], GOSSIP, DELAYS, "gossip interval (ms)", "delay of a link (ms)", f"{strategy}: overshoot (tokens)", most)
    return plots.save(fig, "q-gossip-delay", "Overshoot for gossip intervals of 0.1 to 3 s and delays of 1 to 250 ms")


def substantial(strategy, **more):
    return {**extreme(strategy, **more), "workload": "B-substantial"}


def fa_specs():
    return [substantial("queue+fa", fa_window=w, fa_threshold_ms=t) for w in WINDOWS for t in THRESHOLDS]


@functools.cache
def fa_table():
    found = means(fa_specs(), MAP_RUNS)
    cell = lambda measure: [[measure.value(found[i * len(THRESHOLDS) + j]) for j in range(len(THRESHOLDS))] for i in range(len(WINDOWS))]
    return cell(OVERSHOOT), cell(BYTES)


def draw_fa():
    over, sent = fa_table()
    fig, axes = plots.new(columns=2, height=3.0)
    heat(axes[0], over, WINDOWS, THRESHOLDS, "window (births)", "threshold (ms)", "queue+fa: overshoot (tokens)")
    heat(axes[1], sent, WINDOWS, THRESHOLDS, "window (births)", "threshold (ms)", "queue+fa: bytes an admitted request")
    return plots.save(fig, "q-fa", "Overshoot and traffic of frequency analysis by its window and threshold")


MARGINS = [0, 1, 2, 4, 8, 16]
MARGIN_GOSSIP = [300, 450, 900]
REJECTED = Measure("rejections (% of one limiter's)", lambda m: 100 * m["rejection_ratio"], "linear")
MARGIN_RUNS = at_most(5)


def margin_specs():
    queues = [{"workload": "D", "strategy": "queue", "gossip-ms": g, "margin": m} for g in MARGIN_GOSSIP for m in MARGINS]
    return queues + [{"workload": "D", "strategy": s} for s in ("counter", "interval")]


def draw_margin():
    found = means(margin_specs(), MARGIN_RUNS)
    fig, axis = plots.new(height=3.4)
    for i, gossip in enumerate(MARGIN_GOSSIP):
        line = found[i * len(MARGINS):(i + 1) * len(MARGINS)]
        memory = [mean["memory_mean_bytes"] for mean in line]
        rejected = [REJECTED.value(mean) for mean in line]
        plots.line(axis, memory, rejected, None, label=f"queue, gossip each {gossip} ms", index=i)
        if i + 1 == len(MARGIN_GOSSIP):
            for margin, x, y in zip(MARGINS, memory, rejected):
                axis.annotate(f"{margin}", (x, y), textcoords="offset points", xytext=(4, -10), fontsize=7.5)
    for mean, strategy in zip(found[-2:], ("counter", "interval")):
        plots.line(axis, [mean["memory_mean_bytes"]], [REJECTED.value(mean)], strategy, linestyle="none", markersize=7)
    axis.set_xscale("log")
    plots.finish(axis, "memory of a node (bytes)", REJECTED.label, loc="lower left")
    return plots.save(fig, "q-margin", "Precision on data set D by the memory that a safe margin takes")


# ---------------------------------------------------------------------------------------------------------------------
# Bounds. All in tokens.

# What says who asks when; `split` is the strategy that costs least to ask.
DRAWN_BY = ("workload", "capacity", "refill", "users", "retentions")


def asked_by(spec):
    return {"strategy": "split", **{key: spec[key] for key in DRAWN_BY if key in spec}}


@functools.lru_cache(maxsize=64)
def times_of(seed, *spec):
    """For each user the times of its requests, in ms, whoever limits it."""
    users = defaultdict(list)
    for decision in runs.decisions(dict(spec), seed):
        users[decision.user].append(decision.time_ms)
    return list(users.values())


def arrivals(spec, window_ms, count):
    """The most requests of one user within a window, besides the one that opens it."""
    most = 0
    for seed in range(1, count + 1):
        for times in times_of(seed, *sorted(asked_by(spec).items())):
            for first, time in enumerate(times):
                if first + most >= len(times):
                    break
                most = max(most, bisect.bisect_left(times, time + window_ms, first) - first - 1)
    return most


def capacity(spec):
    return spec.get("capacity", 5 if spec["workload"] in ("D", "logins") else 100)


def refill(spec):
    return spec.get("refill", 1 if spec["workload"] == "D" else 0.001 * capacity(spec))


def slack_at(spec, second, count):
    """The most that one central limiter has left at that time, of workloads with one user."""
    most = 0
    for seed in range(1, count + 1):
        tat, interval = 0.0, 1 / refill(spec)
        decided = runs.decisions(asked_by(spec), seed)
        start = decided[0].time_ms
        for decision in decided:
            at = (decision.time_ms - start) / 1000
            if at < second and decision.central:
                tat = max(tat, at) + interval
        most = max(most, capacity(spec) - max(0, math.ceil((tat - second) / interval)))
    return most


# What waits for company while the shares fill: 3 % of the slack, which is below N when it matters.
WAITING = math.ceil(0.03 * NODES)


def nodes(spec):
    return spec.get("nodes", NODES)


HEARTBEAT = 500
PEER_TIMEOUT = 2000

Bound = namedtuple("Bound", "text value")


def by_delay(spec, count):
    delay = spec.get("delay-ms", 1)
    found = arrivals(spec, delay, count)
    return Bound(f"a({number(delay)} ms) + w = {found} + {WAITING}", found + WAITING)


def by_loss(spec, count):
    delay = spec.get("delay-ms", 1)
    first = by_delay(spec, count).value
    lost = math.ceil(spec["loss"] * arrivals(spec, HEARTBEAT + 2 * delay, count))
    return Bound(f"a({number(delay)} ms) + w + p a({number(HEARTBEAT + 2 * delay)} ms) = {first} + {lost}", first + lost)


def by_skew(spec, count):
    return Bound("2 net", 2)


def by_crash(spec, count):
    first, share = by_delay(spec, count).value, math.ceil(capacity(spec) / nodes(spec))
    crashes = len(spec["crash"])
    times = f"{crashes} " if crashes > 1 else ""
    return Bound(f"{times}c/N + a(1 ms) + w = {crashes * share} + {first}", crashes * share + first)


def cut_of(spec):
    return [float(part) for part in spec["partition"][0].split(":")[0].split("-")]


def by_open(spec, count):
    begin, end = cut_of(spec)
    slack, more = slack_at(spec, begin, count), math.ceil(refill(spec) * (end - begin)) + by_delay(spec, count).value
    # Neither side knows what the other had not sent: no more than the slack, nor than what was used.
    unsent = min(slack, capacity(spec) - slack)
    return Bound(f"slack + unsent at the cut + refill + a(1 ms) + w = {slack} + {unsent} + {more}", slack + unsent + more)


def unnoticed(spec, count):
    window = spec.get("peer-timeout-ms", PEER_TIMEOUT) + spec.get("heartbeat-ms", HEARTBEAT)
    return window, arrivals(spec, window, count)


def by_share(spec, count):
    begin, _ = cut_of(spec)
    whole = by_open(spec, count)
    window, passed = unnoticed(spec, count)
    part = math.ceil(slack_at(spec, begin, count) / 2)
    least = min(whole.value, part + passed)
    return Bound(f"slack/2 + a({number(window)} ms) = {part} + {passed}, at most {whole.value}", least)


def by_closed(spec, count):
    whole = by_open(spec, count)
    window, passed = unnoticed(spec, count)
    return Bound(f"a({number(window)} ms) = {passed}, at most {whole.value}", min(whole.value, passed))


def by_claim(spec, count):
    return Bound("5", 5)


def by_large(spec, count):
    # Two large hits of a user within a millisecond are not in these workloads.
    value = math.ceil((NODES - 1) / NODES * capacity(spec))
    return Bound(f"c (N-1)/N = {value}", value)


def by_lopsided(spec, count):
    return Bound("4 (2143 without the rule)", 4)


# ---------------------------------------------------------------------------------------------------------------------
# The table of faults.

Row = namedtuple("Row", "group spec bound count under beside")


def row(group, workload, c, bound=by_delay, count=3, under=None, beside=True, **options):
    """`under`: a bound of the undershoot, where there is one. `beside`: whether the counter runs too, or with what."""
    spec = {"workload": workload, "strategy": "interval", **{k.replace("_", "-"): v for k, v in options.items()}}
    if c is not None:
        spec["capacity"] = c
    return Row(group, spec, bound, at_most(count), under, beside)


SLOW = {"heartbeat_ms": 5000, "peer_timeout_ms": 20000}  # of rows that last for hours: most of the time would go there
B_ALL = ["B-extreme", "B-substantial", "B-barely", "B-just", "B-unlimited"]
NO_FAULT = "no faults, 1 ms"


def no_fault_rows():
    for c in (100, 1000):
        yield row(NO_FAULT, "A", c)
        for workload in B_ALL:
            yield row(NO_FAULT, workload, c)
        yield row(NO_FAULT, "C", c, count=1)
    yield row(NO_FAULT, "D", 5)


def fault_rows():
    for delay in (50, 250):
        for workload, c in (("A", 100), ("A", 1000), ("B-extreme", 100), ("B-extreme", 1000), ("B-barely", 1000), ("D", 5)):
            yield row(f"{delay} ms", workload, c, delay_ms=delay)
    for loss, delay in ((0.01, 1), (0.1, 1), (0.1, 50)):
        for workload, c in (("A", 1000), ("B-extreme", 100), ("B-extreme", 1000), ("B-barely", 1000), ("D", 5)):
            yield row(f"{100 * loss:g} % lost, {delay} ms", workload, c, by_loss, loss=loss, delay_ms=delay)
    for skew, name in (("50", "clocks off by up to 50 ms"), ("alternate:50", "clocks off by 50 ms, either way in turn")):
        for workload, c in (("A", 1000), ("B-extreme", 100), ("B-extreme", 1000), ("B-barely", 1000), ("D", 5)):
            yield row(name, workload, c, by_skew, under=2, skew_ms=skew)
    for at, name in (("", "a node crashes"), ("-20", "a node crashes, and is back empty")):
        yield row(name, "B-extreme", 100, by_crash, crash=[f"3@1{at}"])
        yield row(name, "B-extreme", 1000, by_crash, crash=[f"3@1{at}"])
        yield row(name, "B-barely", 1000, by_crash, crash=[f"3@10{at}"])
        yield row(name, "A", 1000, by_crash, crash=[f"3@5{at}"])
    yield row("three nodes crash at once", "B-extreme", 1000, by_crash, crash=["3@1", "4@1", "5@1"])
    for few in (3, 5):
        for workload in ("B-extreme", "B-barely", "B-just"):
            yield row(f"a node of {few} crashes", workload, 1000, by_crash, nodes=few, crash=["2@1" if workload == "B-extreme" else "2@20"])
    for policy, bound in (("open", by_open), ("share", by_share), ("closed", by_closed)):
        name = f"halves apart for 10 s, {policy}"
        yield row(name, "B-extreme", 1000, bound, partition=["1-11"], partition_policy=policy)
        yield row(name, "B-substantial", 1000, bound, partition=["12-22"], partition_policy=policy)
        yield row(name, "B-barely", 1000, bound, partition=["40-50"], partition_policy=policy)
    for workload, cut in (("B-extreme", "1-11"), ("B-substantial", "12-22")):
        yield row("the same, share, noticed after 0.5 s", workload, 1000, by_share, partition=[cut],
                  partition_policy="share", peer_timeout_ms=500, heartbeat_ms=100)


def steady_rows():
    for share in (0.2, 0.5, 0.8, 0.95):
        for c in (100, 1000):
            yield row(f"steady at {share} of the rate", f"steady:{share}", c, count=1, under=0, **SLOW)
    for c in (100, 1000):
        yield row("steady at 1.1, 16 retentions", "steady:1.1", c, count=1, under=max(2, 0.008 * c), retentions=16, **SLOW)
    for c, users, options in ((100, 10, {}), (1000, 3, {}), (1000, 3, {"refill": 100})):
        name = "one node at 0.9, the others at 0.2" + (", 100 tokens/s" if options else "")
        yield row(name, "steady-lopsided", c, by_lopsided, count=1, users=users, **options, **SLOW)


def weighted_rows():
    for large in ("admit", "claim"):
        for kind in ("one", "uniform-tenth", "uniform", "bimodal", "lognormal"):
            for c in (100, 1000):
                bound = by_delay if kind == "one" else by_claim if large == "claim" else by_large
                yield row(f"weighted hits, {large}", f"weighted:{kind}", c, bound, count=1, large_hits=large,
                          beside=large == "admit", users=20)


def many_rows():
    for c in (3, 5, 10):
        yield row("many keys", "logins", c, count=1, users=100_000, beside={"users": 10_000})
    for c in (100, 1000):
        yield row("a thousand hot keys", "hot", c, count=1, beside={"users": 100})


@functools.cache
def rows():
    return [*no_fault_rows(), *fault_rows(), *steady_rows(), *weighted_rows(), *many_rows()]


OWN_OPTIONS = ("partition-policy", "large-hits", "heartbeat-ms", "peer-timeout-ms")  # which the counter doesn't have


def counter_spec(of):
    """What the counter runs beside a row, and how often; None if it doesn't."""
    if not of.beside:
        return None
    spec = {key: value for key, value in of.spec.items() if key not in OWN_OPTIONS}
    spec["strategy"] = "counter"
    if isinstance(of.beside, dict):
        spec.update(of.beside)
    return spec, min(of.count, 3)


def worst(result, field):
    return max(run[field] for run in result["runs"])


def least(result, field):
    return min(run[field] for run in result["runs"])


Outcome = namedtuple("Outcome", "row result bound counter")


@functools.cache
def outcomes():
    found = []
    for one in rows():
        result = runs.results([one.spec], one.count)[0]
        beside = counter_spec(one)
        counter = runs.results([beside[0]], beside[1])[0] if beside else None
        found.append(Outcome(one, result, one.bound(one.spec, one.count), counter))
    return found


def past_bound(outcome):
    under = outcome.row.under
    return (worst(outcome.result, "overshoot_max") > outcome.bound.value
            or under is not None and worst(outcome.result, "undershoot_max") > under)


def findings():
    return [outcome for outcome in outcomes() if past_bound(outcome)]


def fault_line(outcome):
    one, result, mean = outcome.row, outcome.result, outcome.result["mean"]
    under = number(worst(result, "undershoot_max")) + (f" (<= {number(one.under)})" if one.under is not None else "")
    mark = " **past it**" if past_bound(outcome) else ""
    beside = "- | -"
    if outcome.counter is not None:
        beside = f"{rejections(outcome.counter['mean'])} | {number(worst(outcome.counter, 'overshoot_max'))}"
    agreement = 100 * least(result, "agreement")
    return (f"| {one.group} | {one.spec['workload']} | {capacity(one.spec)} | {agreement:.2f} | {rejections(mean)} "
            f"| {number(worst(result, 'overshoot_max'))}{mark} | {outcome.bound.text} | {under} "
            f"| {number(BYTES.value(mean))} | {number(MESSAGES.value(mean))} | {beside} |")


def rejections(mean):
    """Those that were made, of those that one central limiter makes."""
    due = mean["central_rejected"]
    return f"{number(mean['rejected'], 1)} of {number(due, 1)}" if due or mean["rejected"] else "none due"


def fault_table():
    lines = ["| | workload | c | agreement, % | rejections, of those due | overshoot | bound | undershoot | bytes | messages"
             " | counter's rejections | counter's overshoot |",
             "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|"]
    return "\n".join(lines + [fault_line(outcome) for outcome in outcomes()])


# Stated in the design: how many times fewer bytes, and how many times less memory, than the counter.
STATED = {"A": (8, 15), "B": (2.5, 4), "C": (100, 12)}


def no_fault():
    return [outcome for outcome in outcomes() if outcome.row.group == NO_FAULT]


def name_of(outcome):
    return f"{outcome.row.spec['workload']} (c = {capacity(outcome.row.spec)})"


def ratio(outcome, *fields):
    """The counter's over interval's, of the sum of these."""
    ours, theirs = (sum(mean[field] for field in fields) for mean in (outcome.result["mean"], outcome.counter["mean"]))
    return theirs / ours if ours else math.inf


def stated(outcome):
    """(field, what is stated of the ratio) for bytes and memory."""
    return zip(("sent_bytes", "memory_mean_bytes"), STATED.get(outcome.row.spec["workload"][0], (None, None)))


def ratio_table():
    lines = ["| workload | c | agreement, % | at least | counter's, % | bytes, counter's / interval's | at least | memory, the same | at least |",
             "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for outcome in no_fault():
        shown = []
        for field, least_stated in stated(outcome):
            value = ratio(outcome, field)
            shown.append(("nothing sent" if math.isinf(value) else number(value, 1))
                         + (" **below it**" if least_stated and value < least_stated else "") + f" | {least_stated or '-'}")
        lines.append(f"| {outcome.row.spec['workload']} | {capacity(outcome.row.spec)} | {100 * least(outcome.result, 'agreement'):.2f} | 99.9 "
                     f"| {100 * outcome.counter['mean']['agreement']:.2f} | {' | '.join(shown)} |")
    return "\n".join(lines)


def missed():
    """Sentences about each kind of ratio that is below what is stated."""
    found = {"sent_bytes": [], "memory_mean_bytes": []}
    for outcome in no_fault():
        for field, least_stated in stated(outcome):
            if least_stated and ratio(outcome, field) < least_stated:
                found[field].append(f"{name_of(outcome)}, {number(ratio(outcome, field), 1)} instead of {least_stated}")
    said = []
    for what, field in (("bytes", "sent_bytes"), ("memory", "memory_mean_bytes")):
        said.append(f"The goal for {what} is missed on {'; '.join(found[field])}." if found[field] else f"The goals for {what} are met.")
    return " ".join(said)


# Heartbeats, what a node holds whatever the traffic, and messages: what the ratios leave out.
ALL_BYTES = ("sent_bytes", "heartbeat_bytes")
ALL_MEMORY = ("memory_mean_bytes", "memory_fixed_bytes")
ALL_MESSAGES = ("messages", "heartbeat_messages")


def whole_table():
    lines = ["| workload | c | bytes, `interval`: data + heartbeats | counter's | counter's / all of interval's"
             " | messages, `interval`: data + heartbeats | counter's | counter's / interval's data"
             " | memory of a node, `interval`: keys + fixed | counter's: users + fixed | counter's / interval's, all |",
             "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for outcome in no_fault():
        ours, theirs = outcome.result["mean"], outcome.counter["mean"]
        both = lambda mean, fields, show: " + ".join(show(mean[field]) for field in fields)  # noqa: E731
        messages = ratio(outcome, "messages")
        lines.append(f"| {outcome.row.spec['workload']} | {capacity(outcome.row.spec)} | {both(ours, ALL_BYTES, size)} | {size(theirs['sent_bytes'])} "
                     f"| {number(ratio(outcome, *ALL_BYTES))} | {both(ours, ALL_MESSAGES, number)} | {number(theirs['messages'])} "
                     f"| {'nothing sent' if math.isinf(messages) else number(messages)} | {both(ours, ALL_MEMORY, size)} "
                     f"| {both(theirs, ALL_MEMORY, size)} | {number(ratio(outcome, *ALL_MEMORY))} |")
    return "\n".join(lines)


def worse(*fields):
    """Where `interval` uses more than the counter, and how many times as much."""
    found = [(ratio(outcome, *fields), name_of(outcome)) for outcome in no_fault()]
    return ", ".join(f"{name} {number(1 / value, 1)}x" for value, name in found if 0 < value < 1) or "none"


# ---------------------------------------------------------------------------------------------------------------------
# Speed of the lab.

SPEED = ["counter", "queue", "queue+linf", "queue+fa", "queue+fa+linf", "sliding-log", "split", "split+rebalance", "interval",
         "central-queue"]


def speed_specs():
    return [{"workload": "C", "strategy": strategy, "capacity": 100} for strategy in SPEED]


def speed_table():
    lines = ["| strategy | requests | seconds | requests a second | frames (heartbeats too) a second |", "|---|--:|--:|--:|--:|"]
    for strategy, mean in zip(SPEED, means(speed_specs(), 1)):
        seconds = mean["wall_ms"] / 1000
        frames = (mean["messages"] + mean["heartbeat_messages"]) / seconds
        lines.append(f"| {strategy} | {mean['requests']:,.0f} | {seconds:.1f} | {mean['requests_per_wall_s']:,.0f} | {frames:,.0f} |")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------------
# The page.

def wanted():
    found = [(spec, sweep.count) for sweep in SWEEPS for spec in sweep.specs()]
    found += [(spec, MAP_RUNS) for spec in gossip_specs() + fa_specs()]
    found += [(spec, MARGIN_RUNS) for spec in margin_specs()]
    found += [(spec, 1) for spec in speed_specs()]
    for one in rows():
        found.append((one.spec, one.count))
        beside = counter_spec(one)
        if beside:
            found.append(beside)
    return found


def wanted_decisions():
    """For runs.make with ending=".decisions": what bounds are counted from."""
    rest = (by_skew, by_claim, by_large, by_lopsided)
    return [(asked_by(one.spec), one.count) for one in rows() if one.bound not in rest]


def sweep_section(title, sweep, text, what=OVERSHOOT):
    at = (0, -1) if sweep.scale else tuple(range(len(sweep.values)))
    ends = " / ".join(sweep.labels[i] for i in at)
    example = runs.command(sweep.make("interval", sweep.values[-1]), sweep.count)
    return title, (f"{text}\n\n{sweep.draw()}\n{what.label[0].upper()}{what.label[1:]}, at {ends}: "
                   f"{sweep.says(what, at)}. Means of {sweep.count} runs of `B-{sweep_workload(sweep)}`, e.g. `{example}`.\n")


def sweep_workload(sweep):
    return sweep.make("interval", sweep.values[0])["workload"].removeprefix("B-")


def open_questions():
    yield sweep_section("Topology", TOPOLOGY, (
        "The thesis gossips among all 30 nodes. In a ring, or with four random links a node, news travel by way of others; in"
        " three regions a node is 1 ms from its own and 80-150 ms from the rest. A node's links are all it gossips with; `interval`"
        " passes records on where a node has no link to their origin, and pays for that in messages."))
    yield sweep_section("Number of nodes", NODE_COUNT, (
        "Gossip tells one neighbour at a time, so what a node doesn't know grows with their number; a share of the slack"
        " shrinks with it, so `interval` sends more and knows as much as before."))
    yield gossip_section()
    yield sweep_section("Capacity", CAPACITY, (
        "With c below the number of nodes the share of each is one token, and `interval` sends every admitted request: the"
        " price of small limits. The window of frequency analysis is c/30, at least 1. Traffic of 3.2c requests a minute."))
    yield sweep_section("Refill", REFILL, (
        "From what the thesis takes (0.001c a second) to a bucket that is full again in ten seconds: the faster it refills, the"
        " more of what is admitted is admitted one by one, at the limit, where `interval` sends each. A birth in the thesis' queue is"
        " dead after 1/refill unless others stand before it: at 100 a second many are dead before they are gossiped."))
    yield fa_section()
    yield margin_section()
    yield sweep_section("Delay", DELAY, (
        "What a limiter can't know is what was admitted elsewhere within a delay; gossip adds its intervals to that."))
    yield sweep_section("Loss", LOSS, (
        "The thesis' designs send a delta once: what is lost stays lost, but for what the next one of that user carries again"
        " (counter) or never does (queue). `interval` numbers its records, asks for those that it misses, and pays for it in"
        " messages."))
    yield sweep_section("Regions, and one of them lost", REGIONS, (
        "Ten of thirty nodes in each of three regions, 80-150 ms apart; one region goes down while the bucket of 1000 tokens"
        " fills, for good or for 19 s. Its users are served by the others from then on; the nodes come back empty, and"
        " `interval` copies the state of a peer."))


def gossip_section():
    table = gossip_table()
    span = {name: (min(map(min, cells)), max(map(max, cells))) for name, cells in table.items()}
    said = "; ".join(f"{name} {number(low)} to {number(high)}" for name, (low, high) in span.items())
    return "Gossip interval and delay", (
        "Tokens that the worst user got above the limit. A shorter gossip interval helps the thesis' designs in proportion, until"
        " the delay of the links is longer than it; frequency analysis does not wait for it. `interval` pushes when its share"
        " is used up, and gossips digests only.\n\n"
        f"{draw_gossip()}\nFrom the best cell to the worst: {said}. Means of {MAP_RUNS} runs of `B-extreme`, c = 1000, e.g."
        f" `{runs.command(extreme('queue+fa', gossip_ms=1000, delay_ms=50), MAP_RUNS)}`.\n")


def fa_section():
    over, sent = fa_table()
    flat = [(over[i][j], sent[i][j], WINDOWS[i], THRESHOLDS[j]) for i in range(len(WINDOWS)) for j in range(len(THRESHOLDS))]
    best, most = min(flat), max(flat)
    ours = means([substantial("interval")], MAP_RUNS)[0]
    return "Window and threshold of frequency analysis", (
        "Frequency analysis sends a delta state at once when the last `window` births in it are closer together, on average,"
        " than the threshold. A delta state also holds what others told this node, so births in it are as close together as those of"
        " all nodes. A window of 1 sends each birth as soon as it is admitted.\n\n"
        f"{draw_fa()}\nLeast overshoot: {number(best[0])} tokens for {number(best[1])} bytes an admitted request (window"
        f" {best[2]}, threshold {best[3]} ms); most: {number(most[0])} for {number(most[1])} (window {most[2]}, threshold"
        f" {most[3]} ms). `interval`, which has neither: {number(ours['overshoot_max'])} for {number(BYTES.value(ours))}. Means of"
        f" {MAP_RUNS} runs of `B-substantial`, c = 1000 (53 requests a second), e.g."
        f" `{runs.command(substantial('queue+fa', fa_window=10, fa_threshold_ms=30), MAP_RUNS)}`.\n")


def margin_section():
    found = means(margin_specs(), MARGIN_RUNS)
    said = []
    for i, gossip in enumerate(MARGIN_GOSSIP):
        without, one, most = (found[i * len(MARGINS) + at] for at in (0, 1, len(MARGINS) - 1))
        said.append(f"each {gossip} ms: {number(REJECTED.value(without))} % of the rejections without, {number(REJECTED.value(one))} %"
                    f" with a margin of 1 and {number(one['memory_mean_bytes'] / without['memory_mean_bytes'], 1)} times the memory,"
                    f" {number(REJECTED.value(most))} % with {MARGINS[-1]} and"
                    f" {number(most['memory_mean_bytes'] / without['memory_mean_bytes'], 1)} times the memory")
    counter, ours = found[-2:]
    return "What a safe margin costs", (
        "The thesis' remedy for its data set D: a refill leaves some dead births in the queue, so that late ones still find"
        " what they belong to. The numbers beside the points are margins, in births. `interval` keeps what ended less than 2cT"
        " ago, folded into busy intervals. Rejections are compared, since of this user's requests few are to be rejected: a limiter"
        " that rejects none agrees on most.\n\n"
        f"{draw_margin()}\nQueue, gossip {'; '.join(said)}. Counter: {number(REJECTED.value(counter))} % in"
        f" {number(counter['memory_mean_bytes'])} bytes; `interval`: {number(REJECTED.value(ours))} % in"
        f" {number(ours['memory_mean_bytes'])}. Means of {MARGIN_RUNS} runs of D, e.g."
        f" `{runs.command({'workload': 'D', 'strategy': 'queue', 'gossip-ms': 900, 'margin': 4}, MARGIN_RUNS)}`.\n")


OPEN_TEXT = """\
Each for the counter, the queue without and with frequency analysis, and `interval`; c = 1000, 30 nodes and 1 ms unless said. In
most of them one user asks for 21.5c within a minute (B-extreme): a burst that nodes must hear of while it fills the bucket."""

FAULTS_TEXT = """\
`interval` under faults, 30 nodes and 1 ms unless said. The worst of the runs for agreement, overshoot and undershoot, beside
the bound that the design states for it; rejections, bytes and messages are means, the latter two a request admitted and without
heartbeats.

- *rejections, of those due*: how many requests were rejected, of how many one central limiter rejects. After a crash they can
  be few though agreement is high: what a dead node had not sent is lost, and a user who exceeds the limit by less is not limited.
  The fewer nodes, the more that is.
- *overshoot*: tokens that a user got above what the limit allows at any moment; *undershoot*: tokens withheld that one
  limiter would have given. Both are net: an early denial that a later admission pays back is in neither. Agreement counts
  both of them, so users steady just above the rate, whose every request is a close call, are judged by net tokens.
- *a(d)* is the most that one user asks for within d, after the request that opens it, counted in the workload itself:
  with hits of 1 and no delay the bound is 0. *w* = {waiting} is 3 % of N tokens, which may be admitted while a record waits for
  company. *p* is the share of lost messages, made good after a heartbeat ({heartbeat} ms) at the latest; *c/N* the most that a
  node holds unsent of a key. A split is noticed after {timeout} ms without a heartbeat.
- A partition's overshoot is bounded by what was left in the bucket at the cut, what the sides had not told each other by then, and
  what is refilled meanwhile. *share* counts the births of a side as if the other did the same; *closed* denies on both sides when
  they are halves, so its undershoot is what it promises.
- Steady users and the lopsided one have heartbeats each 5 s: their rows last for hours, nothing else changes.
- The counter has smaller workloads beside `logins` (10,000 keys) and `hot` (100 keys). It has no policy for partitions.
- 100,000 keys log in here, not the million that `logins` has by itself: those take ten times the time and memory."""


def faults_section():
    past = findings()
    if past:
        cases = "\n".join(f"- {one.row.group}: overshoot {number(worst(one.result, 'overshoot_max'))}, undershoot"
                          f" {number(worst(one.result, 'undershoot_max'))}, bound {one.bound.text}:"
                          f" `{runs.command(one.row.spec, one.row.count)}`" for one in past)
        verdict = f"{len(past)} of {len(outcomes())} rows are past their bound:\n\n{cases}\n"
    else:
        verdict = f"All {len(outcomes())} rows are within their bound.\n"
    text = FAULTS_TEXT.format(waiting=WAITING, heartbeat=HEARTBEAT, timeout=f"{PEER_TIMEOUT:,}")
    return "`interval` under faults", f"{text}\n\n{fault_table()}\n\n{verdict}"


def speed_section():
    worst_wall = max(zip([mean["wall_ms"] / 1000 for mean in means(speed_specs(), 1)], SPEED))
    return "Speed of the lab", (
        "All of C (5000 users over an hour) on 30 nodes, c = 100, one run on one core while the others are at work too:\n\n"
        f"{speed_table()}\n\nThe slowest, {worst_wall[1]}, takes {worst_wall[0]:.0f} s. With c = 1000 there are four times the"
        f" requests: {', '.join(slow_lines())}.\n")


def slow_lines():
    names = ("counter", "interval")
    found = means([{"workload": "C", "strategy": name, "capacity": 1000} for name in names], 1)
    return [f"{name} {mean['wall_ms'] / 1000:.0f} s" for name, mean in zip(names, found)]


def sections():
    parts = ["## The questions that the thesis leaves open", OPEN_TEXT]
    parts += [f"### {title}\n\n{markdown}" for title, markdown in open_questions()]
    parts += [f"## {title}\n\n{markdown}" for title, markdown in (faults_section(), speed_section())]
    return "\n\n".join(part.strip("\n") for part in parts)


if __name__ == "__main__":
    runs.make(wanted())
    runs.make(wanted_decisions(), ".decisions")
    print(sections())
