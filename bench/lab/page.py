"""Writes doc/lab.md and its figures: makes all runs that are missing, draws, and puts the numbers into the text.

No number of the text is typed by hand but those of the thesis and of the options.
"""

import pathlib

import plots
import questions
import runs
import thesis

HERE = pathlib.Path(__file__).resolve().parent
PAGE = plots.DOC / "lab.md"

INTRODUCTION = """# The lab

`weir-lab` runs limiters of many nodes, in simulated time unless told otherwise, and compares each decision with that of one central limiter. The designs of
Henriksson and Bennhage ("Trading performance for precision in a CRDT-based rate-limiting system", 2021; "the thesis" below) stand
in it beside weir's own, `interval`. This page is written by `make lab`, its figures and numbers come from that run; only the
numbers of the thesis and what an option was set to were typed.

## What it is and how to run it

A run takes a workload (who asks when), a strategy (how a node decides and what it tells the others) and a network with its
faults, and is repeated exactly by the same seed. Nodes are C++ state machines without clock, socket or thread; frames between
them are the bytes that would be sent. `make build` leaves the binary:

```sh
make build
bin/weir-lab list
bin/weir-lab run --workload B-extreme --strategy queue+fa --capacity 1000 --seed 7
bin/weir-lab run --workload A --strategy interval --delay-ms 50 --loss 0.01 --runs 10 --json
bin/weir-lab run --workload D --strategy queue --gossip-ms 900 --decisions decisions.csv --series seconds.csv
bin/weir-lab workload A --out a.json
bin/weir-lab run --replay a.json --strategy counter --capacity 100
bin/weir-lab calibrate a.json --capacity 100
bin/weir-lab run --real --workload D --strategy interval --nodes 5 --delay-ms 50 --crash 2@20-30
make lab
```

`--real` makes the same run with real nodes: processes of the operating system, in real time. The thesis' designs are a C++ process each
and talk over UDP, `interval` is weir on the BEAM and talks over Erlang's distribution; delays, partitions and crashes are as asked
for (a crash is a SIGKILL). Its JSON has what only real nodes have, besides: processor time (`cpu_seconds`, `cpu_ms_per_1000_requests`,
`resident_bytes`), delays as they were (`delay_p50_ms`, ...), how late requests were asked (`late_p50_ms`, ...), and the noise floor at these
delays (`noise_agreement`). [lab-real.md](lab-real.md) has both side by side, [benchmarks-cluster.md](benchmarks-cluster.md) what
a cluster costs.

`make lab` makes all runs of this page, on all cores, and keeps each under `_build/lab/results`, so that only what changed runs
again. Unless a figure says otherwise: 30 nodes, each a neighbour of each, 1 ms from one to another, a gossip interval of 300 ms,
capacity c = 1000, refill 0.001c a second, frequency analysis with a window of c/30 births and a threshold of 2400 ms, as in the
thesis' tables 4.1 and 4.2; figures are means of {runs} runs. The thesis does not say what its c is. 1000 is taken here because a
window of c/30 with that threshold means something only for a large c; data set D has the thesis' own c = 5 and one token a second.

"""

