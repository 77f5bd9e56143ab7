"""The most wrong answers, with their pictures as far as the data is still there."""

from vitrail.data.contract import Dataset
from vitrail.data.doctor.findings import Place
from vitrail.data.doctor.thumbnails import Thumbnails
from vitrail.data.stored import OpenedSource
from vitrail.pages.frame import PageSection
from vitrail.pages.pictures import render_figure, render_image
from vitrail.pages.tables import render_table
from vitrail.pages.words import Html, count, text
from vitrail.tasks.classify.report.answered import Classes, Predictions
from vitrail.tasks.classify.report.answers import find_most_wrong
from vitrail.tasks.images.run_data import OpenedData

_MAX_PICTURES = 28  # four rows, about 200 kB


def most_wrong_section(opened: OpenedData, predictions: Predictions, classes: Classes) -> PageSection:
    """The mistakes of which the model was surest."""
    num_wrong, num_images = int((~predictions.is_right).sum()), len(predictions.targets)
    told = (
        f"<p>Of the mistakes ({num_wrong:,} of {count(num_images, 'image')} of val) those the model was surest of: its "
        '<span class="wrong">answer</span> and the <span class="right">label</span>, with the probabilities it gave '
        "them. Look for wrong labels among them.</p>"
    )
    return PageSection(
        "Most wrong pictures", told + _show_most_wrong(opened, predictions, classes), anchor="most-wrong"
    )


def _show_most_wrong(opened: OpenedData, predictions: Predictions, classes: Classes) -> str:
    """The surest wrong answers: pictures where they can be had, else a table."""
    places = find_most_wrong(predictions, limit=_MAX_PICTURES)
    if not places:
        return "<p>There is not one mistake.</p>"
    dataset, reason = _choose_data(opened, predictions, classes, places)
    if dataset is None:
        rows = ([str(predictions.indices[place]), *_describe(predictions, classes, place)] for place in places)
        table = render_table(rows, columns=("image of val", "answer", "label"))
        return f'<p class="more">No pictures: {text(reason)}</p>{table}'
    pictures = Thumbnails(OpenedSource([dataset]), limit=_MAX_PICTURES)
    figures = "".join(_render_figure(predictions, classes, place, dataset, pictures) for place in places)
    return f'<div class="pictures even">{figures}</div>'


def _choose_data(
    opened: OpenedData, predictions: Predictions, classes: Classes, places: list[int]
) -> tuple[Dataset | None, str]:
    """The val split, or why it can't be used."""
    if opened.data is None:
        return None, opened.reason
    val, level = opened.data.val, opened.data.val.level(opened.data.level)
    for place in places:
        index, target = int(predictions.indices[place]), int(predictions.targets[place])
        if index >= len(val) or level.is_multiple or level.classes[level.labels[index]] != classes.name(target):
            return None, "the data is no longer what the run was evaluated on."
    return val, ""


def _render_figure(
    predictions: Predictions, classes: Classes, place: int, dataset: Dataset, pictures: Thumbnails
) -> str:
    index = int(predictions.indices[place])
    where = dataset.locate(index)
    address = pictures.show(Place(path=where, split=dataset.split, index=index))
    name = where.replace("\\", "/").rpartition("/")[2]
    caption = "<br>".join([*_describe(predictions, classes, place), f"<small>{text(name)}</small>"])
    return render_figure(render_image(address), caption, title=where)


def _describe(predictions: Predictions, classes: Classes, place: int) -> tuple[Html, Html]:
    """The answer and the label, with their probabilities."""
    answer, label = (
        Html(f'<span class="{kind}">{text(classes.name(int(index)))}</span> {_percent(float(probability))}')
        for kind, index, probability in (
            ("wrong", predictions.predicted[place], predictions.confidence[place]),
            ("right", predictions.targets[place], predictions.target_probability[place]),
        )
    )
    return answer, label


def _percent(probability: float) -> str:
    digits = "&lt; 0.1" if 0 < probability < 0.001 else f"{100 * probability:.1f}"
    return f'<span class="percent">{digits}&nbsp;%</span>'
