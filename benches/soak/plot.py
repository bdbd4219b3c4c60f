"""Draws memory over time with the faults that happened, as an SVG."""

from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1100, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 90
COLOURS = {
    "kill": "#c0392b", "SIGTERM": "#8e44ad", "disk": "#d68910", "database": "#2471a3", "unload": "#7f8c8d",
    "reload": "#7f8c8d", "load": "#7f8c8d", "keys": "#16a085", "crowd": "#6e2c00", "rest": "#bdc3c7",
}


def colour_of(fault):
    return COLOURS.get(fault.split()[0], "#999999")


def draw(samples, spans, began):
    """`samples` of all lives, `spans` of faults, `began` when the run did."""
    ended = max([sample.at for sample in samples] + [end or start for _, start, end in spans] + [began + 1])
    top = max([sample.rss for sample in samples] + [1]) * 1.1
    x = lambda at: LEFT + (at - began) / (ended - began) * (WIDTH - LEFT - RIGHT)
    y = lambda size: HEIGHT - BOTTOM - size / top * (HEIGHT - TOP - BOTTOM)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">Resident memory of the server, and what happened meanwhile</text>',
    ]
    parts += axes(x, y, began, ended, top)
    for what, start, end in spans:
        width = max(x(end or ended) - x(start), 1)
        parts.append(
            f'<rect x="{x(start):.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}" '
            f'fill="{colour_of(what)}" opacity="0.35"><title>{escape(what)}</title></rect>'
        )
    for life in sorted({sample.life for sample in samples}):
        points = " ".join(f"{x(s.at):.1f},{y(s.rss):.1f}" for s in samples if s.life == life)
        parts.append(f'<polyline points="{points}" fill="none" stroke="#1b2631" stroke-width="1.5"/>')
    parts += legend({what.split()[0] for what, _, _ in spans})
    return "\n".join([*parts, "</svg>"])


def axes(x, y, began, ended, top):
    lines = []
    for step in range(6):
        size = top * step / 5
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(size):.1f}" y2="{y(size):.1f}" stroke="#dddddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y(size) + 4:.1f}" text-anchor="end">{size / 2**20:.0f} MiB</text>')
    for step in range(11):
        at = began + (ended - began) * step / 10
        label = f"{(at - began) / 60:.1f}"
        lines.append(f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 34}" text-anchor="end">minutes</text>')
    return lines


def legend(kinds):
    parts, at = [], LEFT
    for kind in sorted(kinds):
        parts.append(f'<rect x="{at}" y="{HEIGHT - 28}" width="12" height="12" fill="{colour_of(kind)}" opacity="0.6"/>')
        parts.append(f'<text x="{at + 16}" y="{HEIGHT - 18}">{escape(kind)}</text>')
        at += 30 + 8 * len(kind)
    return parts