ACCOUNTING = """## Accounting

- **Memory** (`memory_mean_bytes`) is the bytes that a node's C++ states hold, blocks at their capacity, maps with their nodes and
  tables: the mean of all nodes that are up, sampled at the end of each second from the first to the last request. For the
  thesis' designs: users, local states, the delta states of all neighbours, the lists of what waits. Delta states are packed as in
  frames, each in a block of its own; so are local queues, and local counts take one to four bytes. (Delta states of the counter that
  say the same could share a block; they are copies here, as in the thesis.) For `interval`: keys with their interval sets, its log of
  own records and those of others kept for repair, the queues of what is due, open claims. What a node holds whatever the traffic (the
  tables of peers, version vectors, buffers) is `memory_fixed_bytes`, apart: {fixed_interval} for `interval` on A, {fixed_counter} for the
  counter, {fixed_queue} for the queue, whose buffers are the largest. It is in the table of what the ratios leave out. What a
  node has taken so far of a state copy counts as state.
- **Bandwidth** (`sent_bytes`) is the bytes of all frames that all nodes sent, as they were really encoded, data and repair, lost
  ones too. 28 bytes of IP and UDP headers a message are `header_bytes`, apart. Heartbeats are `heartbeat_bytes`, apart, since the
  thesis' designs have no failure detection; the table of what the ratios leave out has both. All designs write numbers as varints
  and times as steps. A bucket of the counter is some 24 bytes and one or two for each node that counted; each node's id, a hash
  of 4 bytes, is once in a frame. A queue is 9 bytes and 5 to 11 a birth. A record of `interval` is about 21.
- **Convergence** (`convergence_ms`) is the time from the last request until nothing waits to be sent anywhere: all delta states and
  logs' repairs empty, no data in flight, no question open, all faults over. A run that has not come to rest after `--settle-s`
  (120 s) has none.
- **Truth** is a token bucket on one node that gets the same requests at the same times (`central-queue`; a central counter runs
  beside it, and `central_disagreements` counts where the two differ).
- **Agreement** is the share of requests decided as the central limiter decides them. `false_admissions` and `false_denials` are the
  two ways to differ. It is the strictest measure: a token that is given a moment later makes two disagreements. Times are whole
  milliseconds, and a frame that arrives in the instant of a request was there before it: with a delay of 1.001 instead of 1 ms,
  `interval` agrees in 99.97 % on A (c = 100) and in 99.91 % on C (c = 1000).
- **The rejection curve** (`rejection_curve_ratio`) is the thesis' precision (5.1.1): rejections so far, a point each second, summed,
  over the same sum of the central limiter. It does not see which requests were rejected, and rejections too many make up for
  rejections missed. `rejection_ratio` is the quotient of the last points.
- **Overshoot** is how many tokens above the capacity all that the nodes admitted, together, would stand in one token bucket:
  of the worst user at the worst moment. `undershoot_max` is how many the central limiter gave and the nodes withhold.
- **Areas** under memory and bandwidth curves are sums over the seconds until the last run has come to rest; a run that has
  ended counts as 0 from then on, as in the thesis (5.2.4).

"""

LIMITS = """## Limits of the method

- The thesis' recordings are not public. Our data sets are drawn from their description: same sizes, spans and shapes as far as it
  goes, other digits. Where a number depends on what it does not say (how many requests the small users of C make, when the
  users of A come), only the direction can be compared.
- Its memory is that of Erlang terms and processes, ours that of packed states; its bandwidth is of Erlang messages, ours of
  encoded frames. Ratios between designs can be compared, bytes can't.
- Its nodes ran as processes of one machine with real timers; ours tick each in a phase of its own, drawn from the seed, and time
  is simulated: a decision takes none.
- The network of most figures is one that loses nothing and takes 1 ms. What faults do is in the sections on faults.
- A request meets a node by the hash of its millisecond and user, as in the thesis: a user's requests are spread evenly over all
  nodes. Users who stick to one node are easier for each of these designs, but for `split`.
- Data set C is run once, not ten times: it is as long as all others together, and its 5000 users average themselves.
- Means hide what single runs do; the worst of all runs is given where a bound is claimed.
"""


def accounting():
    fixed = {f"fixed_{strategy}": thesis.size(mean["memory_fixed_bytes"]) for strategy, mean in
             zip(("interval", "counter", "queue"), thesis.means([thesis.spec("A", one) for one in ("interval", "counter", "queue")]))}
    return ACCOUNTING.format(**fixed)


