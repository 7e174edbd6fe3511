"""The thesis' figures, drawn from runs of this lab, each with the thesis' numbers beside ours.

sections() draws all of them and returns Sections in the order of the page. The thesis keeps its capacity c to itself; its
figures are drawn here with c = 1000, data set D with its own c = 5.
"""

import hashlib
import random
from collections import namedtuple

import numpy

import plots
import runs

CAPACITY = 1000
RUNS = runs.RUNS
# Minutes of one core each: one run shows it, since 5000 users average themselves.
RUNS_C = 1

# markdown; rows for the table "the thesis beside ours".
Section = namedtuple("Section", "title markdown rows")
# same: do both point the same way? why: what is behind a difference.
Row = namedtuple("Row", "figure what thesis ours same why")

B = ("B-extreme", "B-substantial", "B-barely", "B-just", "B-unlimited")
ON_A = ("counter", "queue", "queue+linf", "queue+fa", "queue+fa+linf", "interval")
ON_B = ("counter", "queue+fa", "queue+fa+linf", "interval")
ON_UNLIMITED = ("counter", "queue", "interval")
ON_C = ("counter", "queue", "queue+fa", "interval")
CRASHES = ("0@100-130", "1@100-130", "2@100-130")
# The same, but back one after the other.
CRASHES_APART = ("0@100-130", "1@100-131", "2@100-132")
GOSSIP_MS = (300, 450, 900)
MARGIN = 2
DELAYS_MS = (1, 10, 50, 100, 250)


def spec(workload, strategy, capacity=CAPACITY, **options):
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return {"workload": workload, "strategy": strategy, "capacity": 5 if workload == "D" else capacity, **named}


def percent(share, digits=1):
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def times(ratio):
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def more(ratio):
    """A ratio as the thesis says it: so much more or less than the other."""
    return f"{100 * abs(ratio - 1):.1f} % {'more' if ratio >= 1 else 'less'}"


def size(number):
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f} B"


def count(number):
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def ran(one, number=RUNS):
    return f"`{runs.command(one, number)}`"


def means(specs, number=RUNS):
    return [result["mean"] for result in runs.results(specs, number)]


# ---- 4.1, 4.2: the sliding log and the token bucket, request by request

def recording(lines, name, header="time_ms,user"):
    """A recording for --replay; its name carries its contents, by which the runs of it are kept."""
    text = header + "\n" + "\n".join(lines) + "\n"
    folder = runs.RESULTS.parent / "recordings"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.csv"
    if not path.exists():
        path.write_text(text)
    return str(path.relative_to(runs.ROOT))


def replay(path, strategy, capacity, refill, **options):
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return {"replay": path, "strategy": strategy, "capacity": capacity, "refill": refill, **named}


def freed_at(admitted, strategy, capacity):
    """When the tokens of these births (in seconds) are free again, at one token a second."""
    if strategy == "sliding-log":
        return [birth + capacity for birth in admitted]
    deaths = []
    for birth in admitted:
        deaths.append(max(birth, deaths[-1] if deaths else birth) + 1)
    return deaths


# The figure's requests start at a whole second that is far from 0.
EPOCH_MS = 1_600_000_000_000


def dots(name, seconds, until, alt):
    path = recording([f"{EPOCH_MS + round(1000 * second)},user" for second in seconds], name)
    fig, axes = plots.new(rows=2, height=1.55, width=6.6, sharex=True)
    rejected = {}
    for axis, strategy, title in zip(axes, ("sliding-log", "queue"), ("sliding log", "token bucket")):
        decided = runs.decisions(replay(path, strategy, 4, 1, nodes=1))
        at = [(one.time_ms - EPOCH_MS) / 1000 for one in decided]
        admitted = [time for time, one in zip(at, decided) if one.admitted]
        denied = [time for time, one in zip(at, decided) if not one.admitted]
        rejected[strategy] = len(denied)
        freed = freed_at(admitted, strategy, 4)
        stacks = {}

        def stacked(time, stacks=stacks):
            stacks[time] = stacks.get(time, -1) + 1
            return stacks[time] * 0.55

        axis.scatter(admitted, [stacked(t) for t in admitted], s=30, color="#0072b2", label="admitted", zorder=3)
        axis.scatter(denied, [stacked(t) for t in denied], s=22, facecolors="none", edgecolors="#d55e00", label="denied", zorder=3)
        shown = [time for time in freed if time <= until]
        axis.scatter(shown, [-0.75] * len(shown), s=30, marker="x", color="#444444", label="token freed", zorder=3)
        for birth, death in zip(admitted, freed):
            if death <= until:
                axis.annotate("", (death, -0.62), (birth, 0), arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#999999"})
        axis.set_ylim(-1.2, max(stacks.values(), default=0) * 0.55 + 0.6)
        axis.set_yticks([])
        plots.finish(axis, "time (s)" if axis is axes[1] else "", "", f"{title}: {len(admitted)} admitted, {len(denied)} denied", legend=False)
        axis.set_ylabel("requests")
    axes[0].set_xlim(-0.5, until + 0.5)
    axes[0].set_xticks(range(0, until + 1))
    axes[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.35))
    return plots.save(fig, name, alt), rejected, path


