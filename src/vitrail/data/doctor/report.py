"""The page for people: one HTML file that opens anywhere, with the offending pictures in it."""

from collections.abc import Iterator
from urllib.parse import quote

from vitrail.data.contract import Source
from vitrail.data.doctor.charts import draw_classes, draw_sizes
from vitrail.data.doctor.findings import Case, Finding, Findings, Place, Severity
from vitrail.data.doctor.kinds import kind_of
from vitrail.data.doctor.pictures import Pictures
from vitrail.data.page import render_cards, render_page, shared_style, text

_MAX_PICTURES = 640  # of the whole page: at most about 5 MB
_MAX_GROUPS = 20  # of copies and look-alikes, per finding
_MAX_IN_GROUP = 4
_MAX_SAMPLES = 18  # with a picture, per finding
_MAX_LINES = 100  # without
_TONES = {Severity.MUST_BE_FIXED: "must", Severity.WORTH_A_LOOK: "look", Severity.GOOD_TO_KNOW: "know"}


def render(findings: Findings, source: Source) -> str:
    """The whole page. The pictures are read from the source."""
    pictures = Pictures(source, limit=_MAX_PICTURES)
    sections = "".join(_render_finding(finding, findings, pictures) for finding in findings.findings)
    body = f"""<header>
<p class="kicker">vitrail check</p>
<h1>{text(findings.name)}</h1>
<p class="verdict {"fit" if findings.is_fit else "unfit"}">{text(findings.verdict.capitalize())}.</p>
{_render_cards(findings)}
</header>
<main>
{_render_overview(findings)}
{sections}
<section id="data"><h2>The data</h2>
<h3>Images per class {_render_legend(findings)}</h3>{draw_classes(findings)}
<h3>Short side of the images, in pixels</h3>{draw_sizes(findings)}
</section>
</main>"""
    return render_page(f"Data check: {findings.name}", body, style=shared_style())


def _render_cards(findings: Findings) -> str:
    cards = [
        (f"{sum(split.num_images for split in findings.splits):,}", "images"),
        (f"{len(findings.classes):,}", "class" if len(findings.classes) == 1 else "classes"),
    ]
    cards += [(f"{split.num_images:,}", f"in {split.split}") for split in findings.splits]
    largest = max(findings.splits, key=lambda split: len(split.sizes), default=None)
    if largest is not None:
        cards.append((largest.median_size, f"median size in {largest.split}"))
    return render_cards((_with_times(number), what) for number, what in cards)


def _with_times(size: str) -> str:
    return size.replace(" x ", " \N{MULTIPLICATION SIGN} ")


def _render_legend(findings: Findings) -> str:
    keys = (
        f'<span class="key"><i class="bar split-{place % 4}"></i>{text(split.split)}</span>'
        for place, split in enumerate(findings.splits)
    )
    return f'<span class="legend">{"".join(keys)}</span>'


def _render_overview(findings: Findings) -> str:
    if not findings.findings:
        return ""
    rows = "".join(
        f'<tr><td>{_pill(finding.severity)}</td><td><a href="#{_anchor(finding)}">{text(finding.problem)}</a></td>'
        f'<td class="number">{text(finding.amount)}</td>'
        f'<td class="what">{text(kind_of(finding.problem).what)}</td></tr>'
        for finding in findings.findings
    )
    end = '<p class="more">At the end: <a href="#data">classes and sizes</a>.</p>'
    return f'<section><h2>What was found</h2><table class="overview">{rows}</table>{end}</section>'


def _pill(severity: Severity) -> str:
    return f'<span class="pill {_TONES[severity]}">{severity.value}</span>'


def _anchor(finding: Finding) -> str:
    return quote(finding.problem.replace(" ", "-"), safe="")


