"""The look of all figures: named axes with units, told apart in grey too, the same bytes for the same data.

    fig, axes = new(columns=2)          a figure with one row of axes (or `rows`)
    line(axis, x, y, "queue+fa")        a strategy's curve in its own colour, dash and marker
    finish(axis, "time (s)", "...")     names the axes, draws the grid and the legend
    text = save(fig, "fig-5-05", "what the picture shows, for those who can't see it")

`save` writes doc/lab/NAME.svg and NAME.png and returns the Markdown that shows it on doc/lab.md.
"""

import io
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 (the backend comes first)
import numpy  # noqa: E402
from PIL import Image  # noqa: E402

DOC = pathlib.Path(__file__).resolve().parents[2] / "doc"
FOLDER = DOC / "lab"

matplotlib.rcParams.update({
    "figure.dpi": 110,
    "savefig.dpi": 110,
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 7.5,
    "legend.framealpha": 0.85,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "svg.fonttype": "none",  # text stays text: nothing is embedded
    "svg.hashsalt": "weir",
    "path.simplify_threshold": 0.3,
})

# Colours that the colour-blind tell apart (Okabe and Ito); dashes and markers for print in grey.
STYLE = {
    "requests": ("#888888", ":", None),
    "central": ("#000000", "-", None),
    "counter": ("#d55e00", "--", "s"),
    "queue": ("#0072b2", "-.", "o"),
    "queue+linf": ("#56b4e9", (0, (1, 1)), "v"),
    "queue+fa": ("#009e73", (0, (5, 1)), "^"),
    "queue+fa+linf": ("#b8a000", (0, (3, 1, 1, 1)), "D"),
    "queue+fa+proactive": ("#7a5195", (0, (4, 2, 1, 2)), "P"),
    "interval": ("#cc79a7", "-", "x"),
    "split": ("#999999", (0, (2, 2)), "<"),
    "split+rebalance": ("#555555", (0, (6, 2)), ">"),
    "sliding-log": ("#8c564b", (0, (2, 1)), "*"),
    "central-jitter": ("#444444", ":", "+"),
}
# For curves that are no strategy's: different gossip intervals, margins.
OTHERS = [("#0072b2", "-", "o"), ("#d55e00", "--", "s"), ("#009e73", "-.", "^"), ("#cc79a7", ":", "x"),
          ("#b8a000", (0, (3, 1, 1, 1)), "D"), ("#56b4e9", (0, (5, 1)), "v"), ("#000000", (0, (1, 1)), "+")]


def style(name, index=None):
    colour, dash, marker = STYLE[name] if index is None else OTHERS[index % len(OTHERS)]
    return {"color": colour, "linestyle": dash, "marker": marker}


def new(columns=1, rows=1, width=None, height=3.1, **more):
    fig, axes = plt.subplots(rows, columns, figsize=(width or min(9.0, 5.2 if columns == 1 else 4.5 * columns), height * rows), **more)
    return fig, axes


def line(axis, x, y, name, label=None, index=None, marks=8, **more):
    """A curve with a few markers on it, not one a point, and not where another curve has them."""
    options = style(name, index)
    x, y = numpy.asarray(x), numpy.asarray(y)
    if options["marker"] and len(x) > 2 * marks:
        step = max(1, len(x) // marks)
        place = list(STYLE).index(name) if index is None else index
        options["markevery"] = ((place * step) // 7 % step, step)
    return axis.plot(x, y, label=label or name, **{**options, **more})


def finish(axis, x, y, title=None, legend=True, **more):
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if title:
        axis.set_title(title)
    axis.grid(True, which="major", linewidth=0.4, alpha=0.5)
    if legend:
        axis.legend(**more)


def binned(values, width):
    """Means of `width` values each; the last may be of fewer."""
    return numpy.array([values[at:at + width].mean() for at in range(0, len(values), width)])


def save(fig, name, alt):
    FOLDER.mkdir(parents=True, exist_ok=True)
    fig.tight_layout()
    fig.savefig(FOLDER / f"{name}.svg", metadata={"Date": None, "Creator": None})
    drawn = io.BytesIO()
    fig.savefig(drawn, format="png", metadata={"Software": None})
    plt.close(fig)
    # A palette of 64 colours is enough for lines and makes a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(64).save(FOLDER / f"{name}.png", optimize=True)
    return f"![{alt}](lab/{name}.svg)\n\n([as PNG](lab/{name}.png))\n"