def section_4_1_and_4_2():
    # "Infinitely often": five a second, until the log's fourth window is full.
    often = [tick / 5 for tick in range(0, 64)]
    first, rejected_often, _ = dots("fig-4-01", often, 13, "Five requests a second, admitted or denied by a sliding log and a token bucket of 4")
    # Four at once up to the second before the first is freed by the log, the fifth in between.
    spread = [0, 1.25, 2.5, 3, 3.75]
    second, rejected, path = dots("fig-4-02", spread, 8, "Five requests of which the sliding log denies the fifth and the token bucket none")
    log, bucket = rejected["sliding-log"], rejected["queue"]
    same = rejected_often["sliding-log"] == rejected_often["queue"]
    text = f"""Capacity 4, one token a second, one node. Where requests never cease (five each second, figure 4.1) both
algorithms have admitted as many whenever a window of the log is full, in other patterns: the bucket one a second, the log four
in a row. Where they come further apart (figure 4.2) the log still holds all four births when the fifth request comes, the bucket has freed
tokens meanwhile: the log denies {log}, the bucket {bucket}.

{first}
{second}
Run: `bin/weir-lab run --replay {path} --strategy sliding-log --nodes 1 --capacity 4 --refill 1` (and `queue`).
"""
    rows = [Row("4.1", "requests denied by log and bucket, endless requests", "as many", f"{rejected_often['sliding-log']} and {rejected_often['queue']}", same, ""),
            Row("4.2", "requests denied by log and bucket", "1 and 0", f"{log} and {bucket}", (log, bucket) == (1, 0), "")]
    return Section("Sliding log and token bucket (4.1, 4.2)", text, rows)


# ---- 4.6

def section_4_6():
    one = spec("A", "central-queue")
    users = {}
    for decided in runs.decisions(one):
        tally = users.setdefault(decided.user, [0, 0])
        tally[0] += 1
        tally[1] += not decided.central
    ordered = sorted(users.values(), reverse=True)
    total = sum(asked for asked, _ in ordered) / CAPACITY
    fig, axis = plots.new()
    places = numpy.arange(1, len(ordered) + 1)
    axis.bar(places - 0.2, [asked / CAPACITY for asked, _ in ordered], 0.4, label="requests", color="#0072b2")
    axis.bar(places + 0.2, [denied / CAPACITY for _, denied in ordered], 0.4, label="denied by the central limiter", color="#dddddd",
             edgecolor="#444444", hatch="///", linewidth=0.5)
    axis.set_xticks(places)
    plots.finish(axis, "user", "requests in five minutes (c)")
    shown = plots.save(fig, "fig-4-06", "Requests of each of the ten users of data set A, and how many of them the central limiter denies")
    text = f"""Ten users who exceed the limit within five minutes, {total:.1f}c requests in all (the thesis: 68.3c).

{shown}"""
    return Section("The users of data set A (4.6)", text, [Row("4.6", "requests of data set A", "68.3c", f"{total:.1f}c", True, "drawn to match")])


# ---- rejections over time

def curves(axis, workload, strategies, seconds=(0, None), unit=CAPACITY, requests=True):
    """Rejections so far of each strategy, of the central limiter, and all requests."""
    part = slice(*seconds)
    for at, strategy in enumerate(strategies):
        data = runs.series(spec(workload, strategy))
        if at == 0:
            if requests:
                plots.line(axis, data.time[part], data.so_far("requests")[part] / unit, "requests")
            plots.line(axis, data.time[part], data.so_far("central_rejected")[part] / unit, "central", linewidth=2.2)
        plots.line(axis, data.time[part], data.so_far("rejected")[part] / unit, strategy)


def differences(axis, workload, strategies, seconds):
    """How many rejections each strategy is behind the central limiter."""
    part = slice(*seconds)
    for strategy in strategies:
        data = runs.series(spec(workload, strategy))
        behind = data.so_far("central_rejected") - data.so_far("rejected")
        plots.line(axis, data.time[part], behind[part], strategy)
    axis.axhline(0, color="#000000", linewidth=0.8)


def section_5_1():
    fig, axis = plots.new()
    curves(axis, "A", ("counter",))
    plots.finish(axis, "time (s)", "requests, rejections so far (c)", loc="upper left")
    axis.set_xlim(0, 310)
    shown = plots.save(fig, "fig-5-01", "Requests, the central limiter's rejections and the counter's rejections over five minutes of data set A")
    ratio, agreement = (means([spec("A", "counter")])[0][field] for field in ("rejection_curve_ratio", "agreement"))
    text = f"""Rejections so far of the counter on 30 nodes and of one central limiter. Summed over the points of the curves the
counter reaches {percent(ratio)} of the central limiter's rejections (the thesis' counter 95.7 %, Spotify's own system, which cannot
be drawn here, 91.2 %). The curve flatters: it counts rejections, not which requests they hit; only {percent(agreement)} of the requests
were decided as the central limiter decides.

{shown}
Run: {ran(spec("A", "counter"))}
"""
    rows = [Row("5.1", "counter's rejection curve against the central one, A", "95.7 %", percent(ratio), ratio < 1,
                "the thesis ran this one with Spotify's settings, which it does not give, not those of table 4.1")]
    return Section("Counter and central limiter on A (5.1)", text, rows)


def section_5_2():
    workloads = ("A", *B, "D")
    found = {workload: means([spec(workload, "central-counter")])[0] for workload in workloads}
    disagreements = sum(mean["central_disagreements"] for mean in found.values())
    fig, axis = plots.new()
    counter, queue = (runs.series(spec("A", strategy)) for strategy in ("central-counter", "central-queue"))
    plots.line(axis, counter.time, counter.so_far("rejected") / CAPACITY, "counter", "central counter")
    plots.line(axis, queue.time, queue.so_far("rejected") / CAPACITY, "queue", "central queue", linewidth=2.4, alpha=0.6)
    axis.set_xlim(0, 310)
    plots.finish(axis, "time (s)", "rejections so far (c)")
    shown = plots.save(fig, "fig-5-02", "Rejections of a central counter and a central queue on data set A: one curve on the other")
    text = f"""On one node counter and queue decide alike: {disagreements:.0f} of
{sum(mean['requests'] for mean in found.values()) * RUNS:,.0f} requests of A, B and D were decided differently ({RUNS} runs each). The thesis has
them "nearly identical"; here they are identical once the faults of listing 3.1 are repaired (see the listings' faults below).

{shown}
Run: {ran(spec("A", "central-counter"))}; `central_disagreements` counts them.
"""
    return Section("Central counter and central queue (5.2)", text,
                   [Row("5.2", "requests that central counter and queue decide differently", "nearly none", count(disagreements), disagreements == 0, "")])


