"""The sections and the lines that classification adds to what is told of a run."""

from collections.abc import Iterator

from vitrail.pages.frame import PageSection
from vitrail.tasks.classify.report.answered import read_classes, read_predictions, read_scores
from vitrail.tasks.classify.report.answers import calibrate, count_mistakes
from vitrail.tasks.classify.report.classes import calibration_section, class_accuracy_section, pairs_section
from vitrail.tasks.classify.report.matrix import confusion_section
from vitrail.tasks.classify.report.most_wrong import most_wrong_section
from vitrail.tasks.classify.report.scores import scores_section
from vitrail.tasks.contract import RunReader
from vitrail.tasks.images.run_data import OpenedData

_NUM_PAIRS = 3


def answer_sections(run: RunReader, opened: OpenedData) -> Iterator[PageSection]:
    """What the answers of the last evaluation come to; nothing where there are none."""
    classes, predictions = read_classes(run), read_predictions(run)
    if predictions is None:
        if scores := read_scores(run):  # of images with several labels
            yield scores_section(scores, classes)
        return
    mistakes = count_mistakes(predictions, num_classes=len(classes.names))
    yield most_wrong_section(opened, predictions, classes)
    yield confusion_section(mistakes, classes)
    yield pairs_section(mistakes, classes)
    yield calibration_section(calibrate(predictions))
    yield class_accuracy_section(mistakes, classes)
    yield scores_section(mistakes.scores, classes)


def answer_remarks(run: RunReader) -> Iterator[str]:
    """What was most often mistaken, for the terminal."""
    classes, predictions = read_classes(run), read_predictions(run)
    if predictions is None:
        return
    pairs = count_mistakes(predictions, num_classes=len(classes.names)).pairs[:_NUM_PAIRS]
    named = (f"{classes.name(pair.target)} for {classes.name(pair.predicted)} ({pair.num_images})" for pair in pairs)
    yield f"Most often mistaken: {', '.join(named)}." if pairs else "Not one mistake on val."
