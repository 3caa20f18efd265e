"""A small Qwen2.5-VL with drawn weights, and what turns texts and images into its inputs."""

import json
from pathlib import Path
from typing import Any

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip


def make_qwen_vl(folder: Path) -> Path:
    """Its files, in a folder of its own."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    folder.mkdir(parents=True)
    ids = _make_tokenizer(folder)
    vision = {
        "depth": 4, "hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "out_hidden_size": 512,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
        "fullatt_block_indexes": [1, 3],
    }  # fmt: skip
    text = {
        "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 2048,
        "initializer_range": 0.05, "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"],
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
    }  # fmt: skip
    names = {"image_token_id": "image_pad", "video_token_id": "video_pad"}
    names |= {f"vision_{end}_token_id": f"vision_{end}" for end in ("start", "end")}
    known = {name: ids[f"<|{token}|>"] for name, token in names.items()}
    torch.manual_seed(0)
    model: Any = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**text, **known, vision_config=vision))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def _make_tokenizer(folder: Path) -> dict[str, int]:
    """One that has a token for each byte. Returns the numbers of those that stand for something else."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"model_max_length": 2048}))
    (folder / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    pixels = {"min_pixels": 56 * 56, "max_pixels": 448 * 448, "patch_size": 14, "temporal_patch_size": 2}
    told = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps({**told, **pixels, "merge_size": 2}))
    return {token: tokenizer.token_to_id(token) for token in SPECIAL}
