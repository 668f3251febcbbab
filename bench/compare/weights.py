"""The same random weights as a Hugging Face directory and as GGUF files."""
import json
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np


@dataclass(frozen=True)
class Shape:
    """The extents of a Llama-family decoder."""
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    theta: float = 10000.0
    eps: float = 1e-5
    positions: int = 16384

    def tensors(self):
        """(Hugging Face name, GGUF name, shape, heads to permute or 0) of every weight, in a fixed order."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", "token_embd.weight", (self.vocabulary, self.hidden), 0
        if not self.tied:
            yield "lm_head.weight", "output.weight", (self.vocabulary, self.hidden), 0
        yield "model.norm.weight", "output_norm.weight", (self.hidden,), 0
        for i in range(self.layers):
            theirs, ours = f"blk.{i}.", f"model.layers.{i}."
            yield ours + "input_layernorm.weight", theirs + "attn_norm.weight", (self.hidden,), 0
            yield ours + "self_attn.q_proj.weight", theirs + "attn_q.weight", (q, self.hidden), self.heads
            yield ours + "self_attn.k_proj.weight", theirs + "attn_k.weight", (kv, self.hidden), self.kv_heads
            yield ours + "self_attn.v_proj.weight", theirs + "attn_v.weight", (kv, self.hidden), 0
            yield ours + "self_attn.o_proj.weight", theirs + "attn_output.weight", (self.hidden, q), 0
            yield ours + "post_attention_layernorm.weight", theirs + "ffn_norm.weight", (self.hidden,), 0
            yield ours + "mlp.gate_proj.weight", theirs + "ffn_gate.weight", (self.intermediate, self.hidden), 0
            yield ours + "mlp.up_proj.weight", theirs + "ffn_up.weight", (self.intermediate, self.hidden), 0
            yield ours + "mlp.down_proj.weight", theirs + "ffn_down.weight", (self.hidden, self.intermediate), 0


SHAPES = {
    "smollm2-135m": Shape(576, 1536, 30, 9, 3, 64, 49152, True),
    "tinyllama-1.1b": Shape(2048, 5632, 22, 32, 4, 64, 32000, False),
}


def weight(shape: tuple[int, ...], index: int) -> np.ndarray:
    """Numbers that BF16 holds exactly, so that F32 and BF16 files are one model. Blocks speak louder than the
    embedding, so that what comes out depends on the whole past."""
    normal = np.random.default_rng(index).standard_normal(shape, dtype=np.float32)
    made = 1.0 + 0.1 * normal if len(shape) == 1 else normal * (0.05 if index == 0 else shape[1] ** -0.5)
    return (made.astype(np.float32).view(np.uint32) & np.uint32(0xffff0000)).view(np.float32)


def narrow(numbers: np.ndarray) -> np.ndarray:
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def write_huggingface(directory: Path, shape: Shape, dtype: str) -> None:
    """config.json and model.safetensors, weights "f32" or "bf16"."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary, "tie_word_embeddings": shape.tied, "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta, "max_position_embeddings": shape.positions, "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": {"f32": "float32", "bf16": "bfloat16"}[dtype],
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    width = {"f32": 4, "bf16": 2}[dtype]
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, _, extents, _ in shape.tensors():
        begin, end = end, end + int(np.prod(extents)) * width
        header[name] = {"dtype": dtype.upper(), "shape": list(extents), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(directory / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for index, (_, _, extents, _) in enumerate(shape.tensors()):
            numbers = weight(extents, index)
            (numbers if dtype == "f32" else narrow(numbers)).tofile(out)


def interleave(numbers: np.ndarray, heads: int) -> np.ndarray:
    """From rotating dimension i with i + half, as Hugging Face does, to rotating 2 i with 2 i + 1, as GGUF's llama."""
    rows, inputs = numbers.shape
    return numbers.reshape(heads, 2, rows // heads // 2, inputs).swapaxes(1, 2).reshape(rows, inputs)


def write_gguf(file: Path, shape: Shape, dtype: str) -> None:
    """One GGUF of weights "f32", "bf16" or "q8_0"; vectors are F32. The vocabulary is made up."""
    file.parent.mkdir(parents=True, exist_ok=True)
    out = gguf.GGUFWriter(file, "llama")
    out.add_name("random")
    out.add_block_count(shape.layers)
    out.add_context_length(shape.positions)
    out.add_embedding_length(shape.hidden)
    out.add_feed_forward_length(shape.intermediate)
    out.add_head_count(shape.heads)
    out.add_head_count_kv(shape.kv_heads)
    out.add_key_length(shape.head_dim)
    out.add_value_length(shape.head_dim)
    out.add_rope_dimension_count(shape.head_dim)
    out.add_rope_freq_base(shape.theta)
    out.add_layer_norm_rms_eps(shape.eps)
    out.add_vocab_size(shape.vocabulary)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([f"t{i}" for i in range(shape.vocabulary)])
    out.add_token_types([int(gguf.TokenType.CONTROL if i < 3 else gguf.TokenType.NORMAL)
                         for i in range(shape.vocabulary)])
    out.add_token_merges(["t 1"])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_add_bos_token(False)
    kind = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16,
            "q8_0": gguf.GGMLQuantizationType.Q8_0}[dtype]
    out.add_file_type({"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16,
                       "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[dtype])
    for index, (_, name, extents, heads) in enumerate(shape.tensors()):
        numbers = weight(extents, index)
        if heads:
            numbers = interleave(numbers, heads)
        if len(extents) == 1 or dtype == "f32":
            out.add_tensor(name, numbers)
        else:
            out.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def write_all(directory: Path, name: str, dtypes: list[str]) -> dict[str, Path]:
    """Writes what is not there yet. Returns the paths: "hf-f32", "gguf-f32" and so on."""
    paths = {}
    for dtype in dtypes:
        file = directory / f"{name}-{dtype}.gguf"
        if not file.exists():
            part = file.with_suffix(".part")
            write_gguf(part, SHAPES[name], dtype)
            part.rename(file)
        paths["gguf-" + dtype] = file
        if dtype == "q8_0":
            continue
        model = directory / f"{name}-{dtype}"
        if not (model / "model.safetensors").exists():
            part = directory / f"{name}-{dtype}.part"
            write_huggingface(part, SHAPES[name], dtype)
            part.rename(model)
        paths["hf-" + dtype] = model
    return paths
