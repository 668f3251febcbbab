# SPDX-License-Identifier: MIT
"""Makes the tiny checkpoints and the logits that `transformers` gives for them.

    python -m venv .venv && .venv/bin/pip install -r tools/goldens/requirements.txt
    .venv/bin/python -P tools/goldens/checkpoints.py tests/data/checkpoints [NAME ...]

Every number comes from a seed. Each checkpoint is written, loaded again from its files, and run in float32 with eager
attention; the same files also run through `oracle` below, a second implementation in float64 that shares no code with
`transformers`, and the largest difference between the two is printed and kept in golden.json.
"""

import contextlib
import json
import math
import pathlib
import shutil
import sys

import numpy
import torch
import transformers
from safetensors.torch import load_file

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

GEMMA4 = dict(
    hidden_size=48, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, head_dim=16, global_head_dim=24, vocab_size=96,
    sliding_window=21, max_position_embeddings=512, hidden_size_per_layer_input=10, vocab_size_per_layer_input=96,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    rope_parameters={"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 500.0},
                     "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}},
)

# Each: the configuration class and its options, the format of the file, tokens to run; then what is done to config.json.
# `older` writes the fields as transformers 4 did; `drop` leaves out fields whose defaults say the same.
CHECKPOINTS = {
    "llama": dict(
        kind=transformers.LlamaConfig,
        options=dict(hidden_size=48, intermediate_size=72, num_attention_heads=2, vocab_size=257, rms_norm_eps=1e-6),
        dtype="float16", tokens=40, older=True,
        drop=["num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "rope_theta", "rope_scaling", "rms_norm_eps"],
    ),
    "llama-gqa-tied": dict(
        kind=transformers.LlamaConfig,
        options=dict(hidden_size=64, intermediate_size=60, num_attention_heads=8, num_key_value_heads=2, vocab_size=131,
                     tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="float16", tokens=48,
    ),
    "llama-biases": dict(
        kind=transformers.LlamaConfig,
        options=dict(hidden_size=32, intermediate_size=72, num_attention_heads=4, num_key_value_heads=2, vocab_size=101,
                     attention_bias=True, mlp_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="bfloat16", tokens=40,
    ),
    "llama3.1": dict(
        kind=transformers.LlamaConfig,
        options=dict(hidden_size=48, intermediate_size=80, num_attention_heads=3, num_key_value_heads=1, vocab_size=64,
                     max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=60, eos_token_id=[61, 62],
                     rope_parameters=LLAMA3 | {"rope_theta": 5000.0}),
        dtype="bfloat16", tokens=240, older=True,
    ),
    "llama-linear": dict(
        kind=transformers.LlamaConfig,
        options=dict(hidden_size=40, intermediate_size=72, num_attention_heads=5, vocab_size=97, max_position_embeddings=256,
                     rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
        dtype="float16", tokens=70, older=True, old_type_key=True,
    ),
    "smollm2": dict(
        kind=transformers.LlamaConfig,
        options=dict(hidden_size=72, intermediate_size=64, num_attention_heads=9, num_key_value_heads=3, vocab_size=128,
                     max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
                     rope_parameters={"rope_type": "default", "rope_theta": 100000.0}),
        dtype="bfloat16", tokens=48, older=True,
        extra={"rope_interleaved": False, "is_llama_config": True},
    ),
    "tinyllama": dict(
        kind=transformers.LlamaConfig,
        options=dict(hidden_size=64, intermediate_size=72, num_attention_heads=8, num_key_value_heads=1, vocab_size=100,
                     rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="bfloat16", tokens=48, older=True, drop=["head_dim"],
    ),
    "mistral": dict(
        kind=transformers.MistralConfig,
        options=dict(hidden_size=40, intermediate_size=72, num_attention_heads=2, num_key_value_heads=1, head_dim=80,
                     vocab_size=120, max_position_embeddings=1024, sliding_window=None, rms_norm_eps=1e-5,
                     rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        dtype="bfloat16", tokens=60, shards="40KB",
    ),
    "qwen2": dict(
        kind=transformers.Qwen2Config,
        options=dict(hidden_size=32, intermediate_size=60, num_attention_heads=4, num_key_value_heads=2, vocab_size=211,
                     tie_word_embeddings=True, rms_norm_eps=1e-6, bos_token_id=200, eos_token_id=201,
                     rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        dtype="float32", tokens=52, older=True, generation={"eos_token_id": [201, 200]},
        drop=["layer_types"], extra={"sliding_window": 32768, "max_window_layers": 2},
    ),
    "qwen2-untied": dict(
        kind=transformers.Qwen2Config,
        options=dict(hidden_size=32, intermediate_size=56, num_attention_heads=2, num_key_value_heads=2, vocab_size=64,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="float32", tokens=44,
    ),
    "qwen3": dict(
        kind=transformers.Qwen3Config,
        options=dict(hidden_size=48, intermediate_size=70, num_attention_heads=4, num_key_value_heads=2, head_dim=24,
                     vocab_size=251, tie_word_embeddings=True, rms_norm_eps=1e-6, bos_token_id=249, eos_token_id=250,
                     rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        dtype="bfloat16", tokens=50,
    ),
    # Those that follow are compared with transformers in float64: the second implementation below knows the ones above.
    # Their windows are crossed at least three times.
    "mistral-window": dict(
        kind=transformers.MistralConfig,
        options=dict(hidden_size=40, intermediate_size=72, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     vocab_size=90, max_position_embeddings=1024, sliding_window=19, rms_norm_eps=1e-5,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="bfloat16", tokens=80,
    ),
    "qwen2-window": dict(
        kind=transformers.Qwen2Config,
        options=dict(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, vocab_size=80,
                     use_sliding_window=True, sliding_window=13, max_window_layers=1,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="float32", tokens=60,
    ),
    "gemma2": dict(
        kind=transformers.Gemma2Config,
        options=dict(hidden_size=40, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     vocab_size=120, max_position_embeddings=512, sliding_window=17, query_pre_attn_scalar=24,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=4, dtype="bfloat16", tokens=72,
    ),
    "gemma2-caps": dict(
        kind=transformers.Gemma2Config,
        options=dict(hidden_size=48, intermediate_size=40, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
                     vocab_size=97, max_position_embeddings=512, sliding_window=16, query_pre_attn_scalar=32,
                     attn_logit_softcapping=3.0, final_logit_softcapping=4.0,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=3, dtype="float32", tokens=64, older=True,
    ),
    "gemma2-plain": dict(
        kind=transformers.Gemma2Config,
        options=dict(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=2, head_dim=24,
                     vocab_size=64, max_position_embeddings=64, sliding_window=64, query_pre_attn_scalar=24,
                     attn_logit_softcapping=None, final_logit_softcapping=None,
                     rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
        dtype="float16", tokens=60,
    ),
    "gemma3": dict(
        kind=transformers.Gemma3TextConfig,
        options=dict(hidden_size=40, intermediate_size=64, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
                     vocab_size=120, max_position_embeddings=512, sliding_window=16, query_pre_attn_scalar=16),
        layers=7, dtype="bfloat16", tokens=72, older=True,
    ),
    "gemma3-linear": dict(
        kind=transformers.Gemma3TextConfig,
        options=dict(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=2, head_dim=24,
                     vocab_size=101, max_position_embeddings=1024, sliding_window=21, query_pre_attn_scalar=32,
                     rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                                      "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
        layers=6, dtype="float32", tokens=90,
    ),
    "gemma3-types": dict(
        kind=transformers.Gemma3TextConfig,
        options=dict(hidden_size=48, intermediate_size=56, num_attention_heads=6, num_key_value_heads=3, head_dim=8,
                     vocab_size=70, max_position_embeddings=512, sliding_window=9, query_pre_attn_scalar=8,
                     final_logit_softcapping=5.0,
                     layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
        layers=3, dtype="bfloat16", tokens=64,
    ),
    "granite": dict(
        kind=transformers.GraniteConfig,
        options=dict(hidden_size=40, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=99,
                     embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.3, logits_scaling=3.0,
                     tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="bfloat16", tokens=40,
    ),
    "granite-biases": dict(
        kind=transformers.GraniteConfig,
        options=dict(hidden_size=32, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1, vocab_size=70,
                     attention_bias=True, mlp_bias=True, attention_multiplier=0.25, logits_scaling=0.5,
                     rope_parameters={"rope_type": "default", "rope_theta": 1000.0}),
        dtype="float32", tokens=40,
    ),
    "granite-wide": dict(
        kind=transformers.GraniteConfig,
        options=dict(hidden_size=48, intermediate_size=56, num_attention_heads=6, vocab_size=64, embedding_multiplier=0.5,
                     residual_multiplier=1.5, attention_multiplier=0.2,
                     rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
        layers=3, dtype="float16", tokens=40,
    ),
    "olmo2": dict(
        kind=transformers.Olmo2Config,
        options=dict(hidden_size=40, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=99,
                     rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, eos_token_id=90, pad_token_id=0),
        dtype="bfloat16", tokens=40,
    ),
    "olmo2-biases": dict(
        kind=transformers.Olmo2Config,
        options=dict(hidden_size=32, intermediate_size=40, num_attention_heads=2, vocab_size=70, attention_bias=True,
                     rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, eos_token_id=60,
                     pad_token_id=0),
        layers=3, dtype="float32", tokens=40,
    ),
    "olmo2-tied": dict(
        kind=transformers.Olmo2Config,
        options=dict(hidden_size=48, intermediate_size=56, num_attention_heads=6, num_key_value_heads=3, vocab_size=64,
                     tie_word_embeddings=True, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
                     eos_token_id=60, pad_token_id=0),
        dtype="float16", tokens=40,
    ),
    "phi3": dict(
        kind=transformers.Phi3Config,
        options=dict(hidden_size=40, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=99,
                     eos_token_id=90, pad_token_id=0, sliding_window=15,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="bfloat16", tokens=64,
    ),
    "phi3-long": dict(
        kind=transformers.Phi3Config,
        options=dict(hidden_size=48, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, vocab_size=70,
                     eos_token_id=60, pad_token_id=0, max_position_embeddings=512, original_max_position_embeddings=32,
                     rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0,
                                      "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7],
                                      "long_factor": [1.0, 1.3, 2.0, 3.5, 5.0, 8.0, 12.0, 16.0]}),
        dtype="float32", tokens=60,
    ),
    "phi3-partial": dict(
        kind=transformers.Phi3Config,
        options=dict(hidden_size=48, intermediate_size=56, num_attention_heads=3, num_key_value_heads=1, vocab_size=64,
                     eos_token_id=60, pad_token_id=0, max_position_embeddings=256, original_max_position_embeddings=64,
                     rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                                      "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
                                      "long_factor": [1.0, 1.3, 2.0, 2.5, 3.0, 4.0]}),
        dtype="bfloat16", tokens=80,
    ),
    "smollm3": dict(
        kind=transformers.SmolLM3Config,
        options=dict(hidden_size=40, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=99,
                     bos_token_id=None, eos_token_id=90, pad_token_id=0,
                     rope_parameters={"rope_type": "default", "rope_theta": 5000000.0}),
        layers=5, dtype="bfloat16", tokens=40,
    ),
    "smollm3-list": dict(
        kind=transformers.SmolLM3Config,
        options=dict(hidden_size=32, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1, vocab_size=70,
                     bos_token_id=None, eos_token_id=60, pad_token_id=0, tie_word_embeddings=False, attention_bias=True,
                     no_rope_layers=[0, 1, 1], rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=3, dtype="float32", tokens=40,
    ),
    "smollm3-window": dict(
        kind=transformers.SmolLM3Config,
        options=dict(hidden_size=48, intermediate_size=56, num_attention_heads=6, num_key_value_heads=3, vocab_size=64,
                     bos_token_id=None, eos_token_id=60, pad_token_id=0, use_sliding_window=True, sliding_window=11,
                     layer_types=["sliding_attention", "full_attention"], no_rope_layer_interval=2,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="float16", tokens=64,
    ),
    "mixtral": dict(
        kind=transformers.MixtralConfig,
        options=dict(hidden_size=32, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=90,
                     num_local_experts=6, num_experts_per_tok=2, max_position_embeddings=1024,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="bfloat16", tokens=60,
    ),
    "mixtral-three": dict(
        kind=transformers.MixtralConfig,
        options=dict(hidden_size=40, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, vocab_size=70,
                     num_local_experts=5, num_experts_per_tok=3, tie_word_embeddings=True, max_position_embeddings=512,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=3, dtype="float32", tokens=50,
    ),
    "mixtral-window": dict(
        kind=transformers.MixtralConfig,
        options=dict(hidden_size=24, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, vocab_size=64,
                     num_local_experts=4, num_experts_per_tok=1, max_position_embeddings=512, sliding_window=12,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="float16", tokens=60,
    ),
    "qwen3moe": dict(
        kind=transformers.Qwen3MoeConfig,
        options=dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     vocab_size=90, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True,
                     rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        dtype="bfloat16", tokens=60,
    ),
    "qwen3moe-shares": dict(
        kind=transformers.Qwen3MoeConfig,
        options=dict(hidden_size=40, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, vocab_size=70,
                     num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=False,
                     attention_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="float32", tokens=50,
    ),
    "qwen3moe-sparse": dict(
        kind=transformers.Qwen3MoeConfig,
        options=dict(hidden_size=24, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, vocab_size=64,
                     num_experts=4, num_experts_per_tok=4, moe_intermediate_size=16, norm_topk_prob=True,
                     decoder_sparse_step=2, tie_word_embeddings=True,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=4, dtype="float16", tokens=50,
    ),
    "lfm2": dict(
        kind=transformers.Lfm2Config,
        options=dict(hidden_size=72, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, vocab_size=90,
                     max_position_embeddings=512, block_auto_adjust_ff_dim=False,
                     layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        layers=5, dtype="bfloat16", tokens=60,
    ),
    "lfm2-adjusted": dict(
        kind=transformers.Lfm2Config,
        options=dict(hidden_size=32, intermediate_size=60, num_attention_heads=2, num_key_value_heads=1, vocab_size=70,
                     max_position_embeddings=256, conv_L_cache=5, block_multiple_of=24, block_ffn_dim_multiplier=1.25,
                     layer_types=["full_attention", "conv", "conv"], tie_word_embeddings=False, norm_eps=1e-6,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=3, dtype="float32", tokens=50,
    ),
    "lfm2-older": dict(
        kind=transformers.Lfm2Config,
        options=dict(hidden_size=48, intermediate_size=72, num_attention_heads=6, num_key_value_heads=3, vocab_size=64,
                     max_position_embeddings=256, conv_L_cache=2, block_auto_adjust_ff_dim=False,
                     layer_types=["conv", "full_attention", "conv", "conv"],
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=4, dtype="float16", tokens=40, older=True, drop=["layer_types", "intermediate_size"],
        extra={"full_attn_idxs": [1], "block_ff_dim": 72, "tie_embedding": True},
    ),
    "qwen35": dict(
        kind=transformers.Qwen3_5TextConfig,
        options=dict(hidden_size=40, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     vocab_size=90, max_position_embeddings=512, linear_num_key_heads=2, linear_num_value_heads=4,
                     linear_key_head_dim=16, linear_value_head_dim=24, bos_token_id=80, eos_token_id=81,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25}),
        layers=4, dtype="bfloat16", tokens=80,
    ),
    "qwen35-even": dict(
        kind=transformers.Qwen3_5TextConfig,
        options=dict(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                     vocab_size=70, max_position_embeddings=256, linear_num_key_heads=3, linear_num_value_heads=3,
                     linear_key_head_dim=8, linear_value_head_dim=80, linear_conv_kernel_dim=3, tie_word_embeddings=True,
                     layer_types=["linear_attention", "full_attention", "linear_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        layers=3, dtype="float32", tokens=70,
    ),
    "qwen35-whole": dict(
        kind=transformers.Qwen3_5TextConfig,
        options=dict(hidden_size=48, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, head_dim=16,
                     vocab_size=64, max_position_embeddings=256, linear_num_key_heads=1, linear_num_value_heads=4,
                     linear_key_head_dim=20, linear_value_head_dim=12,
                     layer_types=["full_attention", "linear_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}),
        dtype="float16", tokens=150,
    ),
    "gpt-oss": dict(
        kind=transformers.GptOssConfig,
        options=dict(hidden_size=32, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     vocab_size=90, num_local_experts=6, num_experts_per_tok=3, sliding_window=13,
                     rope_parameters={"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                      "truncate": False, "original_max_position_embeddings": 64, "rope_theta": 1500.0}),
        layers=4, dtype="bfloat16", tokens=80,
    ),
    "gpt-oss-limits": dict(
        kind=transformers.GptOssConfig,
        options=dict(hidden_size=40, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=24,
                     vocab_size=70, num_local_experts=4, num_experts_per_tok=4, sliding_window=9, swiglu_limit=0.5,
                     swiglu_alpha=1.3, attention_bias=False,
                     layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=3, dtype="float32", tokens=60,
    ),
    "gpt-oss-tied": dict(
        kind=transformers.GptOssConfig,
        options=dict(hidden_size=24, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, head_dim=16,
                     vocab_size=64, num_local_experts=5, num_experts_per_tok=1, sliding_window=11, tie_word_embeddings=True,
                     rope_parameters={"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0, "beta_slow": 2.0,
                                      "truncate": True, "original_max_position_embeddings": 32, "rope_theta": 10000.0}),
        layers=2, dtype="float16", tokens=70,
    ),
    "qwen35moe": dict(
        kind=transformers.Qwen3_5MoeTextConfig,
        options=dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=90,
                     num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=20,
                     linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
                     layer_types=["linear_attention", "full_attention"], max_position_embeddings=256,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        dtype="bfloat16", tokens=60,
    ),
    "qwen3next": dict(
        kind=transformers.Qwen3NextConfig,
        options=dict(hidden_size=40, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                     vocab_size=90, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=16,
                     shared_expert_intermediate_size=24, linear_num_key_heads=3, linear_num_value_heads=6,
                     linear_key_head_dim=8, linear_value_head_dim=20, max_position_embeddings=256,
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
        layers=4, dtype="bfloat16", tokens=70,
    ),
    "qwen3next-dense": dict(
        kind=transformers.Qwen3NextConfig,
        options=dict(hidden_size=32, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                     vocab_size=70, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=False,
                     shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=2,
                     linear_key_head_dim=12, linear_value_head_dim=16, mlp_only_layers=[1], tie_word_embeddings=True,
                     layer_types=["linear_attention", "full_attention", "linear_attention"], max_position_embeddings=256,
                     rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 1.0}),
        layers=3, dtype="float32", tokens=60,
    ),
    "granitehybrid": dict(
        kind=transformers.GraniteMoeHybridConfig,
        options=dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, vocab_size=90,
                     num_local_experts=0, shared_intermediate_size=40, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=12,
                     mamba_n_groups=1, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.3,
                     logits_scaling=3.0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                     layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"]),
        layers=4, dtype="bfloat16", tokens=70, drop=["time_step_limit"],
    ),
    "granitehybrid-groups": dict(
        kind=transformers.GraniteMoeHybridConfig,
        options=dict(hidden_size=48, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, vocab_size=70,
                     num_local_experts=0, shared_intermediate_size=24, mamba_n_heads=6, mamba_d_head=16, mamba_d_state=8,
                     mamba_n_groups=2, mamba_d_conv=3, position_embedding_type="rope", attention_multiplier=0.2,
                     tie_word_embeddings=True, layer_types=["full_attention", "linear_attention", "linear_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=3, dtype="float32", tokens=60,
    ),
    "granitehybrid-plain": dict(
        kind=transformers.GraniteMoeHybridConfig,
        options=dict(hidden_size=24, intermediate_size=48, num_attention_heads=3, num_key_value_heads=3, vocab_size=64,
                     num_local_experts=0, shared_intermediate_size=32, mamba_n_heads=2, mamba_d_head=36, mamba_expand=3,
                     mamba_d_state=20, mamba_conv_bias=False, attention_multiplier=0.3,
                     layer_types=["linear_attention", "full_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=2, dtype="float16", tokens=300,
    ),
    "gemma4": dict(
        kind=transformers.Gemma4TextConfig, layers=6,
        options=GEMMA4 | dict(num_kv_shared_layers=3, use_double_wide_mlp=True, final_logit_softcapping=20.0),
        dtype="bfloat16", tokens=90,
    ),
    "gemma4-values": dict(
        kind=transformers.Gemma4TextConfig, layers=4,
        options=GEMMA4 | dict(hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
                              layer_types=["sliding_attention", "full_attention"] * 2),
        dtype="bfloat16", tokens=80,
    ),
    "gemma4-global": dict(
        kind=transformers.Gemma4TextConfig, layers=5,
        options=GEMMA4 | dict(num_kv_shared_layers=3, tie_word_embeddings=False, use_bidirectional_attention="vision",
                              layer_types=["full_attention", "sliding_attention"] * 2 + ["full_attention"]),
        dtype="float16", tokens=80, drop=["per_layer_config"], extra={"global_head_dim": 24},
    ),
    "granitehybrid-experts": dict(
        kind=transformers.GraniteMoeHybridConfig,
        options=dict(hidden_size=32, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=90,
                     num_local_experts=6, num_experts_per_tok=3, shared_intermediate_size=40, mamba_n_heads=4, mamba_d_head=16,
                     mamba_d_state=12, mamba_n_groups=1, embedding_multiplier=12.0, residual_multiplier=0.22,
                     attention_multiplier=0.3, logits_scaling=3.0, layer_types=["linear_attention", "full_attention", "linear_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=3, dtype="bfloat16", tokens=70,
    ),
    "granitehybrid-one": dict(
        kind=transformers.GraniteMoeHybridConfig,
        options=dict(hidden_size=40, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, vocab_size=64,
                     num_local_experts=3, num_experts_per_tok=1, shared_intermediate_size=24, mamba_n_heads=4, mamba_d_head=20,
                     mamba_d_state=8, mamba_n_groups=2, position_embedding_type="rope", tie_word_embeddings=True,
                     layer_types=["full_attention", "linear_attention"],
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=2, dtype="float32", tokens=90,
    ),
    "gemma": dict(
        kind=transformers.GemmaConfig,
        options=dict(hidden_size=40, intermediate_size=64, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
                     vocab_size=120, max_position_embeddings=512, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        layers=3, dtype="bfloat16", tokens=72,
    ),
    "gemma-biases": dict(
        kind=transformers.GemmaConfig,
        options=dict(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=2, head_dim=24,
                     vocab_size=64, max_position_embeddings=256, attention_bias=True,
                     rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
        dtype="float16", tokens=60,
    ),
    "gemma-older": dict(
        kind=transformers.GemmaConfig,
        options=dict(hidden_size=48, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3, head_dim=32,
                     vocab_size=97, max_position_embeddings=512, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype="float32", tokens=64, older=True, extra={"hidden_act": "gelu", "hidden_activation": None},
    ),
}


# How many of them `oracle` knows; their goldens are in float32.
FIRST = 11


def random_weights(model: torch.nn.Module, rng: numpy.random.Generator) -> None:
    """Fills every parameter, biases and norms too, so that the logits differ and attention is far from uniform."""
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        values = rng.standard_normal(shape)
        less_one = model.config.model_type in ("gemma", "gemma2", "gemma3_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next") and "linear_attn" not in name
        if name.endswith("norm.weight"):
            values = (0.0 if less_one else 1.0) + 0.25 * values
            if model.config.model_type == "gemma4_text" and ("q_norm" in name or "k_norm" in name):
                values = 0.5 * values  # these norms have the factor of scores
        elif name.endswith("mamba.D"):
            values = 1.0 + 0.25 * values
        elif name.endswith("A_log"):
            values = values - 1.0
        elif "conv" in name and len(shape) == 3:
            values = values / math.sqrt(shape[2])
        elif name.endswith(("bias", "sinks")):
            values = 0.4 * values
        elif "embed_tokens" in name:
            values = (0.2 if model.config.tie_word_embeddings else 1.0) * values
        else:
            gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.0
            values = gain * values / math.sqrt(shape[1])
        parameter.data.copy_(torch.from_numpy(values))
    for name, factor in model.named_buffers():
        if name.endswith("layer_scalar"):
            factor.fill_(1.0 + 0.25 * rng.standard_normal())


def write_config(directory: pathlib.Path, plan: dict) -> None:
    """Rewrites config.json as `plan` says; transformers reads it again afterwards, so that it must mean the same."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    config.pop("transformers_version", None)
    if plan.get("older"):
        rope = config.pop("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
        if "sliding_attention" in rope:  # Gemma 3
            config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            rope = rope["full_attention"]
            config["sliding_window_pattern"] = 6
            del config["layer_types"]
        config["rope_theta"] = rope.pop("rope_theta")
        config["torch_dtype"] = config.pop("dtype")
        if plan.get("old_type_key"):
            rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = rope if rope.get("rope_type") != "default" else None
    for key in plan.get("drop", []):
        config.pop(key, None)
    config |= plan.get("extra", {})
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def frequencies(config: dict, head_dim: int) -> numpy.ndarray:
    """The angle a position, of each pair of dimensions. (head_dim / 2)"""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = theta ** (-numpy.arange(0, head_dim, 2) / head_dim)
    if kind == "linear":
        return base / rope["factor"]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * base / (2 * math.pi)  # in the trained context
        keep = numpy.clip((turns - low) / (high - low), 0.0, 1.0)
        return base * (keep + (1.0 - keep) / rope["factor"])
    return base


def oracle(directory: pathlib.Path, tokens: list[int], scaled: bool = True) -> numpy.ndarray:
    """The logits of all positions, in float64 throughout. (tokens, vocabulary)"""
    config = json.loads((directory / "config.json").read_text())
    if not scaled:
        config["rope_scaling"] = config["rope_parameters"] = None
    weights = {}
    for file in sorted(directory.glob("*.safetensors")):
        weights |= {name: value.to(torch.float64).numpy() for name, value in load_file(file).items()}
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    dim = config.get("head_dim", config["hidden_size"] // heads)
    eps = config.get("rms_norm_eps", 1e-6)
    count = len(tokens)

    def norm(x, name):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[name]

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0.0)

    angle = numpy.arange(count)[:, None, None] * frequencies(config, dim)  # (tokens, 1, dim / 2)
    turn = numpy.exp(1j * angle)

    def rotate(x):  # (tokens, heads, dim): dimension i turns with dimension i + dim / 2
        turned = (x[..., : dim // 2] + 1j * x[..., dim // 2 :]) * turn
        return numpy.concatenate([turned.real, turned.imag], axis=-1)

    stream = weights["model.embed_tokens.weight"][tokens]
    hidden_future = numpy.triu(numpy.full((count, count), -numpy.inf), 1)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        x = norm(stream, at + "input_layernorm.weight")
        q = linear(x, at + "self_attn.q_proj").reshape(count, heads, dim)
        k = linear(x, at + "self_attn.k_proj").reshape(count, kv_heads, dim)
        v = linear(x, at + "self_attn.v_proj").reshape(count, kv_heads, dim)
        if at + "self_attn.q_norm.weight" in weights:
            q = norm(q, at + "self_attn.q_norm.weight")
            k = norm(k, at + "self_attn.k_norm.weight")
        q, k = rotate(q), rotate(k)
        mixed = numpy.empty((count, heads, dim))
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, shared].T / math.sqrt(dim) + hidden_future
            scores = numpy.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, shared]
        stream = stream + linear(mixed.reshape(count, heads * dim), at + "self_attn.o_proj")
        x = norm(stream, at + "post_attention_layernorm.weight")
        gate = linear(x, at + "mlp.gate_proj")
        stream = stream + linear(gate / (1.0 + numpy.exp(-gate)) * linear(x, at + "mlp.up_proj"), at + "mlp.down_proj")
    head = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    return norm(stream, "model.norm.weight") @ weights[head].T


@contextlib.contextmanager
def in_float64():
    """Norms that turn their input to float32 leave numbers of float64 as they are."""
    to_float = torch.Tensor.float
    torch.Tensor.float = lambda numbers: numbers if numbers.dtype == torch.float64 else to_float(numbers)
    try:
        yield
    finally:
        torch.Tensor.float = to_float


def make(name: str, plan: dict, root: pathlib.Path, seed: int) -> None:
    directory = root / name
    shutil.rmtree(directory, ignore_errors=True)
    rng = numpy.random.default_rng([2026, seed])

    config = plan["kind"](num_hidden_layers=plan.get("layers", 2), **plan["options"])
    model = transformers.AutoModelForCausalLM.from_config(config)
    random_weights(model, rng)
    model.to(getattr(torch, plan["dtype"])).save_pretrained(directory, max_shard_size=plan.get("shards", "1GB"))
    (directory / "generation_config.json").unlink(missing_ok=True)
    if "generation" in plan:
        (directory / "generation_config.json").write_text(json.dumps(plan["generation"], indent=2) + "\n")
    for file in directory.iterdir():
        file.chmod(0o644)
    write_config(directory, plan)

    tokens = rng.integers(0, config.vocab_size, plan["tokens"]).tolist()
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    with torch.no_grad():
        logits = model.eval()(torch.tensor([tokens])).logits[0].numpy().astype("<f4")
        with in_float64():
            exact = model.double()(torch.tensor([tokens])).logits[0].numpy()
    known = name in list(CHECKPOINTS)[:FIRST]
    if known:
        exact = oracle(directory, tokens)
    else:
        logits = exact.astype("<f4")
    difference = float((abs(logits - exact) / numpy.maximum(1.0, abs(exact))).max())
    assert difference < 2e-5, difference
    if known and plan["options"].get("rope_parameters", {}).get("rope_type", "default") != "default":
        unscaled = oracle(directory, tokens, scaled=False)
        assert abs(unscaled - exact).max() > 0.5, "the scaling does not show"
    (directory / "logits.f32").write_bytes(logits.tobytes())
    golden = {
        "tokens": tokens,
        "positions": len(tokens),
        "vocabulary": config.vocab_size,
        "logits": "logits.f32",
        "float64_difference": float(f"{difference:.1e}"),
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
    }
    (directory / "golden.json").write_text(json.dumps(golden) + "\n")
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{name:16} {plan['dtype']:9} {size:7} bytes   logits: std {logits.std():.2f}, largest {abs(logits).max():.2f}   "
          f"float32 to float64: {difference:.1e}")


def main() -> None:
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    chosen = sys.argv[2:]  # all, without names
    for seed, (name, plan) in enumerate(CHECKPOINTS.items()):
        if not chosen or name in chosen:
            make(name, plan, root, seed)
    total = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    print(f"{'all':16} {'':9} {total:7} bytes")


if __name__ == "__main__":
    main()
