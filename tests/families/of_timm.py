"""Architectures of timm, one of each family, with images as small as it takes."""

from typing import Any

import torch
from torch import nn

from tests.families.family import Family, noise

#: Name to (settings, side of its images).
TABLE: dict[str, tuple[dict[str, Any], int]] = {
    "bat_resnext26ts": ({}, 256),
    "beit_base_patch16_224": ({"img_size": 32, "depth": 2, "embed_dim": 64, "num_heads": 2}, 32),
    "botnet26t_256": ({}, 256),
    "cait_xxs24_224": ({"img_size": 32, "depth": 2}, 32),
    "caformer_s18": ({}, 64),
    "coat_tiny": ({"img_size": 64}, 64),
    "coatnet_pico_rw_224": ({"img_size": 64}, 64),
    "convit_tiny": ({"img_size": 32}, 32),
    "convmixer_768_32": ({}, 32),
    "convnext_atto": ({"drop_path_rate": 0.1}, 32),
    "convnextv2_atto": ({"drop_path_rate": 0.1}, 32),
    "crossvit_9_240": ({}, 240),
    "cs3darknet_s": ({}, 32),
    "cspresnet50": ({}, 32),
    "davit_tiny": ({}, 64),
    "deit3_small_patch16_224": ({"img_size": 32, "depth": 2}, 32),
    "densenet121": ({"drop_rate": 0.1}, 32),
    "dla34": ({}, 32),
    "dm_nfnet_f0": ({}, 64),
    "dpn48b": ({}, 32),
    "eca_nfnet_l0": ({}, 32),
    "edgenext_xx_small": ({}, 64),
    "efficientformer_l1": ({}, 224),
    "efficientformerv2_s0": ({}, 224),
    "efficientnet_b0": ({"drop_path_rate": 0.2}, 32),
    "efficientvit_b0": ({}, 64),
    "ese_vovnet19b_dw": ({}, 32),
    "eva02_tiny_patch14_224": ({"img_size": 28, "depth": 2}, 28),
    "fastvit_t8": ({}, 64),
    "fbnetc_100": ({}, 32),
    "focalnet_tiny_srf": ({}, 64),
    "gcvit_xxtiny": ({}, 224),
    "gernet_s": ({}, 32),
    "ghostnet_050": ({}, 32),
    "ghostnetv2_100": ({}, 64),
    "gmlp_ti16_224": ({"img_size": 32}, 32),
    "halonet26t": ({}, 256),
    "hardcorenas_a": ({}, 32),
    "hgnetv2_b0": ({}, 32),
    "hiera_tiny_224": ({}, 224),
    "hrnet_w18_small": ({}, 64),
    "inception_next_atto": ({}, 64),
    "inception_v4": ({}, 96),
    "lambda_resnet26t": ({}, 256),
    "lcnet_050": ({}, 32),
    "levit_128s": ({}, 224),
    "mambaout_femto": ({}, 64),
    "maxvit_rmlp_pico_rw_256": ({"img_size": 64}, 64),
    "mixer_s32_224": ({"img_size": 64}, 64),
    "mobilenetv3_small_050": ({"drop_rate": 0.2}, 32),
    "mobilenetv4_conv_small": ({}, 32),
    "mobileone_s0": ({}, 32),
    "mobilevit_xxs": ({}, 64),
    "mobilevitv2_050": ({}, 64),
    "mvitv2_tiny": ({}, 64),
    "nasnetalarge": ({}, 64),
    "nest_tiny": ({"img_size": 64}, 64),
    "pit_ti_224": ({}, 224),
    "pnasnet5large": ({}, 64),
    "poolformer_s12": ({}, 64),
    "pvt_v2_b0": ({}, 64),
    "rdnet_tiny": ({}, 64),
    "regnetx_002": ({}, 32),
    "regnety_002": ({}, 32),
    "repghostnet_050": ({}, 32),
    "repvgg_a0": ({}, 32),
    "repvit_m0_9": ({}, 64),
    "res2net50_26w_4s": ({}, 32),
    "resmlp_12_224": ({"img_size": 32}, 32),
    "resnest14d": ({}, 32),
    "resnet10t": ({"drop_rate": 0.1}, 32),
    "resnetv2_50": ({}, 32),
    "rexnet_100": ({}, 32),
    "samvit_base_patch16": ({"img_size": 32, "depth": 2, "embed_dim": 64, "num_heads": 2}, 32),
    "selecsls42": ({}, 32),
    "sequencer2d_s": ({"img_size": 56}, 56),
    "shvit_s1": ({}, 128),
    "skresnet18": ({}, 32),
    "starnet_s1": ({}, 32),
    "swiftformer_xs": ({}, 64),
    "swin_tiny_patch4_window7_224": ({"img_size": 56, "depths": (1, 1, 1, 1), "drop_path_rate": 0.1}, 56),
    "swinv2_cr_tiny_224": ({"img_size": 224}, 224),
    "tf_efficientnetv2_b0": ({}, 32),
    "tinynet_e": ({}, 32),
    "tiny_vit_5m_224": ({}, 224),
    "tresnet_m": ({}, 64),
    "twins_pcpvt_small": ({"img_size": 64}, 64),
    "vgg11_bn": ({}, 32),
    "visformer_tiny": ({"img_size": 64}, 64),
    "vit_relpos_small_patch16_224": ({"img_size": 32, "depth": 2}, 32),
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 2, "proj_drop_rate": 0.1, "attn_drop_rate": 0.1}, 32),
    "volo_d1_224": ({"img_size": 64}, 64),
    "wide_resnet50_2": ({}, 32),
    "xception41": ({}, 64),
    "xcit_nano_12_p16_224": ({}, 64),
}  # fmt: skip
SAMPLE = {"vit_tiny_patch16_224", "mobilenetv3_small_050", "convnext_atto", "regnety_002"}


def _build(name: str, settings: dict[str, Any]) -> nn.Module:
    import timm

    torch.manual_seed(0)
    made: nn.Module = timm.create_model(name, pretrained=False, num_classes=5, **settings)
    return made.train()


def _family(name: str) -> Family:
    settings, side = TABLE[name]
    return Family(lambda: _build(name, settings), lambda: [noise(2, 3, side, side)], "timm", name in SAMPLE)


FAMILIES = {name: _family(name) for name in TABLE}
