"""A linear head for segmentation: what the patches of a trunk say about classes, each by itself."""

from torch import Tensor, nn


class LinearSegmenter(nn.Module):
    """Batch norm and a product: logits on the grid of the trunk's last map."""

    def __init__(self, in_channels: int, *, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels)
        self.classifier = nn.Conv2d(in_channels, num_classes, 1)

    def forward(self, maps: Tensor) -> Tensor:  # [batch, channels, rows, columns] -> [batch, classes, rows, columns]
        return self.classifier(self.norm(maps))
