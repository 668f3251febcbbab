"""Tiny checkpoints that speak."""
import json
import shutil
import struct


def with_words(checkpoint, model, directory):
    """Writes the weights of a checkpoint with the words of a model: the rows of its vocabulary are repeated."""
    shutil.copytree(model, directory)
    config, own = (json.loads((folder / "config.json").read_text()) for folder in (checkpoint, model))
    words, rows = own["vocab_size"], config["vocab_size"]
    config |= {"vocab_size": words, "max_position_embeddings": 2048, "eos_token_id": own["eos_token_id"]}
    if "vocab_size_per_layer_input" in config:
        config["vocab_size_per_layer_input"] = words
    (directory / "config.json").write_text(json.dumps(config))
    old = (checkpoint / "model.safetensors").read_bytes()
    size, = struct.unpack("<Q", old[:8])
    tensors, new, entries = json.loads(old[8:8 + size]), b"", {}
    for name, of in tensors.items():
        if name == "__metadata__":
            continue
        begin, end = of["data_offsets"]
        numbers = old[8 + size + begin:8 + size + end]
        if of["shape"][0] == rows and name in ("lm_head.weight", "model.embed_tokens.weight", "model.embed_tokens_per_layer.weight"):
            row = len(numbers) // rows
            numbers = (numbers * (words // rows + 1))[:words * row]
            of["shape"][0] = words
        entries[name] = of | {"data_offsets": [len(new), len(new) + len(numbers)]}
        new += numbers
    header = json.dumps(entries).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + new)
