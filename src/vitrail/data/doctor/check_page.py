"""The page of `vitrail check`: what was found, with the offending pictures in it."""

from collections.abc import Iterator
from urllib.parse import quote

from vitrail.data.contract import Source
from vitrail.data.doctor.check_charts import draw_classes, draw_sizes
from vitrail.data.doctor.findings import Case, Finding, Findings, Place, Severity
from vitrail.data.doctor.kinds import kind_of
from vitrail.data.doctor.marked_thumbnails import make_thumbnails
from vitrail.data.doctor.thumbnails import Thumbnails
from vitrail.pages.charts import Key, colour_of, draw_legend
from vitrail.pages.frame import Page, PageSection, Tone, Verdict, render_page
from vitrail.pages.pictures import render_figure, render_image
from vitrail.pages.tables import render_more, render_table
from vitrail.pages.words import Html, text

_MAX_PICTURES = 640  # of the whole page: at most about 5 MB
_MAX_GROUPS = 20  # of copies and look-alikes, per finding
_MAX_IN_GROUP = 4
_MAX_SAMPLES = 18  # with a picture, per finding
_MAX_LINES = 100  # without
_TONES: dict[Severity, Tone] = {
    Severity.MUST_BE_FIXED: "must",
    Severity.WORTH_A_LOOK: "look",
    Severity.GOOD_TO_KNOW: "know",
}
_DATA = "data"  # anchor of the last section


def render_check(findings: Findings, source: Source) -> str:
    """The whole page. The pictures are read from the source."""
    page = Page(
        title=findings.name,
        kicker="vitrail check",
        window_title=f"Data check: {findings.name}",
        verdict=Verdict(f"{findings.verdict.capitalize()}.", "good" if findings.is_fit else "must"),
        cards=_make_cards(findings),
        sections=list(_make_sections(findings, make_thumbnails(source, limit=_MAX_PICTURES))),
    )
    return render_page(page)


def _make_cards(findings: Findings) -> list[tuple[str, str]]:
    cards = [(f"{sum(split.num_images for split in findings.splits):,}", "images")]
    if findings.classes:
        cards.append((f"{len(findings.classes):,}", "class" if len(findings.classes) == 1 else "classes"))
    cards += [(f"{split.num_images:,}", f"in {split.split}") for split in findings.splits]
    largest = max(findings.splits, key=lambda split: len(split.sizes), default=None)
    if largest is not None:
        cards.append((largest.median_size, f"median size in {largest.split}"))
    return [(_with_times(number), what) for number, what in cards]


def _with_times(size: str) -> str:
    return size.replace(" x ", " \N{MULTIPLICATION SIGN} ")


def _make_sections(findings: Findings, pictures: Thumbnails) -> Iterator[PageSection]:
    if findings.findings:
        yield _overview_section(findings)
    for finding in findings.findings:
        yield _finding_section(finding, findings, pictures)
    yield _data_section(findings)


def _overview_section(findings: Findings) -> PageSection:
    rows = (
        (
            _pill(finding.severity),
            Html(f'<a href="#{_anchor(finding)}">{text(finding.problem)}</a>'),
            finding.amount,
            Html(f'<span class="what">{text(kind_of(finding.problem).what)}</span>'),
        )
        for finding in findings.findings
    )
    end = f'<p class="more">At the end: <a href="#{_DATA}">{"classes and " * bool(findings.classes)}sizes</a>.</p>'
    return PageSection("What was found", render_table(rows, style="overview") + end)


def _data_section(findings: Findings) -> PageSection:
    legend = draw_legend([Key(split.split, colour_of(place)) for place, split in enumerate(findings.splits)])
    classes = f"<h3>Images per class {legend}</h3>{draw_classes(findings)}" if findings.classes else ""
    return PageSection(
        "The data",
        f"{classes}<h3>Short side of the images, in pixels</h3>{draw_sizes(findings)}",
        anchor=_DATA,
    )


def _pill(severity: Severity) -> Html:
    return Html(f'<span class="pill {_TONES[severity]}">{severity.value}</span>')


def _anchor(finding: Finding) -> str:
    return quote(finding.problem.replace(" ", "-"), safe="")