def section_5_3():
    fig, axis = plots.new(width=7.2, height=3.8)
    differences(axis, "A", ON_A, (0, 301))
    plots.finish(axis, "time (s)", "rejections behind the central limiter", ncol=2)
    shown = plots.save(fig, "fig-5-03", "How many rejections counter, queue, its extensions and interval are behind the central limiter on data set A")
    found = dict(zip(ON_A, means([spec("A", strategy) for strategy in ON_A])))
    ratio = {strategy: mean["rejection_curve_ratio"] for strategy, mean in found.items()}
    lines = [(f"`{strategy}`", percent(mean["rejection_curve_ratio"], 2), percent(mean["agreement"], 2), count(mean["false_admissions"]),
              count(mean["false_denials"]), count(mean["overshoot_max"])) for strategy, mean in found.items()]
    text = f"""Lower is better, 0 is the central limiter. The queue with frequency analysis stays closest of the thesis' designs;
without it, LINF makes no difference worth naming; with it, LINF costs precision. `interval` lies on the zero line.

{shown}
{table(("on A, c = 1000", "rejection curve", "agreement", "wrongly admitted", "wrongly denied", "worst overshoot (tokens)"), lines)}
Run: {ran(spec("A", "queue+fa"))}
"""
    rows = [Row("5.3", "frequency analysis against the plain queue, A", "closer to central", f"{percent(ratio['queue+fa'], 2)} against {percent(ratio['queue'], 2)}",
                ratio["queue+fa"] > ratio["queue"], ""),
            Row("5.3", "LINF with frequency analysis", "further from central", f"{percent(ratio['queue+fa+linf'], 2)} against {percent(ratio['queue+fa'], 2)}",
                ratio["queue+fa+linf"] < ratio["queue+fa"], ""),
            Row("5.3", "LINF without it", "about the same", f"{percent(ratio['queue+linf'], 2)} against {percent(ratio['queue'], 2)}",
                abs(ratio["queue+linf"] - ratio["queue"]) < 0.005, "")]
    return Section("Distance to the central limiter on A (5.3)", text, rows)


# ---- memory and bandwidth

def usage(name, workload, strategies, alt, width=1, runs_of=RUNS):
    """Two panels, memory and bandwidth of each strategy over time; the highest value of the counter's is 100 %."""
    fig, axes = plots.new(columns=2, height=3.5)
    data = {strategy: runs.series(spec(workload, strategy), runs_of) for strategy in strategies}
    for axis, column, title in zip(axes, ("memory_bytes", "sent_bytes"), ("memory", "bandwidth")):
        peak = plots.binned(data["counter"].columns[column], width).max()
        for strategy in strategies:
            value = 100 * plots.binned(data[strategy].columns[column], width) / peak
            shown = numpy.where(value > 0, value, numpy.nan)
            if numpy.isnan(shown).all():
                axis.plot([], [], label=f"{strategy} (none)", **plots.style(strategy))
                continue
            plots.line(axis, (numpy.arange(len(shown)) + 0.5) * width, shown, strategy)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        plots.finish(axis, "time (s)", f"{title} (% of the counter's peak)", legend=column == "sent_bytes", fontsize=7)
    return plots.save(fig, name, alt)


def area(workload, strategy, column, runs_of=RUNS):
    return float(runs.series(spec(workload, strategy), runs_of).columns[column].sum())


def areas(workload, strategies, runs_of=RUNS):
    """Area under the curve of each strategy over that of the first: (memory, bandwidth)."""
    base = [area(workload, strategies[0], column, runs_of) for column in ("memory_bytes", "sent_bytes")]
    return {strategy: tuple(area(workload, strategy, column, runs_of) / of for column, of in zip(("memory_bytes", "sent_bytes"), base))
            for strategy in strategies}


def area_table(workload, found, runs_of=RUNS):
    lines = []
    for strategy, (memory, sent) in found.items():
        mean = means([spec(workload, strategy)], runs_of)[0]
        converged = "-" if mean["convergence_ms"] is None else f"{mean['convergence_ms'] / 1000:.1f} s"
        lines.append((f"`{strategy}`", times(memory), times(sent), size(mean["memory_mean_bytes"]), size(mean["sent_bytes"]), converged))
    return table((f"on {workload}", "memory, area", "bandwidth, area", "memory of a node", "sent by all", "converged after"), lines)


def section_5_4():
    shown = usage("fig-5-04", "A", ON_A, "Memory and bandwidth over time of counter, queue, its extensions and interval on data set A", width=5)
    found = areas("A", ON_A)
    linf = found["queue+linf"][0] / found["queue"][0]
    linf_fa = found["queue+fa+linf"][0] / found["queue+fa"][0]
    text = f"""As in the thesis, the counter's highest value is 100 %; the axis is logarithmic, since the queues use so much more.
Areas are those under the curves, over the counter's.

{shown}
{area_table("A", found)}
LINF saves {percent(1 - linf)} of the plain queue's memory and {percent(1 - linf_fa)} with frequency analysis (the thesis: 18.3 % and 24 %).
It empties the fullest delta states first. Over the whole run the queue with LINF sends {more(found['queue+linf'][1])} than the counter,
with frequency analysis {more(found['queue+fa'][1])} (the thesis: 31 % and 243 % more).
"""
    rows = [Row("5.4", "memory that LINF saves, plain queue", "18.3 %", percent(1 - linf), linf < 1, ""),
            Row("5.4", "memory that LINF saves, frequency analysis", "24 %", percent(1 - linf_fa), linf_fa < 1, ""),
            Row("5.4", "bandwidth of queue+linf against the counter", "31 % more", more(found["queue+linf"][1]), found["queue+linf"][1] > 1,
                "our users are drawn, and a queue's cost grows with the births in flight"),
            Row("5.4", "bandwidth of queue+fa against the counter", "243 % more", more(found["queue+fa"][1]), found["queue+fa"][1] > 1, "")]
    return Section("Memory and bandwidth on A (5.4)", text, rows)


