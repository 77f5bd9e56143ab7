"""The certificate of an export as a page for people."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.inference.engines.ways import Way
from vitrail.inference.export_record import CERTIFICATE_PAGE, ExportRecord
from vitrail.pages.frame import Page, PageSection, Verdict, render_page
from vitrail.pages.tables import render_table
from vitrail.storage import write_text


def write_certificate_page(folder: Path, record: ExportRecord, certificate: Mapping[str, Any]) -> Path:
    """Write certificate.html: whether the export agrees, the differences, and what was compared."""
    path = folder / CERTIFICATE_PAGE
    write_text(path, render_page(make_page(record, certificate)))
    return path


def make_page(record: ExportRecord, certificate: Mapping[str, Any]) -> Page:
    """All that stands on the page."""
    agreement, accuracy = certificate["top1_agreement"], certificate["exported_accuracy"]
    gaps = [one["largest"] for one in certificate["outputs"].values()]
    cards = [(_number(None if None in gaps else max(gaps), ".1e"), "largest difference")]
    if agreement is not None:
        cards.append((f"{agreement:.1%}", "the same first class"))
    if accuracy is not None:
        cards.append(
            (f"{accuracy:.2f} %", f"{certificate['measure']} exported, {certificate['accuracy']:.2f} % before")
        )
    sections = [_compared(certificate), _trials(certificate), _artefact(record, certificate)]
    if record.quantised is not None:
        sections.insert(1, _facts("Quantised", record.quantised))
    if record.choice is not None:
        sections.append(_choice(record.choice))
    return Page(
        f"{record.model.name} for {record.engine}",
        "vitrail export",
        sections,
        verdict=_verdict(record, certificate),
        lead=[f"{record.precision}, on {certificate['num_images']:,} images: {certificate['images']}."],
        cards=cards,
    )


def _verdict(record: ExportRecord, certificate: Mapping[str, Any]) -> Verdict:
    if record.is_drifting:
        return Verdict("It does not agree with the model and was kept all the same (--allow-drift).", "must")
    if certificate["tolerance"] is None:
        return Verdict("Quantised: judged by its accuracy, not by its numbers.", "look")
    agreement = certificate["top1_agreement"]
    if agreement is not None and agreement < 1.0:
        told = f"the first class is the same for {agreement:.2%} of what it was asked about."
        return Verdict(f"Its numbers are the model's as far as {record.precision} allows; {told}", "look")
    return Verdict("It gives the answers of the model.", "good")


def _number(value: float | None, spec: str) -> str:
    return "not finite" if value is None else format(value, spec)


def _compared(certificate: Mapping[str, Any]) -> PageSection:
    rows = [
        (
            name,
            _number(one["largest"], ".2e"),
            _number(one["mean"], ".2e"),
            _number(one["scale"], ".3g"),
            _number(one["share"], ".1e"),
        )
        for name, one in certificate["outputs"].items()
    ]
    columns = ("output", "largest difference", "mean", "largest number", "share")
    allowed = certificate["tolerance"]
    note = "" if allowed is None else f'<p class="more">A share of {allowed:g} is allowed in this precision.</p>'
    return PageSection("Differences", render_table(rows, columns=columns, style="numbers") + note)


def _trials(certificate: Mapping[str, Any]) -> PageSection:
    rows = [
        (
            one["batch"],
            f"{one['height']} x {one['width']}",
            _number(one["largest"], ".2e"),
            _number(one["share"], ".1e"),
        )
        for one in certificate["trials"]
    ]
    columns = ("images at once", "size", "largest difference", "share")
    return PageSection("Batches and sizes", render_table(rows, columns=columns, style="numbers"))


def _artefact(record: ExportRecord, certificate: Mapping[str, Any]) -> PageSection:
    given = record.input
    size = "any multiple of " + str(given.multiple) if given.multiple else f"{given.height} x {given.width}"
    rows = [
        ("takes", f"{given.dtype}, {given.layout}, {size}; normalised inside, resized by whoever asks"),
        ("gives", ", ".join(f"{name} {list(shape)}" for name, shape in record.outputs.items())),
        ("model", record.model.source),
        ("weights", f"SHA-256 {record.model.weights_sha256}"),
        *((name, f"SHA-256 {digest}") for name, digest in record.files.items()),
        ("versions", certificate["versions"]),
        ("machine", certificate["machine"]),
        ("made", certificate["made"]),
    ]
    return PageSection("What was exported", render_table(rows, style="facts"))


def _facts(title: str, facts: Mapping[str, Any]) -> PageSection:
    rows = [
        (key.replace("_", " "), value if isinstance(value, str) else json.dumps(value)) for key, value in facts.items()
    ]
    return PageSection(title, render_table(rows, style="facts"))


def _choice(choice: Mapping[str, Any]) -> PageSection:
    """The measurements by which an engine was chosen."""
    rows = [
        (
            one["engine"],
            one["threads"],
            one["batch"],
            Way(one["threads"], one.get("part"), one.get("lanes", 1)).at_a_time,
            f"{one['images_per_second']:.1f}",
            f"{one['p50_ms']:.1f}",
            f"{one['p99_ms']:.1f}",
        )
        for one in choice.get("measurements", [])
    ]
    columns = ("engine", "threads", "batch", "at a time", "images/s", "p50, ms", "p99, ms")
    return PageSection("Why this engine", render_table(rows, columns=columns, style="numbers"))