def _finding_section(finding: Finding, findings: Findings, pictures: Thumbnails) -> PageSection:
    kind = kind_of(finding.problem)
    if any(len(case.places) > 1 for case in finding.cases):
        body, shown = _render_groups(finding, findings, pictures)
    elif all(case.places[0].size for case in finding.cases):
        body, shown = _render_samples(finding, findings, pictures)
    else:
        body, shown = _render_lines(finding, findings)
    told = (
        f"<dl><dt>What it is</dt><dd>{text(kind.what)}</dd><dt>Why it matters</dt><dd>{text(kind.why)}</dd>"
        f"<dt>What to do</dt><dd>{text(kind.remedy)}</dd></dl>"
    )
    return PageSection(
        f"{finding.problem[0].upper()}{finding.problem[1:]}",
        f"{told}{body}{render_more(finding.count - shown, where='findings.json')}",
        anchor=_anchor(finding),
        aside=f'<span class="amount">{text(finding.amount)}</span> {_pill(finding.severity)}',
        tone=_TONES[finding.severity],
    )


def _render_groups(finding: Finding, findings: Findings, pictures: Thumbnails) -> tuple[str, int]:
    cases = finding.cases[:_MAX_GROUPS]
    return f'<div class="groups">{"".join(_render_group(case, findings, pictures) for case in cases)}</div>', len(cases)


def _render_group(case: Case, findings: Findings, pictures: Thumbnails) -> str:
    places = _pick(case)
    figures = "".join(_render_figure(place, findings, pictures) for place in places)
    more = render_more(len(case.places) - len(places))
    are_at_odds = len({place.label for place in case.places}) > 1
    odds = '<span class="wrong">labels differ</span>' if are_at_odds else ""
    head = f'<p class="detail">{text(case.detail)} {odds}</p>'
    return f'<div class="group">{head}<div class="{pictures.style}">{figures}{more}</div></div>'


def _pick(case: Case) -> list[Place]:
    """The first few; of every split and every label at least one, as far as there is room."""
    firsts = {(place.split, place.label): place for place in reversed(case.places)}
    telling = sorted(firsts.values(), key=case.places.index)
    picked = [*telling, *(place for place in case.places if place not in telling)][:_MAX_IN_GROUP]
    return sorted(picked, key=case.places.index)


def _render_samples(finding: Finding, findings: Findings, pictures: Thumbnails) -> tuple[str, int]:
    cases = finding.cases[:_MAX_SAMPLES]
    figures = (_render_figure(case.places[0], findings, pictures, detail=case.detail) for case in cases)
    return f'<div class="{pictures.style}">{"".join(figures)}</div>', len(cases)


def _render_figure(place: Place, findings: Findings, pictures: Thumbnails, *, detail: str = "") -> str:
    width, _, height = place.size.partition(" x ")
    is_small = width.isdigit() and max(int(width), int(height)) < 100
    facts = " · ".join(text(_with_times(fact)) for fact in (place.size, detail) if fact)
    return render_figure(
        render_image(pictures.show(place), is_small=is_small),
        f'<b>{text(place.label)}</b><span class="tag">{text(place.split)}</span><br>{_link(place, findings)}<br>'
        f"<small>{facts}</small>",
    )


def _render_lines(finding: Finding, findings: Findings) -> tuple[str, int]:
    cases = finding.cases[:_MAX_LINES]
    rows = (
        (_link(case.places[0], findings), Html(f'<span class="detail">{text(case.detail)}</span>')) for case in cases
    )
    return render_table(rows, style="lines"), len(cases)


def _link(place: Place, findings: Findings) -> Html:
    """The path, and a way to the file itself where it lies in the folder of the data."""
    # A long path may be broken where its parts meet.
    parts = text(findings.shorten(place.path)).replace("/", "/<wbr>").replace("_", "_<wbr>")
    shown = Html(f"<code>{parts}</code>")
    if not findings.holds(place.path):
        return shown
    address = quote(place.path.replace("\\", "/").lstrip("/"), safe="/:", errors="surrogateescape")
    return Html(f'<a href="file:///{address}">{shown}</a>')