# ---- data set B

# workload: its figures, its requests, the second from which it is drawn, the thesis' precision (counter, queue) and ratios
# (memory, bandwidth).
LIMITED = {
    "B-extreme": ("5.5", "5.6", "21.5c requests in a minute", 0, (0.969, 0.997), (7.98, 8.83)),
    "B-substantial": ("5.7", "5.8", "3.2c requests in a minute", 0, (0.964, 0.986), (5.13, 4.95)),
    "B-barely": ("5.9", "5.10", "1.1c requests in a minute", 50, (0.100, 0.800), (4.27, 2.15)),
    "B-just": (None, None, "1.07c requests in a minute", 50, (0.100, 0.800), (4.27, 2.15)),
}


def name_of(figure, workload):
    return f"fig-{workload.lower()}" if figure is None else "fig-{}-{:02d}".format(*map(int, figure.split(".")))


def precision_figure(figure, workload, strategies, since):
    fig, axes = plots.new(columns=2)
    # Who is limited at the very end only is looked at there, in requests.
    late = since > 0
    curves(axes[0], workload, strategies, (since, 60), 1 if late else CAPACITY, requests=not late)
    plots.finish(axes[0], "time (s)", "rejections so far" if late else "requests, rejections so far (c)", loc="upper left", fontsize=7)
    differences(axes[1], workload, strategies, (since, 60))
    plots.finish(axes[1], "time (s)", "rejections behind the central limiter", legend=False)
    return plots.save(fig, name_of(figure, workload),
                      f"Requests and rejections over time on {workload}, and how many rejections each limiter is behind the central one")


def section_b(workload):
    precision, cost, requests, since, theirs, their_areas = LIMITED[workload]
    found = dict(zip(ON_B, means([spec(workload, strategy) for strategy in ON_B])))
    shown = precision_figure(precision, workload, ON_B, since)
    used = usage(name_of(cost, workload) if cost else f"{name_of(None, workload)}-usage", workload, ON_B,
                 f"Memory and bandwidth over time on {workload}", width=2)
    ratios = areas(workload, ON_B)
    lines = [(f"`{strategy}`", percent(mean["rejection_curve_ratio"], 2), percent(mean["rejection_ratio"], 2), percent(mean["agreement"], 2),
              count(mean["overshoot_max"])) for strategy, mean in found.items()]
    counter, queue = found["counter"]["rejection_curve_ratio"], found["queue+fa"]["rejection_curve_ratio"]
    of = precision or "5.9"
    said = f"The thesis has {percent(theirs[0])} for the counter and {percent(theirs[1])} for the queue."
    if workload == "B-just":
        said = ("The thesis chose for its barely limited user the one nearest above the limit, with so few rejections that its 10.0 % and "
                "80.0 % may be 1 and 8 of 10. This user exceeds what fits into 60 s by 1 % of c.")
    text = f"""One user, {requests}. {said}

{shown}
{table((f"on {workload}", "rejection curve", "rejections", "agreement", "worst overshoot (tokens)"), lines)}
{used}
{area_table(workload, ratios)}
Run: {ran(spec(workload, "queue+fa"))}
"""
    memory, sent = ratios["queue+fa"]
    label = workload if precision else "B-just (for the thesis' barely)"
    digits = "Erlang terms there, packed bytes here"
    rows = [Row(of, f"counter's rejection curve, {label}", percent(theirs[0]), percent(counter), counter < queue, ""),
            Row(of, f"queue+FA's rejection curve, {label}", percent(theirs[1]), percent(queue), queue > counter, ""),
            Row(of, f"queue+FA+LINF's rejection curve, {label}", "-", percent(found["queue+fa+linf"]["rejection_curve_ratio"]),
                found["queue+fa+linf"]["rejection_curve_ratio"] > counter, "the thesis does not say whether its queue on B runs with LINF")]
    if cost:
        rows += [Row(cost, f"queue+FA's memory over the counter's, {workload}", times(their_areas[0]), times(memory), memory > 1, digits),
                 Row(cost, f"queue+FA's bandwidth over the counter's, {workload}", times(their_areas[1]), times(sent), sent > 1,
                     "a birth is sent again whenever its death changes; how often depends on the traffic's shape")]
    title = f"Data set {workload} ({precision}, {cost})" if precision else "B-just: 1 % above the limit (beside 5.9)"
    return Section(title, text, rows)


def section_unlimited():
    found = means([spec("B-unlimited", strategy) for strategy in ON_UNLIMITED])
    rejected = sum(mean["rejected"] for mean in found)
    fig, axis = plots.new()
    data = runs.series(spec("B-unlimited", "counter"))
    until = int(numpy.flatnonzero(data.requests)[-1]) + 1
    plots.line(axis, data.time[:until], data.so_far("requests")[:until], "requests")
    for strategy in ON_UNLIMITED:
        plots.line(axis, data.time[:until], runs.series(spec("B-unlimited", strategy)).so_far("rejected")[:until], strategy)
    plots.finish(axis, "time (s)", "requests and rejections so far")
    shown = plots.save(fig, "fig-5-11", "Requests of a user below the rate rise evenly, rejections of counter, queue and interval stay 0")
    used = usage("fig-5-12", "B-unlimited", ON_UNLIMITED, "Memory and bandwidth over time for a user below the rate", width=5)
    ratios = areas("B-unlimited", ON_UNLIMITED)
    memory, sent = ratios["queue"]
    text = f"""One user at 1 / 1.05 of the rate for two minutes, the plain queue as in the thesis (no LINF). Nobody is denied.
`interval` sends nothing at all: what a node has not told the others stays below its share of the slack.

{shown}
{used}
{area_table("B-unlimited", ratios)}
Run: {ran(spec("B-unlimited", "queue"))}
"""
    rows = [Row("5.11", "rejections of a user below the rate", "0", count(rejected), rejected == 0, ""),
            Row("5.12", "queue's memory against the counter's", "10 % less", more(memory), memory < 1,
                "a queue forgets the dead at once here, and a counter's states hold up to 30 counts each"),
            Row("5.12", "queue's bandwidth against the counter's", "77 % less", more(sent), sent < 1, "")]
    return Section("A user below the rate (5.11, 5.12)", text, rows)


