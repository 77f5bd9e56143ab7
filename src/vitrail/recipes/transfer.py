"""Transfer to smaller data sets: CaiT's (thesis 3.7.1.3) and the ResNet baseline of Grafit's (2.4.6, 2.5.4)."""

from vitrail.recipes.cait import cait
from vitrail.recipes.resnet import resnet_strong
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change

# 3.7.1.3: by how much the learning rate of training is divided, and epochs.
PER_DATA_SET = {
    "cifar10": (100.0, 1000.0),
    "cifar100": (100.0, 1000.0),
    "flowers": (10.0, 1000.0),
    "cars": (10.0, 1000.0),
    "inat18": (10.0, 360.0),
    "inat19": (10.0, 360.0),
}


def transfer(data: str) -> Recipe:
    """CaiT-S36, or another model with model=NAME, fine-tuned on another data set at 224 pixels.

    Command: vitrail train transfer_cifar100 data=cifar100:ROOT out=runs/transfer_cifar100 init=runs/cait_s36
    Cost: not published.
    Published: {rows}; on Flowers with the official train and val together. With model=NAME init=WEIGHTS other models:
        docs/catalogue.md lists their figures.
    Ours: not run.
    """
    divisor, epochs = PER_DATA_SET[data]
    recipe = cait("s36")  # "the same hyperparameters as for training", but for:
    return change(
        recipe,
        {
            "name": f"transfer_{data}",
            "model.init": "runs/cait_s36",
            "model.head_start": "random",
            "epochs": epochs,
            "optimizer.lr": recipe.optimizer.lr / divisor,
            # Silent about it: the cosine must not end above its highest rate.
            "schedule.warmup_lr": 0.0,
            "schedule.min_lr": 0.0,
            "regularisation.drop_path": None,  # that of the model, as in its training
            "evaluation.crop_ratio": 0.875,  # table 3.19
        },
    )


def transfer_resnet() -> Recipe:
    """ResNet-50, pre-trained on ImageNet-1k, fine-tuned on a fine-grained data set.

    Command: vitrail train transfer_resnet data=food101:ROOT out=runs/transfer_resnet_food init=runs/resnet_strong
    Cost: not published.
    Published: Flowers {timm/resnet50: fine-tuned on flowers}, Cars {timm/resnet50: fine-tuned on cars}, Food-101
        {timm/resnet50: fine-tuned on food101}, iNaturalist 2018 {timm/resnet50: fine-tuned on inat18}, 2019
        {timm/resnet50: fine-tuned on inat19} % top-1 (thesis table 2.16, baseline with a linear classifier); with
        model.settings.classifier=mlp {timm/resnet50: MLP classifier, fine-tuned on flowers},
        {timm/resnet50: MLP classifier, fine-tuned on cars}, {timm/resnet50: MLP classifier, fine-tuned on food101},
        {timm/resnet50: MLP classifier, fine-tuned on inat18}, {timm/resnet50: MLP classifier, fine-tuned on inat19}.
    Ours: not run.
    """
    return change(
        resnet_strong(),
        {
            "name": "transfer_resnet",
            "model.init": "runs/resnet_strong",
            "model.head_start": "random",
            "epochs": 240.0,
            "batch_size": 512,
            "optimizer.lr": 0.01,
            "optimizer.reference_batch": None,
            "schedule.warmup_epochs": 0.0,  # "a cosine learning rate schedule starting at 0.01"
        },
    )


def transfer_grafit() -> Recipe:
    """ResNet-50, pre-trained with Grafit on ImageNet-1k, fine-tuned on a fine-grained data set.

    Command: vitrail train transfer_grafit data=food101:ROOT out=runs/transfer_grafit_food init=runs/grafit_1k_resnet50
    Cost: not published.
    Published: Flowers {timm/resnet50: Grafit, fine-tuned on flowers}, Cars {timm/resnet50: Grafit, fine-tuned on cars},
        Food-101 {timm/resnet50: Grafit, fine-tuned on food101}, iNaturalist 2018
        {timm/resnet50: Grafit, fine-tuned on inat18}, 2019 {timm/resnet50: Grafit, fine-tuned on inat19} % top-1
        (thesis table 2.16, with a linear classifier); with model.settings.classifier=mlp
        {timm/resnet50: Grafit, MLP classifier, fine-tuned on flowers},
        {timm/resnet50: Grafit, MLP classifier, fine-tuned on cars},
        {timm/resnet50: Grafit, MLP classifier, fine-tuned on food101},
        {timm/resnet50: Grafit, MLP classifier, fine-tuned on inat18},
        {timm/resnet50: Grafit, MLP classifier, fine-tuned on inat19}.
    Ours: not run.
    """
    # 2.4.6 says that the trunk of Grafit "remains fixed", 2.5.4 that it is kept and the model fine-tuned, as in all
    # methods: the latter.
    return change(transfer_resnet(), {"name": "transfer_grafit", "model.init": "runs/grafit_1k_resnet50"})


def transfer_grafit_384(data: str) -> Recipe:
    """RegNetY-8GF, pre-trained with Grafit, fine-tuned on fine-grained data for 384 pixels.

    Command: vitrail train transfer_grafit_384_flowers data=flowers:ROOT out=runs/transfer_grafit_384_flowers
        init=runs/grafit_1k_regnety_080
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    # Known (2.5.4): epochs, CutMix and FixRes, without their settings. FixRes is a second stage of ours: the crops of
    # evaluation at 384, for a tenth of the epochs at a tenth of the rate.
    epochs = 1000.0 if data in ("flowers", "cars") else 300.0
    stages = (
        {"epochs": epochs},
        {"epochs": epochs / 10, "image_size": 384, "optimizer.lr": 1e-3, "augmentation.crop": "evaluation"},
    )
    return change(
        transfer_resnet(),
        {
            "name": f"transfer_grafit_384_{data}",
            "model.name": "timm/regnety_080",
            "model.init": "runs/grafit_1k_regnety_080",
            "blend.cutmix": 1.0,
            "stages": stages,
        },
    )
