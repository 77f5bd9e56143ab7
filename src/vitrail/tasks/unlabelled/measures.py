"""What runs without labels are measured by."""

from vitrail.tasks.results import Measure

_NEIGHBOURS = "Classes by features, %"
MEASURES = (
    Measure("knn_top1", "kNN top-1", chart=_NEIGHBOURS),
    Measure("knn_mean_average_precision", "kNN mean average precision", chart=_NEIGHBOURS),
    Measure("probe_top1", "probe top-1", is_headline=True, chart=_NEIGHBOURS),
    Measure("probe_mean_average_precision", "probe mean average precision", is_headline=True, chart=_NEIGHBOURS),
    # How much of their space features fill is a sign of health and no quality: masked runs fill less of it as they get
    # better, and noise fills all. So it chooses no weights: without labels the newest ones count as the best, since the
    # schedules of these methods are made to end well.
    Measure("effective_rank", "effective rank", unit="", digits=1, is_quality=False, chart="Effective rank"),
    Measure("feature_deviation", "feature deviation", unit="", digits=4, is_quality=False, chart="Feature deviation"),
)
# What objectives tell of every step, those of one title in one chart; a method has some of them.
_ENTROPY = "Entropy of the answers, nats"
SIGNALS = (
    Measure("teacher_entropy", "teacher", unit="", chart=_ENTROPY),
    Measure("kl", "", unit="", chart="Divergence (KL) of student from teacher, nats"),
    Measure("information", "", unit="", chart="What answers tell of the image, nats"),
    Measure("feature_deviation", "", unit="", chart="Feature deviation in a batch"),
    Measure("share_of_codes", "", unit="", chart="Share of codes in use in the last training steps"),
)
