"""Architectures of transformers, each from a small random configuration."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.families.family import Family, noise, numbers

WORDS, LENGTH, SIDE = 64, 12, 32

#: The usual names of sizes; a configuration adds to these, or takes some away with None.
TINY: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
#: Of encoders with decoders.
BOTH: dict[str, Any] = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
#: Of image networks.
SEEN: dict[str, Any] = {
    "image_size": SIDE, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "num_labels": 5, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
#: Of networks for sound.
HEARD: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "conv_dim": (16, 16), "conv_kernel": (8, 4), "conv_stride": (4, 4), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "layerdrop": 0.0,
}  # fmt: skip


def words() -> dict[str, Any]:
    ids = numbers(WORDS, 2, LENGTH)
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def plain_words() -> dict[str, Any]:
    """Without padding, for those that take no mask."""
    ids = numbers(WORDS, 2, LENGTH)
    return {"input_ids": ids, "labels": ids}


def hidden_words() -> dict[str, Any]:
    """For a network that gives states, with no loss of its own."""
    return {"input_ids": numbers(WORDS, 2, LENGTH)}


def which_replaced() -> dict[str, Any]:
    return {**words(), "labels": numbers(WORDS, 2, LENGTH) % 2}


def image() -> dict[str, Any]:
    return {"pixel_values": noise(2, 3, SIDE, SIDE), "labels": torch.tensor([1, 3])}


def only_image() -> dict[str, Any]:
    return {"pixel_values": noise(2, 3, SIDE, SIDE)}


def map_of_labels() -> dict[str, Any]:
    return {"pixel_values": noise(2, 3, SIDE, SIDE), "labels": numbers(10, 2, SIDE, SIDE) - 5}


def image_and_words() -> dict[str, Any]:
    return {"input_ids": numbers(WORDS, 2, LENGTH), "pixel_values": noise(2, 3, SIDE, SIDE), "return_loss": True}


def sound() -> dict[str, Any]:
    return {"input_values": noise(2, 800), "labels": numbers(WORDS, 2, 6)}


def spectrum(width: int = 40) -> dict[str, Any]:
    return {"input_features": noise(2, 16, width), "labels": numbers(WORDS, 2, 6)}


def whisper() -> dict[str, Any]:
    return {"input_features": noise(2, 16, 40), "labels": numbers(WORDS, 2, 6)}


def spectrogram() -> dict[str, Any]:
    return {"input_values": noise(2, 32, 16), "labels": torch.tensor([1, 3])}


def _clip() -> dict[str, Any]:
    seen = {name: SEEN[name] for name in ("image_size", "patch_size", "hidden_size", "num_hidden_layers")}
    heads = {"num_attention_heads": 2, "intermediate_size": 64, "attention_dropout": 0.1}
    return {"text_config": {**TINY, **heads}, "vision_config": {**seen, **heads}, "projection_dim": 16}


Batch = Callable[[], dict[str, Any]]
#: Name to (the configuration's class, the model's, what is set, what it is fed).
TABLE: dict[str, tuple[str, str, dict[str, Any], Batch]] = {
    # Encoders of text.
    "albert": ("AlbertConfig", "AlbertForMaskedLM", {**TINY, "embedding_size": 16}, words),
    "bert": ("BertConfig", "BertForMaskedLM", TINY, words),
    "big bird": ("BigBirdConfig", "BigBirdForMaskedLM", {**TINY, "attention_type": "original_full"}, words),
    "canine": ("CanineConfig", "CanineForTokenClassification", {**TINY, "num_labels": WORDS, "num_hash_buckets": 64}, words),
    "convbert": ("ConvBertConfig", "ConvBertForMaskedLM", {**TINY, "embedding_size": 32}, words),
    "deberta": ("DebertaConfig", "DebertaForMaskedLM", {**TINY, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, words),
    "deberta v2": ("DebertaV2Config", "DebertaV2ForMaskedLM", {**TINY, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "conv_kernel_size": 3}, words),
    "distilbert": ("DistilBertConfig", "DistilBertForMaskedLM", {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}, words),
    "electra": ("ElectraConfig", "ElectraForPreTraining", {**TINY, "embedding_size": 16}, which_replaced),
    "ernie": ("ErnieConfig", "ErnieForMaskedLM", TINY, words),
    "esm": ("EsmConfig", "EsmForMaskedLM", {**TINY, "position_embedding_type": "rotary", "mask_token_id": 3}, words),
    "fnet": ("FNetConfig", "FNetForMaskedLM", TINY, plain_words),
    "funnel": ("FunnelConfig", "FunnelForMaskedLM", {"vocab_size": WORDS, "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "block_sizes": [1, 1], "num_decoder_layers": 1}, words),
    "ibert": ("IBertConfig", "IBertForMaskedLM", TINY, words),
    "layoutlm": ("LayoutLMConfig", "LayoutLMForMaskedLM", TINY, words),
    "longformer": ("LongformerConfig", "LongformerForMaskedLM", {**TINY, "attention_window": 4}, words),
    "luke": ("LukeConfig", "LukeForMaskedLM", {**TINY, "entity_vocab_size": 16, "entity_emb_size": 8}, words),
    "mobilebert": ("MobileBertConfig", "MobileBertForMaskedLM", {**TINY, "embedding_size": 32, "intra_bottleneck_size": 16, "true_hidden_size": 16}, words),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", {**TINY, "cls_token_id": 0, "sep_token_id": 2, "mlp_dropout": 0.1, "attention_dropout": 0.1}, words),
    "mpnet": ("MPNetConfig", "MPNetForMaskedLM", TINY, words),
    "nystromformer": ("NystromformerConfig", "NystromformerForMaskedLM", {**TINY, "num_landmarks": 4, "segment_means_seq_len": LENGTH}, plain_words),
    "rembert": ("RemBertConfig", "RemBertForMaskedLM", {**TINY, "input_embedding_size": 16, "output_embedding_size": 24}, words),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", TINY, words),
    "roformer": ("RoFormerConfig", "RoFormerForMaskedLM", {**TINY, "embedding_size": 32}, words),
    "splinter": ("SplinterConfig", "SplinterModel", TINY, hidden_words),
    "squeezebert": ("SqueezeBertConfig", "SqueezeBertForMaskedLM", {**TINY, "embedding_size": 32}, words),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", TINY, words),
    "xlnet": ("XLNetConfig", "XLNetLMHeadModel", {"vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}, words),
    "xmod": ("XmodConfig", "XmodForMaskedLM", {**TINY, "default_language": "en_XX"}, words),
    "yoso": ("YosoConfig", "YosoForMaskedLM", {**TINY, "use_expectation": True}, words),
    # Decoders of text.
    "bloom": ("BloomConfig", "BloomForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 2, "hidden_dropout": 0.1, "attention_dropout": 0.1}, words),
    "codegen": ("CodeGenConfig", "CodeGenForCausalLM", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4, "resid_pdrop": 0.1}, words),
    "cohere": ("CohereConfig", "CohereForCausalLM", TINY, words),
    "ctrl": ("CTRLConfig", "CTRLLMHeadModel", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 2, "dff": 64, "n_positions": 64}, words),
    "deepseek v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {**TINY, "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}, words),
    "falcon": ("FalconConfig", "FalconForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_dropout": 0.1}, words),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**TINY, "num_key_value_heads": 1, "head_dim": 16, "attention_dropout": 0.1}, words),
    "gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", {**TINY, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 4}, words),
    "glm": ("GlmConfig", "GlmForCausalLM", {**TINY, "num_key_value_heads": 1, "head_dim": 16}, words),
    "gpt-2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}, words),
    "gpt-bigcode": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}, words),
    "gpt-j": ("GPTJConfig", "GPTJForCausalLM", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "rotary_dim": 8, "resid_pdrop": 0.1}, words),
    "gpt-neo": ("GPTNeoConfig", "GPTNeoForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4, "max_position_embeddings": 64, "resid_dropout": 0.1}, words),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**TINY, "hidden_dropout": 0.1, "attention_dropout": 0.1}, words),
    "gpt-oss": ("GptOssConfig", "GptOssForCausalLM", {**TINY, "num_key_value_heads": 1, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}, words),
    "granite": ("GraniteConfig", "GraniteForCausalLM", TINY, words),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**TINY, "num_key_value_heads": 1, "attention_dropout": 0.1}, words),
    "mamba": ("MambaConfig", "MambaForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, plain_words),
    "mamba 2": ("Mamba2Config", "Mamba2ForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4}, plain_words),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**TINY, "num_key_value_heads": 1, "sliding_window": 4, "attention_dropout": 0.1}, words),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**TINY, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}, words),
    "mpt": ("MptConfig", "MptForCausalLM", {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 2, "max_seq_len": 64, "resid_pdrop": 0.1}, words),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", TINY, words),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {**TINY, "num_experts": 4, "num_experts_per_tok": 2}, words),
    "opt": ("OPTConfig", "OPTForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "word_embed_proj_dim": 16, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}, words),
    "persimmon": ("PersimmonConfig", "PersimmonForCausalLM", {**TINY, "hidden_dropout": 0.1}, words),
    "phi": ("PhiConfig", "PhiForCausalLM", {**TINY, "resid_pdrop": 0.1, "embd_pdrop": 0.1}, words),
    "phi 3": ("Phi3Config", "Phi3ForCausalLM", {**TINY, "resid_pdrop": 0.1}, words),
    "qwen 2": ("Qwen2Config", "Qwen2ForCausalLM", {**TINY, "num_key_value_heads": 1, "attention_dropout": 0.1}, words),
    "qwen 2 moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", {**TINY, "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}, words),
    "qwen 3": ("Qwen3Config", "Qwen3ForCausalLM", {**TINY, "num_key_value_heads": 1, "head_dim": 16}, words),
    "recurrent gemma": ("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", {**TINY, "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 16, "lru_width": 32, "attention_window_size": 8}, plain_words),
    "rwkv": ("RwkvConfig", "RwkvForCausalLM", {"vocab_size": WORDS, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}, plain_words),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", {**TINY, "num_key_value_heads": 1, "hidden_dropout": 0.1}, words),
    "starcoder 2": ("Starcoder2Config", "Starcoder2ForCausalLM", {**TINY, "num_key_value_heads": 1, "residual_dropout": 0.1}, words),
    "xglm": ("XGLMConfig", "XGLMForCausalLM", {"vocab_size": WORDS, "d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 2, "max_position_embeddings": 64}, words),
    # Encoders with decoders.
    "bart": ("BartConfig", "BartForConditionalGeneration", BOTH, words),
    "blenderbot": ("BlenderbotConfig", "BlenderbotForConditionalGeneration", BOTH, words),
    "fsmt": ("FSMTConfig", "FSMTForConditionalGeneration", {**{k: v for k, v in BOTH.items() if k != "vocab_size"}, "langs": ["en", "de"], "src_vocab_size": WORDS, "tgt_vocab_size": WORDS}, words),
    "led": ("LEDConfig", "LEDForConditionalGeneration", {**BOTH, "attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}, words),
    "m2m 100": ("M2M100Config", "M2M100ForConditionalGeneration", BOTH, words),
    "marian": ("MarianConfig", "MarianMTModel", BOTH, words),
    "mbart": ("MBartConfig", "MBartForConditionalGeneration", BOTH, words),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", BOTH, words),
    "prophetnet": ("ProphetNetConfig", "ProphetNetForConditionalGeneration", {"vocab_size": WORDS, "hidden_size": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2, "max_position_embeddings": 64, "decoder_start_token_id": 2}, words),
    "t5": ("T5Config", "T5ForConditionalGeneration", {"vocab_size": WORDS, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}, words),
    "t5 gated": ("T5Config", "T5ForConditionalGeneration", {"vocab_size": WORDS, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, words),
    # Sound.
    "audio spectrogram transformer": ("ASTConfig", "ASTForAudioClassification", {**SEEN, "max_length": 32, "num_mel_bins": 16, "frequency_stride": 8, "time_stride": 8}, spectrogram),
    "hubert": ("HubertConfig", "HubertForCTC", HEARD, sound),
    "sew": ("SEWConfig", "SEWForCTC", {**HEARD, "squeeze_factor": 2}, sound),
    "speech to text": ("Speech2TextConfig", "Speech2TextForConditionalGeneration", {**BOTH, "input_feat_per_channel": 40, "conv_channels": 16, "max_source_positions": 64, "max_target_positions": 64}, spectrum),
    "unispeech": ("UniSpeechConfig", "UniSpeechForCTC", HEARD, sound),
    "wav2vec 2": ("Wav2Vec2Config", "Wav2Vec2ForCTC", HEARD, sound),
    "wavlm": ("WavLMConfig", "WavLMForCTC", HEARD, sound),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", {**BOTH, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 32, "dropout": 0.1, "suppress_tokens": None, "begin_suppress_tokens": None}, whisper),
    # Images.
    "beit": ("BeitConfig", "BeitForImageClassification", {**SEEN, "use_relative_position_bias": True}, image),
    "bit": ("BitConfig", "BitForImageClassification", {"embedding_size": 32, "hidden_sizes": [128, 128], "depths": [1, 1], "num_labels": 5}, image),
    "convnext": ("ConvNextConfig", "ConvNextForImageClassification", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.1, "num_labels": 5}, image),
    "convnext v2": ("ConvNextV2Config", "ConvNextV2ForImageClassification", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.1, "num_labels": 5}, image),
    "data2vec vision": ("Data2VecVisionConfig", "Data2VecVisionForImageClassification", SEEN, image),
    "deit": ("DeiTConfig", "DeiTForImageClassification", SEEN, image),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", {**SEEN, "drop_path_rate": 0.1}, image),
    "dpt": ("DPTConfig", "DPTForSemanticSegmentation", {**SEEN, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8}, map_of_labels),
    "efficientnet": ("EfficientNetConfig", "EfficientNetForImageClassification", {"image_size": SIDE, "width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640, "num_labels": 5}, image),
    "focalnet": ("FocalNetConfig", "FocalNetForImageClassification", {"image_size": SIDE, "embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2], "focal_windows": [3, 3], "num_labels": 5}, image),
    "levit": ("LevitConfig", "LevitForImageClassification", {"image_size": 64, "hidden_sizes": [16, 32, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "num_labels": 5}, lambda: {"pixel_values": noise(2, 3, 64, 64), "labels": torch.tensor([1, 3])}),
    "mobilenet v1": ("MobileNetV1Config", "MobileNetV1ForImageClassification", {"image_size": SIDE, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.1, "num_labels": 5}, image),
    "mobilevit": ("MobileViTConfig", "MobileViTForImageClassification", {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "num_attention_heads": 2, "num_labels": 5}, lambda: {"pixel_values": noise(2, 3, 64, 64), "labels": torch.tensor([1, 3])}),
    "poolformer": ("PoolFormerConfig", "PoolFormerForImageClassification", {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_labels": 5}, image),
    "pvt": ("PvtConfig", "PvtForImageClassification", {"image_size": SIDE, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2], "num_labels": 5}, image),
    "regnet": ("RegNetConfig", "RegNetForImageClassification", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8, "num_labels": 5}, image),
    "resnet": ("ResNetConfig", "ResNetForImageClassification", {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "num_labels": 5}, image),
    "segformer": ("SegformerConfig", "SegformerForSemanticSegmentation", {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2], "decoder_hidden_size": 16, "num_labels": 5}, map_of_labels),
    "swin": ("SwinConfig", "SwinForImageClassification", {"image_size": SIDE, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4, "hidden_dropout_prob": 0.1, "num_labels": 5}, image),
    "swin v2": ("Swinv2Config", "Swinv2ForImageClassification", {"image_size": SIDE, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4, "hidden_dropout_prob": 0.1, "num_labels": 5}, image),
    "vit": ("ViTConfig", "ViTForImageClassification", SEEN, image),
    "vit mae": ("ViTMAEConfig", "ViTMAEForPreTraining", {**SEEN, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 32}, only_image),
    "yolos": ("YolosConfig", "YolosForObjectDetection", {**SEEN, "image_size": [SIDE, SIDE], "num_detection_tokens": 4}, only_image),
    # Images and text.
    "clip": ("CLIPConfig", "CLIPModel", _clip(), image_and_words),
    "siglip": ("SiglipConfig", "SiglipModel", {k: v for k, v in _clip().items() if k != "projection_dim"}, image_and_words),
    "vilt": ("ViltConfig", "ViltForQuestionAnswering", {**TINY, **SEEN}, lambda: {"input_ids": numbers(WORDS, 2, LENGTH), "pixel_values": noise(2, 3, SIDE, SIDE), "labels": noise(2, 5).sigmoid()}),
}  # fmt: skip
SAMPLE = {"bert", "llama", "gpt-2", "t5", "vit"}


def _build(config: str, model: str, settings: dict[str, Any]) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
    return made.train()


def _family(name: str) -> Family:
    config, model, settings, batch = TABLE[name]
    return Family(lambda: _build(config, model, settings), batch, "transformers", name in SAMPLE)


FAMILIES = {name: _family(name) for name in TABLE}