# ---- data set C

def section_c():
    shown = usage("fig-5-13", "C", ON_C, "Memory and bandwidth of counter, queue and interval over an hour of data set C", width=60, runs_of=RUNS_C)
    found = areas("C", ON_C, RUNS_C)
    memory, sent = found["queue"]
    data = runs.series(spec("C", "counter"), RUNS_C)
    fig, axis = plots.new()
    axis.plot(data.time[::20], data.users[::20], color="#0072b2")
    axis.set_xlim(0, 3600)
    plots.finish(axis, "time (s)", "users that have asked so far", legend=False)
    users = plots.save(fig, "fig-5-14", "The number of users that have asked rises to 5000 within the hour of data set C")
    text = f"""5000 users within an hour, one in 200 of them limited ({RUNS_C} run: {data.requests.sum():,.0f} requests).

{shown}
{area_table("C", found, RUNS_C)}
The queue uses {more(memory)} memory than the counter and {more(sent)} bandwidth (the thesis: 86 % less, and 0.0025 % more). The
direction in memory is the same: a counter never forgets a user, a queue does when its births are dead. Bandwidth comes out in
the queue's favour here: for an admitted request the counter sends the user's whole bucket, with a count for each node that
ever served the user, the queue one birth; and most of these users have few births alive at a time, so that few deaths change. The
thesis gives no reason for its two being equal.

The users that have asked so far:

{users}
Run: {ran(spec("C", "queue"), RUNS_C)}
"""
    rows = [Row("5.13", "queue's memory against the counter's, C", "86 % less", more(memory), memory < 1,
                "depends on how many requests the many small users make, which the thesis does not say"),
            Row("5.13", "queue's bandwidth against the counter's, C", "0.0025 % more", more(sent), abs(sent - 1) < 0.05,
                "a whole bucket goes round for each request, where a queue sends one birth")]
    return Section("Data set C (5.13, 5.14)", text, rows)


# ---- data set D

def on_d(strategy, **options):
    return spec("D", strategy, **options)


def section_d():
    fig, axes = plots.new(columns=2, height=3.4, sharey=True)
    central = runs.series(on_d("queue", gossip_ms=300))
    found = {}
    for axis, margin in zip(axes, (None, MARGIN)):
        plots.line(axis, central.time[:101], central.so_far("central_rejected")[:101], "central", linewidth=2.2)
        for at, gossip in enumerate(GOSSIP_MS):
            one = on_d("queue", gossip_ms=gossip, margin=margin)
            data = runs.series(one)
            found[gossip, margin] = means([one])[0]
            plots.line(axis, data.time[:101], data.so_far("rejected")[:101], None, f"queue, {gossip} ms", index=at)
        data = runs.series(on_d("interval"))
        plots.line(axis, data.time[:101], data.so_far("rejected")[:101], "interval")
        plots.finish(axis, "time (s)", "rejections so far" if margin is None else "",
                     "plain queue" if margin is None else f"queue, a margin of {MARGIN} dead elements", legend=margin is None)
    shown = plots.save(fig, "fig-5-15", "Rejections on data set D of the queue at three gossip intervals, without and with a safe margin, of interval and centrally")
    others = ("counter", "queue+fa", "interval")
    lines = [(f"`queue`, {gossip} ms" + ("" if margin is None else f", margin {margin}"), count(mean["rejected"]), percent(mean["agreement"], 1),
              count(mean["overshoot_max"]), size(mean["memory_mean_bytes"]), size(mean["sent_bytes"])) for (gossip, margin), mean in found.items()]
    lines += [(f"`{strategy}`", count(mean["rejected"]), percent(mean["agreement"], 1), count(mean["overshoot_max"]),
               size(mean["memory_mean_bytes"]), size(mean["sent_bytes"])) for strategy, mean in zip(others, means([on_d(s) for s in others]))]
    rejected = [found[gossip, None]["rejected"] for gossip in GOSSIP_MS]
    central_rejected = found[300, None]["central_rejected"]
    text = f"""One user, a request each 0.9 s for 100 s, c = 5 and a token a second: 100 ms too fast. A queue drops births when they
die, 1 s after they were born unless they collide with one that is still known; where gossip is too slow for that, nobody
counts up to the limit. The central limiter denies {count(central_rejected)} requests, the queue {count(rejected[0])}, {count(rejected[1])} and
{count(rejected[2])} at gossip intervals of 300, 450 and 900 ms. A margin of dead elements that a refill keeps (right) brings the rejections back,
for memory: the table says how much. Frequency analysis hides the effect: its window is max(1, c/N) = 1 here, so each birth is
told to all at once. `interval` forgets a birth after 2cT and is not affected.

{shown}
{table(("on D, c = 5", "rejected", "agreement", "worst overshoot (tokens)", "memory of a node", "sent by all"), lines)}
Run: {ran(on_d("queue", gossip_ms=900))}
"""
    falls = rejected[0] >= rejected[1] >= rejected[2]
    rows = [Row("5.15", "rejections of the queue at 300, 450, 900 ms (central: {})".format(count(central_rejected)),
                "later with longer intervals, or none", ", ".join(count(one) for one in rejected), falls and rejected[2] == 0, "")]
    return Section("Data set D: births that die unheard of (5.15)", text, rows)


# ---- 5.16

SPREAD_BIRTHS = 200
SPREAD_STEP_MS = 50


