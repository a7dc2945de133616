"""Architectures of torchvision beyond classification: segmentation, detection, video, optical flow."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.families.family import Family, noise

CLASSES = 5


def image() -> list[Any]:
    return [noise(2, 3, 32, 32)]


def clip(frames: int = 4, side: int = 32) -> list[Any]:
    return [noise(1, 3, frames, side, side)]


def pair() -> list[Any]:
    updates = 3
    return [noise(1, 3, 128, 128), noise(1, 3, 128, 128).flip(-1), updates]


def scene() -> list[Any]:
    """Two images of different sizes, each with two boxes that have a class, a mask and three key points."""
    boxes = torch.tensor([[4.0, 4.0, 40.0, 40.0], [20.0, 10.0, 60.0, 50.0]])
    images, targets = [noise(3, 64, 64), noise(3, 56, 72)], []
    for x in images:
        masks = torch.zeros(2, *x.shape[1:], dtype=torch.uint8)
        masks[0, 4:40, 4:40], masks[1, 10:50, 20:60] = 1, 1
        points = torch.tensor([[[10.0, 10, 1], [20, 20, 1], [30, 30, 0]], [[25, 15, 1], [40, 30, 1], [55, 45, 1]]])
        targets.append({"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks, "keypoints": points})
    return [images, targets]


#: Sides that a detector scales its images to; so small that a step takes a moment.
SMALL = {"min_size": 64, "max_size": 96}
#: And so few proposals, for those that look at each one.
FEW = {**SMALL, "box_batch_size_per_image": 16, "rpn_post_nms_top_n_train": 32}
BARE = {"weights": None, "weights_backbone": None}


def _mvit(second: bool) -> dict[str, Any]:
    """A small one of the first or the second version: three blocks, the second of them pools."""
    from torchvision.models.video.mvit import MSBlockConfig

    kernel, whole, half = [3, 3, 3], [1, 1, 1], [1, 2, 2]
    blocks = [
        MSBlockConfig(1, 16, 16, kernel, kernel, whole, half),
        MSBlockConfig(2, 16, 32, kernel, kernel, half, whole),
        MSBlockConfig(2, 32, 32, [], kernel, [], half),
    ]
    versions = {
        "rel_pos_embed": second, "residual_pool": second, "residual_with_cls_embed": not second, "proj_after_attn": second,
    }  # fmt: skip
    size = {"spatial_size": (32, 32), "temporal_size": 4, "block_setting": blocks}
    return {**versions, **size, "dropout": 0.1, "attention_dropout": 0.1, "num_classes": CLASSES}


#: Name to (the builder in torchvision, its settings, what it is fed).
TABLE: dict[str, tuple[str, dict[str, Any], Callable[[], list[Any]]]] = {
    "deeplab v3, mobilenet": ("segmentation.deeplabv3_mobilenet_v3_large", {**BARE, "num_classes": CLASSES, "aux_loss": True}, image),
    "deeplab v3, resnet": ("segmentation.deeplabv3_resnet50", {**BARE, "num_classes": CLASSES, "aux_loss": True}, image),
    "fcn": ("segmentation.fcn_resnet50", {**BARE, "num_classes": CLASSES, "aux_loss": True}, image),
    "lr-aspp": ("segmentation.lraspp_mobilenet_v3_large", {**BARE, "num_classes": CLASSES}, image),
    "faster r-cnn": ("detection.fasterrcnn_resnet50_fpn", {**BARE, **FEW, "num_classes": CLASSES}, scene),
    "faster r-cnn v2": ("detection.fasterrcnn_resnet50_fpn_v2", {**BARE, **FEW, "num_classes": CLASSES}, scene),
    "faster r-cnn, mobilenet": ("detection.fasterrcnn_mobilenet_v3_large_320_fpn", {**BARE, **FEW, "num_classes": CLASSES}, scene),
    "fcos": ("detection.fcos_resnet50_fpn", {**BARE, **SMALL, "num_classes": CLASSES}, scene),
    "keypoint r-cnn": ("detection.keypointrcnn_resnet50_fpn", {**BARE, **FEW, "num_classes": CLASSES, "num_keypoints": 3}, scene),
    "mask r-cnn": ("detection.maskrcnn_resnet50_fpn", {**BARE, **FEW, "num_classes": CLASSES}, scene),
    "mask r-cnn v2": ("detection.maskrcnn_resnet50_fpn_v2", {**BARE, **FEW, "num_classes": CLASSES}, scene),
    "retinanet": ("detection.retinanet_resnet50_fpn", {**BARE, **SMALL, "num_classes": CLASSES}, scene),
    "retinanet v2": ("detection.retinanet_resnet50_fpn_v2", {**BARE, **SMALL, "num_classes": CLASSES}, scene),
    "ssd": ("detection.ssd300_vgg16", {**BARE, "num_classes": CLASSES}, scene),
    "ssd lite": ("detection.ssdlite320_mobilenet_v3_large", {**BARE, "num_classes": CLASSES}, scene),
    "mvit": ("video.MViT", _mvit(second=False), lambda: clip(4, 32)),
    "mvit v2": ("video.MViT", _mvit(second=True), lambda: clip(4, 32)),
    "resnet 2+1d": ("video.r2plus1d_18", {"weights": None, "num_classes": CLASSES}, clip),
    "resnet 3d": ("video.r3d_18", {"weights": None, "num_classes": CLASSES}, clip),
    "resnet mixed": ("video.mc3_18", {"weights": None, "num_classes": CLASSES}, clip),
    "s3d": ("video.s3d", {"weights": None, "num_classes": CLASSES}, lambda: clip(14, 224)),
    "swin 3d": ("video.swin3d_t", {"weights": None, "num_classes": CLASSES, "dropout": 0.1}, clip),
    "raft": ("optical_flow.raft_large", {"weights": None}, pair),
    "raft small": ("optical_flow.raft_small", {"weights": None}, pair),
}  # fmt: skip
SAMPLE = {"lr-aspp", "ssd lite", "resnet mixed", "raft small"}


def _build(name: str, settings: dict[str, Any]) -> nn.Module:
    from torchvision import models

    torch.manual_seed(0)
    module, builder = name.split(".")
    place = getattr(models, module)
    made: nn.Module = getattr(place.mvit if builder == "MViT" else place, builder)(**settings)
    return made.train()


def _family(name: str) -> Family:
    builder, settings, batch = TABLE[name]
    return Family(lambda: _build(builder, settings), batch, "torchvision", name in SAMPLE)


FAMILIES = {name: _family(name) for name in TABLE}
