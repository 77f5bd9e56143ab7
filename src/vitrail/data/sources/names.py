"""The public data sets that have a reader of their own, by name; light to import, so that help texts may list them."""

NAMED: tuple[str, ...] = (
    "cifar10",
    "cifar100",
    "fashion_mnist",
    "flowers102",
    "stanford_cars",
    "food101",
    "oxford_pets",
    "imagenet",
    "imagenet_v2",
    "imagenet_real",
    "imagenet21k",
    "inaturalist2018",
    "inaturalist2019",
)
# Kinds of data with masks or boxes; `data/dense/opening.py` opens them.
MARKED_KINDS: tuple[str, ...] = ("pairs", "camvid", "ade20k", "cityscapes", "voc", "coco", "yolo")