def spread_recording():
    """Births of users of their own, each probed once at all other nodes. Capacity 1: who knows the birth denies.

    The probes of a user are of one millisecond, so none of them can be told of another. Births are 1500 ms apart, later than
    the last probe, and at nodes drawn anew.
    """
    draw = random.Random(7)
    lines = []
    at = EPOCH_MS
    for _ in range(SPREAD_BIRTHS):
        for offset in range(0, 1000, SPREAD_STEP_MS):
            user, node = f"after-{offset}-{at}", draw.randrange(30)
            lines.append(f"{at},{user},{node}")
            lines += [f"{at + offset},{user},{probe}" for probe in range(30) if probe != node]
            # Not a multiple of any gossip interval: phases are drawn anew, too.
            at += 1500 + draw.randrange(900)
    lines.sort(key=lambda line: int(line.split(",")[0]))
    return recording(lines, "spread", "time_ms,user,node")


def spread(path, gossip):
    """After so many ms: the mean number of nodes that know the birth, the one where it was born included."""
    known, births = {}, {}
    for one in runs.decisions(replay(path, "queue", 1, 1, gossip_ms=gossip)):
        offset = int(one.user.split("-")[1])
        births.setdefault(offset, set()).add(one.user)
        known[offset] = known.get(offset, 0) + (not one.admitted)
    return {offset: 1 + known[offset] / len(users) for offset, users in sorted(births.items())}


def section_5_16():
    path = spread_recording()
    fig, axis = plots.new()
    found = {}
    for at, gossip in enumerate(GOSSIP_MS):
        found[gossip] = spread(path, gossip)
        plots.line(axis, list(found[gossip]), list(found[gossip].values()), None, f"every {gossip} ms, measured", index=at)
    best = [(0, 1), (300, 2), (600, 4), (900, 8)]
    axis.step([time for time, _ in best] + [960], [nodes for _, nodes in best] + [8], where="post", color="#000000", linewidth=1,
              label="every 300 ms, the thesis' best case")
    plots.finish(axis, "time since the birth (ms)", "nodes that know it, of 30", loc="upper left")
    shown = plots.save(fig, "fig-5-16", "How many of 30 nodes know a birth, over the time since it, at three gossip intervals")
    predicted = {300: 8, 450: 4, 900: 2}
    shares = {gossip: found[gossip][900] / 30 for gossip in GOSSIP_MS}
    lines = [(f"{gossip} ms", predicted[gossip], percent(predicted[gossip] / 30, 0), f"{found[gossip][900]:.2f}", percent(shares[gossip])) for gossip in GOSSIP_MS]
    text = f"""How far a birth has come when the next request arrives, 0.9 s later. A state cannot be looked into from outside, so
it is asked: capacity 1, one birth, then after so many milliseconds one request at each other node in the same millisecond. Who
denies knows the birth. {SPREAD_BIRTHS} births at random nodes and moments for each point.

{shown}
{table(("gossip interval", "nodes after 900 ms, predicted", "chance of a collision", "nodes, measured", "chance, measured"), lines)}
The thesis counts rounds: all nodes tell someone at the same moments, and never the same one. Here each node has its own phase,
so that who hears of the birth passes it on after half an interval on average, which is sooner; and some tell who knows already.

Run: `bin/weir-lab run --replay {path} --strategy queue --capacity 1 --refill 1 --gossip-ms 300`, with `--decisions` for the answers.
"""
    rows = [Row("5.16", f"chance that the second request meets the first birth, gossip each {gossip} ms (same: within a quarter)", percent(predicted[gossip] / 30, 0), percent(shares[gossip], 0),
                abs(shares[gossip] * 30 / predicted[gossip] - 1) < 0.25, "there predicted for rounds in step; nodes gossip in phases of their own here, which is faster") for gossip in GOSSIP_MS]
    return Section("The spread of a birth (5.16)", text, rows)


# ---- crash and return

CRASH_OF = (("counter", False), ("counter", True), ("queue", False), ("queue", True), ("interval", False))
CRASH_STEP_S = 5
RUNS_CRASH = min(5, RUNS)


def crashed(strategy, copy, crashes=CRASHES):
    return spec("A", strategy, crash=list(crashes), copy=copy)


def label_of(strategy, copy):
    return f"{strategy}, copying" if copy else strategy


