# SPDX-License-Identifier: MIT
"""Makes the tiny checkpoints and the logits that `transformers` gives for them.

    python -m venv .venv && .venv/bin/pip install -r tools/goldens/requirements.txt
    .venv/bin/python tools/goldens/checkpoints.py tests/data/checkpoints

Every number comes from a seed. Each checkpoint is written, loaded again from its files, and run in float32 with eager
attention; the same files also run through `oracle` below, a second implementation in float64 that shares no code with
`transformers`, and the largest difference between the two is printed and kept in golden.json.
"""

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
}


def random_weights(model: torch.nn.Module, rng: numpy.random.Generator) -> None:
    """Fills every parameter, biases and norms too, so that the logits differ and attention is far from uniform."""
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        values = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.25 * values
        elif name.endswith("bias"):
            values = 0.4 * values
        elif "embed_tokens" in name:
            values = (0.2 if model.config.tie_word_embeddings else 1.0) * values
        else:
            gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.0
            values = gain * values / math.sqrt(shape[1])
        parameter.data.copy_(torch.from_numpy(values))


def write_config(directory: pathlib.Path, plan: dict) -> None:
    """Rewrites config.json as `plan` says; transformers reads it again afterwards, so that it must mean the same."""
    file = directory / "config.json"
    config = json.loads(file.read_text())
    config.pop("transformers_version", None)
    if plan.get("older"):
        rope = config.pop("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
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


def make(name: str, plan: dict, root: pathlib.Path, seed: int) -> None:
    directory = root / name
    shutil.rmtree(directory, ignore_errors=True)
    rng = numpy.random.default_rng([2026, seed])

    config = plan["kind"](num_hidden_layers=2, **plan["options"])
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
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    with torch.no_grad():
        logits = model.eval()(torch.tensor([tokens])).logits[0].numpy().astype("<f4")
    exact = oracle(directory, tokens)
    difference = float((abs(logits - exact) / numpy.maximum(1.0, abs(exact))).max())
    assert difference < 2e-5, difference
    if plan["options"].get("rope_parameters", {}).get("rope_type", "default") != "default":
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
    for seed, (name, plan) in enumerate(CHECKPOINTS.items()):
        make(name, plan, root, seed)
    total = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    print(f"{'all':16} {'':9} {total:7} bytes")


if __name__ == "__main__":
    main()