def _render_finding(finding: Finding, findings: Findings, pictures: Pictures) -> str:
    kind = kind_of(finding.problem)
    if any(len(case.places) > 1 for case in finding.cases):
        body, shown = _render_groups(finding, findings, pictures)
    elif all(case.places[0].size for case in finding.cases):
        body, shown = _render_samples(finding, findings, pictures)
    else:
        body, shown = _render_lines(finding, findings)
    rest = finding.count - shown
    more = f'<p class="more">and {rest:,} more: see findings.json</p>' if rest else ""
    return f"""<section id="{_anchor(finding)}" class="finding {_TONES[finding.severity]}">
<h2>{text(f"{finding.problem[0].upper()}{finding.problem[1:]}")}
<span class="amount">{text(finding.amount)}</span> {_pill(finding.severity)}</h2>
<dl><dt>What it is</dt><dd>{text(kind.what)}</dd><dt>Why it matters</dt><dd>{text(kind.why)}</dd>
<dt>What to do</dt><dd>{text(kind.remedy)}</dd></dl>
{body}{more}</section>
"""


def _render_groups(finding: Finding, findings: Findings, pictures: Pictures) -> tuple[str, int]:
    cases = finding.cases[:_MAX_GROUPS]
    return f'<div class="groups">{"".join(_render_group(case, findings, pictures) for case in cases)}</div>', len(cases)


def _render_group(case: Case, findings: Findings, pictures: Pictures) -> str:
    places = _pick(case)
    figures = "".join(_render_figure(place, findings, pictures) for place in places)
    rest = len(case.places) - len(places)
    more = f'<p class="more">and {rest:,} more</p>' if rest else ""
    are_at_odds = len({place.label for place in case.places}) > 1
    odds = '<span class="odds">labels differ</span>' if are_at_odds else ""
    head = f'<p class="detail">{text(case.detail)} {odds}</p>'
    return f'<div class="group">{head}<div class="row">{figures}{more}</div></div>'


def _pick(case: Case) -> list[Place]:
    """The first few; of every split and every label at least one, as far as there is room."""
    firsts = {(place.split, place.label): place for place in reversed(case.places)}
    telling = sorted(firsts.values(), key=case.places.index)
    picked = [*telling, *(place for place in case.places if place not in telling)][:_MAX_IN_GROUP]
    return sorted(picked, key=case.places.index)


def _render_samples(finding: Finding, findings: Findings, pictures: Pictures) -> tuple[str, int]:
    cases = finding.cases[:_MAX_SAMPLES]
    figures = (_render_figure(case.places[0], findings, pictures, detail=case.detail) for case in cases)
    return f'<div class="row">{"".join(figures)}</div>', len(cases)


def _render_figure(place: Place, findings: Findings, pictures: Pictures, *, detail: str = "") -> str:
    address = pictures.show(place)
    width, _, height = place.size.partition(" x ")
    is_small = width.isdigit() and max(int(width), int(height)) < 100
    picture = (
        f'<img src="{address}" alt="" class="{"small" if is_small else ""}">' if address else '<div class="none"></div>'
    )
    facts = " · ".join(text(_with_times(fact)) for fact in (place.size, detail) if fact)
    return (
        f"<figure>{picture}<figcaption><b>{text(place.label)}</b>"
        f'<span class="tag">{text(place.split)}</span><br>{_link(place, findings)}<br><small>{facts}</small>'
        "</figcaption></figure>"
    )


def _render_lines(finding: Finding, findings: Findings) -> tuple[str, int]:
    cases = finding.cases[:_MAX_LINES]
    return f'<table class="lines">{"".join(_lines(cases, findings))}</table>', len(cases)


def _lines(cases: tuple[Case, ...], findings: Findings) -> Iterator[str]:
    for case in cases:
        place = case.places[0]
        yield f'<tr><td>{_link(place, findings)}</td><td class="detail">{text(case.detail)}</td></tr>'


def _link(place: Place, findings: Findings) -> str:
    """The path, and a way to the file itself where it lies in the folder of the data."""
    # A long path may be broken where its parts meet.
    parts = text(findings.shorten(place.path)).replace("/", "/<wbr>").replace("_", "_<wbr>")
    shown = f"<code>{parts}</code>"
    if not findings.holds(place.path):
        return shown
    address = quote(place.path.replace("\\", "/").lstrip("/"), safe="/:", errors="surrogateescape")
    return f'<a href="file:///{address}">{shown}</a>'
