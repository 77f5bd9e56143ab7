"""The most wrong answers, with their pictures as far as the data is still there."""

from vitrail.data.contract import Dataset
from vitrail.data.doctor.findings import Place
from vitrail.data.doctor.pictures import Pictures
from vitrail.data.page import text
from vitrail.data.stored import OpenedSource
from vitrail.tasks.images.labelled_data import open_labelled
from vitrail.training.runs.report.answers import find_most_wrong
from vitrail.training.runs.report.record import Predictions, RunRecord

_MAX_PICTURES = 28  # four rows, about 200 kB


def show_most_wrong(run: RunRecord, predictions: Predictions, *, val: Dataset | None) -> str:
    """The surest wrong answers: pictures where they can be had, else a table."""
    places = find_most_wrong(predictions, limit=_MAX_PICTURES)
    if not places:
        return "<p>There is not one mistake.</p>"
    dataset, reason = _find_data(run, predictions, places, val=val)
    if dataset is None:
        rows = "".join(f"<tr>{_render_row(run, predictions, place)}</tr>" for place in places)
        head = "<tr><th>image of val</th><th>answer</th><th>label</th></tr>"
        return f'<p class="more">No pictures: {text(reason)}</p><table class="wrong">{head}{rows}</table>'
    pictures = Pictures(OpenedSource([dataset]), limit=_MAX_PICTURES)
    figures = "".join(_render_figure(run, predictions, place, dataset, pictures) for place in places)
    return f'<div class="most-wrong">{figures}</div>'


def _find_data(
    run: RunRecord, predictions: Predictions, places: list[int], *, val: Dataset | None
) -> tuple[Dataset | None, str]:
    """The val split, or why it can't be used."""
    recipe = run.stage_recipe
    if recipe is None:
        return None, "there is no recipe to say where the data is."
    if val is None:
        try:
            val = open_labelled(recipe.data).val
        except Exception as error:  # whatever has become of the data, there is a report
            return None, f"the data cannot be opened ({error})."
    level = val.level(recipe.data.level)
    for place in places:
        index, target = int(predictions.indices[place]), int(predictions.targets[place])
        if index >= len(val) or level.is_multiple or level.classes[level.labels[index]] != run.classes.name(target):
            return None, "the data is no longer what the run was evaluated on."
    return val, ""


def _render_row(run: RunRecord, predictions: Predictions, place: int) -> str:
    return f"<td>{int(predictions.indices[place])}</td>" + "".join(
        f'<td><span class="{kind}">{text(run.classes.name(int(index)))}</span> {_percent(float(probability))}</td>'
        for kind, index, probability in (
            ("answer", predictions.predicted[place], predictions.confidence[place]),
            ("truth", predictions.targets[place], predictions.target_probability[place]),
        )
    )


def _render_figure(run: RunRecord, predictions: Predictions, place: int, dataset: Dataset, pictures: Pictures) -> str:
    index = int(predictions.indices[place])
    where = dataset.locate(index)
    address = pictures.show(Place(path=where, split=dataset.split, index=index))
    picture = f'<img src="{address}" alt="">' if address else '<div class="none"></div>'
    target, predicted = (run.classes.name(int(of[place])) for of in (predictions.targets, predictions.predicted))
    name = where.replace("\\", "/").rpartition("/")[2]
    return (
        f'<figure title="{text(where)}">{picture}<figcaption>'
        f'<span class="answer">{text(predicted)}</span> {_percent(float(predictions.confidence[place]))}<br>'
        f'<span class="truth">{text(target)}</span> {_percent(float(predictions.target_probability[place]))}<br>'
        f"<small>{text(name)}</small></figcaption></figure>"
    )


def _percent(probability: float) -> str:
    digits = "&lt; 0.1" if 0 < probability < 0.001 else f"{100 * probability:.1f}"
    return f'<span class="percent">{digits}&nbsp;%</span>'
