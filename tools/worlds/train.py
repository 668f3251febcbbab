# SPDX-License-Identifier: MIT
"""Trains a small Llama on the worlds of generate.py, on CPU cores, and writes the Hugging Face directory.

The text of step n depends on the seed and n alone, so a run that stops can go on from its last checkpoint.
Matrices learn by orthogonalised momentum (five Newton-Schulz steps), embeddings and norms by AdamW.
"""

import argparse
import json
import os
import pathlib
import random
import re
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import safetensors.torch
import tokenizers
import torch
import torch.nn.functional as F
from torch import nn

import generate
from generate import Level
import tokenizer as worlds_tokenizer

CONFIG = dict(vocab_size=1024, hidden_size=192, intermediate_size=448, num_hidden_layers=4, num_attention_heads=6,
              num_key_value_heads=2, head_dim=32, rope_theta=100000.0, rms_norm_eps=1e-5,
              max_position_embeddings=2048)

# (until this step, tokens a step, row lengths, weight of tokens outside answers, share of random words, level);
# the level names: notes, facts a note, pronoun notes, shares of one, two, follow, refer, unknown, tell, talk
PHASES = (
    (150, 2048, (128,), 0.05, 0.4, Level((2, 2), (2, 3), 0.0, (0.72, 0.1, 0.0, 0.0, 0.0, 0.16, 0.02))),
    (500, 2048, (128,), 0.05, 0.1, Level((2, 3), (2, 4), 0.0, (0.52, 0.3, 0.05, 0.0, 0.0, 0.11, 0.02))),
    (1000, 4096, (256,), 0.05, 0.02, Level((2, 6), (3, 5), 0.0, (0.42, 0.35, 0.12, 0.0, 0.01, 0.07, 0.03))),
    (1400, 4096, (384,), 0.05, 0.01, Level((3, 9), (3, 5), 0.2, (0.34, 0.34, 0.15, 0.06, 0.04, 0.05, 0.02))),
    (9999, 4608, (512, 768, 1152), 0.05, 0.01, Level((3, 14), (3, 5), 0.3, (0.28, 0.34, 0.16, 0.1, 0.06, 0.04, 0.02))),
)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        d = c["hidden_size"]
        self.q_proj = nn.Linear(d, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(d, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(d, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        h, g, d = self.heads, self.kv_heads, self.dim
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        qkv = F.linear(x, weight).view(b, t, h + 2 * g, d).transpose(1, 2)
        qk, v = qkv[:, : h + g], qkv[:, h + g:]
        half = torch.cat((-qk[..., d // 2:], qk[..., : d // 2]), -1)
        qk = qk * cos + half * sin
        q, k = qk[:, :h], qk[:, h:]
        k = k[:, :, None].expand(b, g, h // g, t, d).reshape(b, h, t, d)
        v = v[:, :, None].expand(b, g, h // g, t, d).reshape(b, h, t, d)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, h * d))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """The Llama of CONFIG; parameter names are those of the file, less the prefix `model.`"""

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        inverse = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).double() / c["head_dim"])
        angle = torch.outer(torch.arange(c["max_position_embeddings"]).double(), inverse).repeat(1, 2)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    @torch.no_grad()
    def initialise(self, pairs):
        """Starts near a model that copies behind a matching context, which a small budget is slow to find from noise.

        The heads of layer 0 look 1, 2, 3 and 4 tokens back; layers 1 and 2 look for a place behind the same tokens
        and copy what stands there. `pairs` of tokens, a name behind a space and without it, start as neighbours.
        """
        c, d, dim = self.config, self.config["hidden_size"], self.config["head_dim"]
        group, half = c["num_attention_heads"] // c["num_key_value_heads"], dim // 2
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.05 if "embed" in name else d ** -0.5 * (0.1 if last else 0.3))
        embedding, shift = self.embed_tokens.weight, 0.02 * torch.randn(d)
        embedding[:, 0] = 0.3                           # a constant, for attention by distance alone
        shift[0] = 0
        for spaced, bare in pairs:
            embedding[bare] = embedding[spaced] + shift
        inverse = c["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)
        slow = (inverse < 0.01).float().repeat(2)[:, None]      # RoPE hardly turns these: they hold what matches
        fast = (inverse > 0.03).float()
        orthonormal = lambda rows: torch.linalg.qr(torch.randn(d, rows))[0].T
        # What layer 0 writes: the word 1, 2, 3 or 4 back, seen by its KV head, at a place of its own.
        words, places = [orthonormal(dim) for _ in range(2)], {}
        first = self.layers[0].self_attn
        for h, back in enumerate((1, 2, 3, 1, 2, 4)):
            g = h // group
            first.v_proj.weight[g * dim:(g + 1) * dim] = words[g]
            first.k_proj.weight[g * dim:g * dim + half, 0] = 1.5 * fast
            q = first.q_proj.weight[h * dim:(h + 1) * dim]
            q[:half, 0] = 1.5 * fast * (back * inverse).cos()
            q[half:, 0] = -1.5 * fast * (back * inverse).sin()
            places[g, back] = orthonormal(dim)
            first.o_proj.weight[:, h * dim:(h + 1) * dim] = 0.05 * places[g, back].T
        for layer in self.layers[1:3]:
            a = layer.self_attn
            for g in range(2):
                mixes = [slow * torch.linalg.qr(torch.randn(dim, dim))[0] for _ in range(3)]
                copy = orthonormal(dim)
                k = a.k_proj.weight[g * dim:(g + 1) * dim]
                k += 1.2 * (mixes[0] @ places[g, 1] + mixes[1] @ places[g, 2])
                if g == 0:
                    k += 1.2 * mixes[2] @ places[0, 3]
                a.v_proj.weight[g * dim:(g + 1) * dim] += copy
                for i in range(group):
                    h = g * group + i
                    q = a.q_proj.weight[h * dim:(h + 1) * dim]
                    q += 1.2 * (mixes[0] @ words[g] + mixes[1] @ places[g, 1])
                    if g == 0:
                        q += 1.2 * mixes[2] @ places[0, 2]
                    a.o_proj.weight[:, h * dim:(h + 1) * dim] += 0.15 * copy.T

    def forward(self, ids, picked=None):
        """The logits of all places, or of the picked ones of the flattened rows."""
        x = self.embed_tokens(ids)
        t = ids.shape[1]
        cos, sin = self.cos[:t], self.sin[:t]
        for layer in self.layers:
            x = layer(x, cos, sin)
        if picked is not None:
            x = x.flatten(0, 1)[picked]
        return F.linear(self.norm(x), self.embed_tokens.weight)


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix update is pushed to nearly equal singular values."""

    def __init__(self, params, lr, momentum=0.95, decay=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                m = state["momentum"]
                m.lerp_(p.grad, 1 - group["momentum"])
                u = p.grad.lerp(m, group["momentum"])
                tall = u.shape[0] > u.shape[1]
                x = u.T if tall else u
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.T if tall else x
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(x, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


class Encoder:
    """Token ids of pieces, by a table of pre-tokens."""

    SPLIT = re.compile(r"<\|\w+\|>|'s| ?[A-Za-z]+| ?(?:(?!<\|)[^\sA-Za-z])+|\s")

    def __init__(self, path):
        self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self.table = {}

    def __call__(self, text):
        ids = []
        for word in self.SPLIT.findall(text):
            known = self.table.get(word)
            if known is None:
                known = self.table[word] = self.tokenizer.encode(word).ids
            ids.extend(known)
        return ids


def batch(encoder, seed, step):
    """Rows of one length: (ids, weights of the next token)."""
    rng = random.Random(seed * 1_000_003 + step)
    tokens, lengths, other_weight, random_share, level = next(p[1:] for p in PHASES if step < p[0])
    length = rng.choice(lengths)
    rows = max(1, tokens // length)
    ids = np.zeros((rows, length + 1), np.int64)
    weights = np.zeros((rows, length + 1), np.float32)
    for r in range(rows):
        n = 0
        pieces = generate.repeats(rng, length) if rng.random() < random_share else generate.chat(rng, level, length)
        for text, learns in pieces:
            piece = encoder(text)[: length + 1 - n]
            ids[r, n:n + len(piece)] = piece
            weights[r, n:n + len(piece)] = 1.0 if learns else other_weight
            n += len(piece)
            if n > length:
                break
    return torch.from_numpy(ids), torch.from_numpy(weights)


@torch.no_grad()
def accuracy(model, encoder, level, seed, count):
    """The share of held-out answers whose every token is the likeliest, by kind."""
    model.eval()
    result = {}
    items = list(generate.items(seed, count, level, generate.KINDS[:5] if level.refer else ("one", "two")))
    for item in items:
        say = lambda role, text: f"<|im_start|>{role}\n{text}<|im_end|>\n"
        prompt = say("system", generate.SYSTEMS[0] + "\n" + "\n".join(item["documents"]))
        for role, text in zip(("user", "assistant"), item["history"]):
            prompt += say(role, text)
        prompt += say("user", item["question"]) + "<|im_start|>assistant\n"
        prompt = encoder.tokenizer.encode(prompt).ids
        answer = encoder(item["answer"])
        logits = model(torch.tensor([prompt + answer[:-1]]))[0, len(prompt) - 1:]
        right = bool((logits.argmax(-1) == torch.tensor(answer)).all())
        result.setdefault(item["kind"], []).append(right)
    model.train()
    return {kind: sum(v) / len(v) for kind, v in result.items()}


def export(model, folder):
    folder = pathlib.Path(folder)
    state = {"model." + k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    c = dict(model.config)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **c, "attention_bias": False,
              "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
              "hidden_act": "silu", "initializer_range": 0.02, "mlp_bias": False, "pretraining_tp": 1,
              "rope_scaling": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"bos_token_id": 0, "do_sample": False, "eos_token_id": 2, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="the model directory; its tokenizer is made if there is none")
    parser.add_argument("--run", default="run", help="where checkpoints and the log go")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2460)
    parser.add_argument("--stop", type=int, help="stop at this step")
    parser.add_argument("--rate", type=float, default=0.01, help="of matrices")
    parser.add_argument("--embedding-rate", type=float, default=0.002)
    parser.add_argument("--cooldown", type=float, default=0.35, help="the last share of the steps, with a falling rate")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export-only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    run, folder = pathlib.Path(args.run), pathlib.Path(args.model)
    run.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.json").exists():
        worlds_tokenizer.save(worlds_tokenizer.train(CONFIG["vocab_size"]), folder)
    encoder = Encoder(folder / "tokenizer.json")

    model = Model(CONFIG)
    names = generate.SHE + generate.HE + generate.TOWNS
    model.initialise([(encoder(" " + name)[0], encoder(name)[0]) for name in names])
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [Muon(matrices, args.rate),
                  torch.optim.AdamW(others, args.embedding_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]
    rates = [args.rate, args.embedding_rate]
    step, seen, seconds = 0, 0, 0.0
    checkpoint = run / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        step, seen, seconds = saved["step"], saved["seen"], saved["seconds"]
    print(f"parameters {sum(p.numel() for p in model.parameters())}, step {step}", flush=True)
    if args.export_only:
        export(model, folder)
        return

    def save():
        torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step,
                    "seen": seen, "seconds": seconds}, run / "checkpoint.new")
        os.replace(run / "checkpoint.new", checkpoint)

    log = open(run / "log.txt", "a")

    def note(text):
        print(text, flush=True)
        log.write(text + "\n")
        log.flush()

    hits = answers = total = parts = 0
    started = time.time()
    while step < (args.stop or args.steps):
        ids, weights = batch(encoder, args.seed, step)
        inputs, targets, weights = ids[:, :-1], ids[:, 1:].reshape(-1), weights[:, 1:].reshape(-1)
        scale = min(1.0, (step + 1) / 30, (args.steps - step) / (args.cooldown * args.steps))
        for optimizer, rate in zip(optimizers, rates):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
        # Every place of an answer, and a quarter of the others in place of all.
        chance = torch.rand(weights.shape, generator=torch.Generator().manual_seed(step))
        picked = ((weights == 1) | (chance < 0.25)).nonzero()[:, 0]
        targets, weights = targets[picked], weights[picked]
        weights = torch.where(weights == 1, weights, 4 * weights)
        logits = model(inputs, picked)
        loss = (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
        loss.backward()
        nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            learnt = weights == 1
            hits += (logits[learnt].argmax(-1) == targets[learnt]).sum().item()
            answers += learnt.sum().item()
        total, parts = total + loss.item(), parts + 1
        step, seen = step + 1, seen + inputs.numel()
        if step % 25 == 0:
            now = time.time()
            seconds, started = seconds + now - started, now
            note(f"step {step} seen {seen} seconds {seconds:.0f} loss {total / parts:.4f} "
                 f"answers {hits / max(1, answers):.4f} length {inputs.shape[1]}")
            hits = answers = total = parts = 0
        if step % 120 == 0:
            save()
        if step % 240 == 0:
            for level in (next(p[-1] for p in PHASES if step <= p[0]), Level()):
                shares = accuracy(model, encoder, level, 99, 30)
                note(f"held-out {step} {level.documents} " + " ".join(f"{k} {v:.3f}" for k, v in shares.items()))
    save()
    export(model, folder)


if __name__ == "__main__":
    main()