def beside(rows):
    lines = [(row.figure, row.what, row.thesis, row.ours, "yes" if row.same else "**no**", row.why) for row in rows]
    apart = [row for row in rows if not row.same]
    missed = "; ".join(f"{row.what} ({row.figure})" for row in apart)
    said = f"{len(rows) - len(apart)} of {len(rows)} point the same way." + (f" These don't: {missed}." if apart else "")
    return f"""## The thesis beside ours

Ratios are to the counter unless something else is named. "Same" means the same direction. {said} Where the sizes differ, the last
column or the figure's text says why.

{thesis.table(("figure", "what", "thesis", "ours", "same", "why it differs"), lines)}
"""


def short_of_agreement():
    """Where the worst run agrees in less than is promised, in words."""
    found = [outcome for outcome in questions.outcomes() if outcome.row.group == questions.NO_FAULT]
    short = [(one, questions.least(one.result, "agreement")) for one in found]
    return "; ".join(f"{one.row.spec['workload']} at c = {one.row.spec['capacity']}, {thesis.percent(least, 2)} in the worst of {one.row.count} runs,"
                     f" {thesis.percent(one.result['mean']['agreement'], 2)} on average" for one, least in short if least < 0.999)


def surpassing():
    short = short_of_agreement()
    missed = f"Short of 99.9 %: {short}." if short else "Every run agrees in 99.9 % or more."
    agreement = thesis.means([thesis.spec("A", "interval")])[0]["agreement"]
    floor = thesis.means([thesis.delayed("central-jitter", 1)], thesis.RUNS_DELAYS)[0]["agreement"]
    return f"""## What surpasses it

`interval` keeps busy intervals instead of births or counts, and speaks when a node's own news could use up its share of what is
left ([replication](replication.md)). Beside the counter, at c = 100 and 1000 (D: 5), 30 nodes and 1 ms, with what its design
promises: agreement of 99.9 %, bytes 1/2.5 of the counter's on B, 1/8 on A, 1/100 on C, memory 1/4, 1/15 and 1/12. The agreement is
that of the worst run.

{questions.ratio_table()}

{missed} {questions.missed()}

What these ratios leave out: heartbeats, what a node holds whatever the traffic, and the number of messages. The counter has no
heartbeats and finds no failures; it sends one frame per node and gossip interval at most.

{questions.whole_table()}

Where `interval` is worse than the counter:

- *All bytes, heartbeats too*: {questions.worse(*questions.ALL_BYTES)}. Each node sends a heartbeat to each other one twice a second,
  whatever the traffic. With few users that is most of what it sends.
- *Messages of data*: {questions.worse("messages")}. A hot key is told to all nodes each time that its share is used up, where the
  counter waits for its gossip interval. On the BEAM a message costs more than its bytes.
- *All memory, fixed too*: {questions.worse(*questions.ALL_MEMORY)}. With few users the tables of peers and limits are nearly all that a node holds.

Over {runs.RUNS} runs of A, c = 1000, `interval` agrees in {thesis.percent(agreement, 2)} on average; two central limiters behind networks of 1 ms with up to 1 ms of jitter agree with
each other in {thesis.percent(floor, 2)} (the noise floor, above).
"""


def main():
    runs.make(thesis.wanted() + questions.wanted())
    runs.make(thesis.wanted_decisions() + questions.wanted_decisions(), ".decisions")
    sections = thesis.sections()
    parts = [INTRODUCTION.format(runs=runs.RUNS), accounting(), beside([row for section in sections for row in section.rows]), "## The thesis' figures\n"]
    parts += [f"### {section.title}\n\n{section.markdown}" for section in sections]
    parts += [surpassing(), "## The laws of a CRDT (3.4.1)\n\n" + (HERE / "laws.md").read_text(), questions.sections(), LIMITS]
    PAGE.write_text("\n".join(part.strip("\n") + "\n" for part in parts))
    print(f"{PAGE.relative_to(runs.ROOT)}, its figures in {plots.FOLDER.relative_to(runs.ROOT)}, the runs in {runs.RESULTS.relative_to(runs.ROOT)}")


if __name__ == "__main__":
    main()
