# SPDX-License-Identifier: MIT
"""Logits of a GGUF file in float64, over the weights that its blocks stand for, as the formats define the architectures llama and
gemma3. For small models: every weight of a layer is in memory in float64."""

import math

import numpy

KNOWN = ("llama", "gemma3")


class Model:
    def __init__(self, path, gguf):
        self.gguf, self.reader = gguf, gguf.GGUFReader(path)
        self.stored = {tensor.name: tensor for tensor in self.reader.tensors}
        self.architecture = self.reader.get_field("general.architecture").contents()
        self.layers, self.hidden = self.key("block_count"), self.key("embedding_length")
        self.heads, self.kv_heads = self.key("attention.head_count"), self.key("attention.head_count_kv")
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.gemma = self.architecture == "gemma3"
        self.embedding = self.weight("token_embd.weight")

    def key(self, name, otherwise=None):
        field = self.reader.get_field(f"{self.architecture}.{name}")
        return otherwise if field is None else field.contents()

    def weight(self, name):
        tensor = self.stored[name]
        rows = self.gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        return rows.astype(numpy.float64)

    def head(self):
        return self.weight("output.weight") if "output.weight" in self.stored else self.embedding

    def norm(self, x, name):
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight(name)

    def window(self, layer):
        """Tokens that a query of a layer reads; 0: all."""
        return self.key("attention.sliding_window", 0) if self.gemma and (layer + 1) % 6 else 0

    def turned(self, x, count, layer):
        """Heads with RoPE: pairs are adjacent in llama's files, and half a head apart in others."""
        theta = self.key("rope.freq_base", 10000.0)
        if self.window(layer):
            theta = self.key("rope.freq_base_swa", 10000.0)
        x = x.reshape(len(x), count, -1)
        pairs = x.shape[2] // 2
        angles = numpy.arange(len(x))[:, None] * theta ** (-numpy.arange(pairs) / pairs)
        turn = numpy.exp(1j * angles)[:, None]
        if self.gemma:
            both = (x[..., :pairs] + 1j * x[..., pairs:]) * turn
            return numpy.concatenate([both.real, both.imag], -1)
        both = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return numpy.stack([both.real, both.imag], -1).reshape(x.shape)

    def attend(self, q, k, v, layer):
        position, window = numpy.arange(len(q)), self.window(layer)
        hidden = position[None] > position[:, None]
        if window:
            hidden |= position[:, None] - position[None] >= window
        out = numpy.empty_like(q)
        for head in range(self.heads):
            shared = head // (self.heads // self.kv_heads)
            scores = q[:, head] @ k[:, shared].T / math.sqrt(q.shape[-1])
            scores[hidden] = -numpy.inf
            shares = numpy.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = shares / shares.sum(-1, keepdims=True) @ v[:, shared]
        return out.reshape(len(q), -1)

    def activated(self, gate):
        if self.gemma:
            return gate / 2 * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate ** 3)))
        return gate / (1 + numpy.exp(-gate))

    def block(self, layer, streams):
        """Runs a layer over several sequences, in place."""
        names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        q, k, v, out, gate, up, down = (self.weight(f"blk.{layer}.{name}.weight") for name in names)

        def norm(x, name):
            return self.norm(x, f"blk.{layer}.{name}.weight")

        for i, x in enumerate(streams):
            h = norm(x, "attn_norm")
            queries, keys = (h @ q.T).reshape(len(x), self.heads, -1), (h @ k.T).reshape(len(x), self.kv_heads, -1)
            if self.gemma:
                queries, keys = norm(queries, "attn_q_norm"), norm(keys, "attn_k_norm")
            attended = self.attend(self.turned(queries, self.heads, layer), self.turned(keys, self.kv_heads, layer),
                                   (h @ v.T).reshape(len(x), self.kv_heads, -1), layer) @ out.T
            x = x + (norm(attended, "post_attention_norm") if self.gemma else attended)
            h = norm(x, "ffn_norm")
            made = (self.activated(h @ gate.T) * (h @ up.T)) @ down.T
            streams[i] = x + (norm(made, "post_ffw_norm") if self.gemma else made)


def streams_of(model, prompts):
    """What enters the head, by prompt. (positions, hidden)"""
    scale = float(numpy.sqrt(numpy.float32(model.hidden))) if model.gemma else 1.0
    streams = [model.embedding[prompt] * scale for prompt in prompts]
    for layer in range(model.layers):
        model.block(layer, streams)
    return [model.norm(x, "output_norm.weight") for x in streams]


def reference_logits(path, gguf, prompts, last=None):
    """For each prompt the logits of its positions, or of its last ones. (positions, vocabulary)"""
    model = Model(path, gguf)
    return [(x if last is None else x[-last:]) @ model.head().T for x in streams_of(model, prompts)]


def reference_nll(path, gguf, ids):
    """The mean negative log-likelihood of all ids but the first."""
    model = Model(path, gguf)
    x, head, total = streams_of(model, [ids])[0], model.head(), 0.0
    for first in range(0, len(ids) - 1, 128):
        said = numpy.array(ids[first + 1:first + 129])
        logits = x[first:first + len(said)] @ head.T
        most = logits.max(-1)
        total += float((most + numpy.log(numpy.exp(logits - most[:, None]).sum(-1)) - logits[numpy.arange(len(said)), said]).sum())
    return total / (len(ids) - 1)