def over_time(one):
    """Of each CRASH_STEP_S seconds: the wrong decisions in percent, and the worst user's overshoot (tokens), as means.

    A user's level is that of a token bucket of all that the nodes admitted together, as weir-lab's own monitor has it.
    """
    interval_ms = 1000 / (0.001 * CAPACITY)
    steps = 300 // CRASH_STEP_S
    wrong, asked = numpy.zeros(steps), numpy.zeros(steps)
    worst = numpy.zeros((RUNS_CRASH, steps))
    for run in range(RUNS_CRASH):
        tats = {}
        decided = runs.decisions(one, run + 1)
        start = decided[0].time_ms
        for request in decided:
            at = min((request.time_ms - start) // (1000 * CRASH_STEP_S), steps - 1)
            asked[at] += 1
            wrong[at] += request.admitted != request.central
            if request.admitted:
                tat = max(tats.get(request.user, 0), request.time_ms) + interval_ms
                tats[request.user] = tat
                worst[run, at] = max(worst[run, at], (tat - request.time_ms) / interval_ms - CAPACITY)
    return 100 * wrong / numpy.maximum(asked, 1), worst.mean(axis=0)


def section_crash():
    fig, axes = plots.new(columns=2, height=3.5)
    middle = (numpy.arange(300 // CRASH_STEP_S) + 0.5) * CRASH_STEP_S
    for strategy, copy in CRASH_OF:
        look = {"linestyle": ":", "markerfacecolor": "white"} if copy else {}
        for axis, values in zip(axes, over_time(crashed(strategy, copy))):
            plots.line(axis, middle, values, strategy, label_of(strategy, copy), **look)
    for axis in axes:
        axis.axvspan(100, 130, color="#dddddd", zorder=0)
    plots.finish(axes[0], "time (s)", "requests decided wrongly (%)", fontsize=7)
    plots.finish(axes[1], "time (s)", "worst user's overshoot (tokens)", legend=False)
    shown = plots.save(fig, "fig-crash", "Wrong decisions and overshoot over time on data set A while three of 30 nodes are down and after they return")
    cases = [*((one, CRASHES) for one in CRASH_OF), (("queue", True), CRASHES_APART)]
    whole = means([spec("A", strategy) for (strategy, _), _ in cases], RUNS_CRASH)
    found = means([crashed(*one, crashes) for one, crashes in cases], RUNS_CRASH)
    extra = [mean["false_admissions"] - before["false_admissions"] for mean, before in zip(found, whole)]
    lines = [(f"`{strategy}`" + (" `--copy`" if copy else "") + (", back one after another" if crashes is CRASHES_APART else ""),
              percent(mean["agreement"], 2), percent(before["agreement"], 2),
              f"{count(mean['rejected'])} of {count(mean['central_rejected'])}", count(more_of), count(mean["overshoot_max"]),
              count(before["overshoot_max"]), size(mean["repair_bytes"]))
             for ((strategy, copy), crashes), mean, before, more_of in zip(cases, found, whole, extra)]
    lost = dict(zip(cases, extra))
    counter, queue, copying, apart = (lost[("counter", False), CRASHES], lost[("queue", False), CRASHES], lost[("queue", True), CRASHES],
                                      lost[("queue", True), CRASHES_APART])
    text = f"""Three of 30 nodes are down from 100 s to 130 s of data set A (the grey band) and return empty; their requests go to the
next live node meanwhile. The thesis (5.5) expects both designs to fare alike while nodes are down, a returning counter to catch
up soon, since each bucket that arrives is whole, and a returning queue not to, unless it copies a whole state.

{shown}
{table(("", "agreement", "the same without the crash", "rejections, of those due", "more wrongly admitted", "worst overshoot", "the same without", "repair"), lines)}
That is what comes out: the returning queue admits {count(queue)} requests more than without the crash, the counter {count(counter)}. For the
copying queue it is {count(copying)}, and {count(apart)} when the three return a second apart: where they return at once, one may take its
copy from another that is as empty. `interval` copies when it returns, as part of its protocol; what is left is what the three
neither sent nor told the next node when they died, and shows when the users reach their limit.

Run: {ran(crashed("queue", True), RUNS_CRASH)}
"""
    rows = [Row("5.5 (text)", "a returning counter catches up sooner than a returning queue", "expected", f"{count(counter)} against {count(queue)} more wrongly admitted", counter < queue, ""),
            Row("5.5 (text)", "copying a whole state solves it for the queue", "expected", f"{count(copying)} instead of {count(queue)}", copying < queue, "")]
    return Section("Crash and return (5.5)", text, rows)


# ---- the noise floor

RUNS_DELAYS = min(3, RUNS)
AT_DELAYS = ("counter", "queue+fa", "interval", "central-jitter")


def delayed(strategy, delay):
    return spec("A", strategy, delay_ms=delay, jitter_ms=delay)


def section_noise():
    fig, axis = plots.new(width=6.2)
    found = {strategy: [mean["agreement"] for mean in means([delayed(strategy, delay) for delay in DELAYS_MS], RUNS_DELAYS)] for strategy in AT_DELAYS}
    for strategy, agreements in found.items():
        plots.line(axis, DELAYS_MS, [100 * (1 - one) for one in agreements], strategy, "two central limiters" if strategy == "central-jitter" else strategy)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(DELAYS_MS, [str(delay) for delay in DELAYS_MS])
    axis.set_yticks([0.1, 0.2, 0.5, 1, 2, 5])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    plots.finish(axis, "delay, and jitter on top, at most (ms)", "decided otherwise (% of requests)")
    shown = plots.save(fig, "fig-noise", "The share of requests decided otherwise than by the central limiter over the network's delay, and that of two central limiters")
    lines = [("two central limiters" if strategy == "central-jitter" else f"`{strategy}`", *(percent(one, 2) for one in found[strategy])) for strategy in AT_DELAYS]
    text = f"""How much agreement can be asked for? Two central limiters that get the same requests over two networks of the same
delay and jitter don't agree with each other either: requests near the limit change places. A distributed limiter can hardly be
expected to agree better than they do (data set A, {RUNS_DELAYS} runs each).

{shown}
{table(("agreement on A", *(f"{delay} ms" for delay in DELAYS_MS)), lines)}
Run: {ran(delayed("central-jitter", 50), RUNS_DELAYS)}
"""
    return Section("The noise floor", text, [])


# ---- proactive limiting

PROACTIVE_ON = ("A", "B-extreme", "B-substantial", "B-barely", "B-just", "B-unlimited", "C")


def section_proactive():
    lines = []
    fields = ("rejected", "false_admissions", "false_denials", "overshoot_max")
    rises, falls = [], []
    for workload in PROACTIVE_ON:
        plain, ahead = means([spec(workload, strategy) for strategy in ("queue+fa", "queue+fa+proactive")], RUNS_C if workload == "C" else RUNS)
        lines.append((workload, count(plain["central_rejected"]), *(f"{count(plain[field])} / {count(ahead[field])}" for field in fields)))
        if ahead["false_denials"] > plain["false_denials"]:
            rises.append(workload)
        if ahead["overshoot_max"] < plain["overshoot_max"]:
            falls.append(workload)
    text = f"""The thesis leaves out (3.4.2) to deny users who are seen speeding before they are over, for fear of false positives. As
an experiment: a node that sees a user speeding (as frequency analysis does) adds to the level it knows what the other nodes have
probably admitted meanwhile. In each column: `queue+fa` / `queue+fa+proactive`.

{table(("", "central rejections", "rejections", "wrongly admitted", "wrongly denied (false positives)", "worst overshoot (tokens)"), lines)}
The worst overshoot falls on {", ".join(falls)}, the false positives rise on {", ".join(rises)}: the fear is justified. Where users go
far above the limit, a token denied too early is given to a later request, so that wrong admissions rise along; where they just
reach it, the denials that it adds are mostly wrong.

Run: {ran(spec("B-just", "queue+fa+proactive"))}
"""
    return Section("Proactive limiting (3.4.2)", text, [])


# ---- the listings' faults

def fault_recordings():
    """Small recordings, each of which one fault shows on."""
    at = EPOCH_MS
    burst = [f"{at + i},user,0" for i in range(101)]
    saver = [f"{at + 100_000 * i},user,0" for i in range(10)] + [f"{at + 900_001 + i},user,0" for i in range(1000)]
    revived = [f"{at},user,0"] + [f"{at + 20_000 + i},user,0" for i in range(30)] + [f"{at + 1_000_000 + i},user,0" for i in range(30)]
    slow = [f"{at + 5000 * i},user,0" for i in range(20)]
    fast = [f"{at + 50 * i},user,0" for i in range(20)]
    header = "time_ms,user,node"
    return {name: recording(lines, f"fault-{name}", header) for name, lines in
            {"burst": burst, "saver": saver, "revived": revived, "slow": slow, "fast": fast}.items()}


# fault, recording in words, its name, strategy, capacity, refill, what is counted, options
FAULTS = (
    ("3.1: the limit grows by fractions of a token", "101 requests in 0.1 s; c = 100, 0.1/s", "burst", "counter", 100, 0.1, "admitted", {"nodes": 1}),
    ("3.1: the limit is not capped", "one request each cT, ten times, then 1000 in a second; c = 100, 1/s", "saver", "counter", 100, 1, "admitted", {"nodes": 1}),
    ("4.1: compares the wrong way round", "1 request, after 20 s 30, after 980 s more 30; c = 10, 1/s", "revived", "queue", 10, 1, "admitted", {"nodes": 1}),
    ("4.5: a period for a frequency, a slow user", "one request each 5 s, window 2", "slow", "queue+fa", 1000, 1, "messages", {"fa_window": 2}),
    ("4.5: the same, a fast user", "20 requests in a second, window 2", "fast", "queue+fa", 1000, 1, "messages", {"fa_window": 2}),
)


def fault_pairs():
    """Each fault's specs: as listed, repaired."""
    paths = fault_recordings()
    return [[replay(paths[name], strategy, capacity, refill, literal=literal, **options) for literal in (True, False)]
            for _, _, name, strategy, capacity, refill, _, options in FAULTS]


def section_faults():
    lines = []
    for case, pair in zip(FAULTS, fault_pairs()):
        listed, repaired = (mean[case[6]] for mean in means(pair, 1))
        lines.append((case[0], case[1], case[6], count(listed), count(repaired)))
    pair = fault_pairs()[2]
    text = f"""The listings of the thesis, taken to the letter, have faults. They are repaired by default, `--literal` brings them back.
Small recordings show what each does:

{table(("fault", "requests", "counted", "as listed", "repaired"), lines)}
With a limit in whole tokens instead, listing 3.1 forgets the fraction whenever it adds a token, and the user gets less than the
rate. 4.1 keeps the dead and removes the living: a user is not limited until one of his births dies unseen, and denied for ever
once c dead ones have gathered. Two more faults cannot be shown alone, since 4.1 covers them: births of one millisecond at one
node are taken for one, or pair up wrongly and add T to each other at each exchange; a node here moves the second to the next
free millisecond. And 4.2 keeps equal births apart in a delta state, with which the nodes never come to rest: that is repaired
with `--literal` too.

Run: `{runs.command(pair[0])}`
"""
    return Section("The listings' faults", text, [])


# ---- all of it

def wanted():
    """All runs of this file: (spec, number of runs)."""
    of_all = [spec("A", strategy) for strategy in (*ON_A, "central-counter", "central-queue")]
    of_all += [spec(workload, "central-counter") for workload in (*B, "D")]
    of_all += [spec(workload, strategy) for workload in LIMITED for strategy in ON_B]
    of_all += [spec("B-unlimited", strategy) for strategy in ON_UNLIMITED]
    of_all += [on_d("queue", gossip_ms=gossip, margin=margin) for gossip in GOSSIP_MS for margin in (None, MARGIN)]
    of_all += [on_d(strategy) for strategy in ("counter", "queue+fa", "interval")]
    of_all += [spec(workload, strategy) for workload in PROACTIVE_ON if workload != "C" for strategy in ("queue+fa", "queue+fa+proactive")]
    return ([(one, RUNS) for one in of_all]
            + [(spec("C", strategy), RUNS_C) for strategy in (*ON_C, "queue+fa+proactive")]
            + [(delayed(strategy, delay), RUNS_DELAYS) for strategy in AT_DELAYS for delay in DELAYS_MS]
            + [(crashed("queue", True, CRASHES_APART), RUNS_CRASH)] + [(one, 1) for pair in fault_pairs() for one in pair])


def wanted_decisions():
    path = spread_recording()
    return ([(crashed(strategy, copy), RUNS_CRASH) for strategy, copy in CRASH_OF]
            + [(replay(path, "queue", 1, 1, gossip_ms=gossip), 1) for gossip in GOSSIP_MS] + [(spec("A", "central-queue"), 1)])


def sections():
    return [section_4_1_and_4_2(), section_4_6(), section_5_1(), section_5_2(), section_5_3(), section_5_4(),
            *(section_b(workload) for workload in LIMITED), section_unlimited(), section_c(), section_d(), section_5_16(), section_crash(),
            section_noise(), section_proactive(), section_faults()]
