"""The numbers that say how good masks are; the first decides which weights are the best."""

from vitrail.tasks.results import Measure

MEASURES = (
    Measure("mean_iou", "mean IoU", chart="Mean intersection over union on val, %"),
    Measure("pixel_accuracy", "right pixels", is_headline=True, chart="Right pixels of val, %"),
    Measure("class_accuracy", "right pixels, mean of classes", chart="Right pixels of val, %"),
)
LOSSES = (
    Measure("pixels", "pixels", unit="", is_higher_better=False, digits=4, chart="Parts of the loss"),
    Measure("auxiliary", "auxiliary head", unit="", is_higher_better=False, digits=4, chart="Parts of the loss"),
)
