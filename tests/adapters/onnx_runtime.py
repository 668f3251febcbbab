#!/usr/bin/env python3
"""A model of ONNX Runtime whose past comes from the pages of a cache

    tests/adapters/onnx_runtime.py build/tests/tensor_rows

Makes a model of two attention layers with the inputs past_key_values.N.key and .value and the outputs present.N.key and
.value. The program given holds a cache and exchanges tensors through pipes. Prompts that share a prefix and the next
tokens of a prompt have the past and the logits, bit for bit, of the same steps with the tensors kept in memory. For
float32 and float16, and both orders of tensors. Prints a line for each; "SKIPPED:" without the packages.

    pip install -r tests/adapters/onnx_requirements.txt
"""
import os
import struct
import subprocess
import sys
from pathlib import Path

OWN = Path(__file__).resolve().parents[2] / "build" / "onnx" / "bin" / "python"  # where ./dev test installs them

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as reason:
    if OWN.exists() and Path(sys.prefix) != OWN.parents[1]:
        os.execv(OWN, [str(OWN), *sys.argv])
    print(f"SKIPPED: for want of a package: {reason}")
    sys.exit(0)

SEED = 7
LAYERS, HEADS, DIM, WIDTH, VOCABULARY, POSITIONS = 2, 2, 8, 16, 61, 256
TYPES = {"f32": (TensorProto.FLOAT, np.float32), "f16": (TensorProto.FLOAT16, np.float16)}


class Model:
    """Attention with learned positions. The past is (1, heads, tokens, dim) for "hnd", (1, tokens, heads, dim) for
    "nhd"."""

    def __init__(self, number: str, order: str):
        self.number, self.order = number, order
        self.tensor, self.dtype = TYPES[number]
        self.nodes, self.weights, self.count = [], [], 0
        self.random = np.random.default_rng(SEED)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(self.build(), options, providers=["CPUExecutionProvider"])

    def node(self, op: str, *inputs: str, output: str = "", **attributes) -> str:
        self.count += 1
        output = output or f"t{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def constant(self, array: np.ndarray) -> str:
        self.count += 1
        self.weights.append(numpy_helper.from_array(array, f"w{self.count}"))
        return f"w{self.count}"

    def weight(self, *shape: int) -> str:
        scale = 1.5 / np.sqrt(shape[0])
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def build(self) -> bytes:
        node, constant = self.node, self.constant
        heads_of = constant(np.array([1, -1, HEADS, DIM], np.int64))
        width_of = constant(np.array([1, -1, WIDTH], np.int64))
        x = node("Add", node("Gather", self.weight(VOCABULARY, WIDTH), "input_ids"),
                 node("Gather", self.weight(POSITIONS, WIDTH), "position_ids"))
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "tokens"])
                  for name in ("input_ids", "position_ids")]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "tokens", VOCABULARY])]
        shape = lambda tokens: [1, HEADS, tokens, DIM] if self.order == "hnd" else [1, tokens, HEADS, DIM]
        axis = 2 if self.order == "hnd" else 1
        for layer in range(LAYERS):
            rows = {}
            for side in ("query", "key", "value"):
                rows[side] = node("Reshape", node("MatMul", x, self.weight(WIDTH, WIDTH)), heads_of)
                if side == "query" or self.order == "hnd":
                    rows[side] = node("Transpose", rows[side], perm=[0, 2, 1, 3])
            for side in ("key", "value"):
                past, present = f"past_key_values.{layer}.{side}", f"present.{layer}.{side}"
                inputs.append(helper.make_tensor_value_info(past, self.tensor, shape("past")))
                outputs.append(helper.make_tensor_value_info(present, self.tensor, shape("all")))
                node("Concat", past, node("Cast", rows[side], to=self.tensor), output=present, axis=axis)
                rows[side] = node("Cast", present, to=TensorProto.FLOAT)
                if self.order == "nhd":
                    rows[side] = node("Transpose", rows[side], perm=[0, 2, 1, 3])
            scores = node("Mul", node("MatMul", rows["query"], node("Transpose", rows["key"], perm=[0, 1, 3, 2])),
                          constant(np.array(DIM ** -0.5, np.float32)))
            length = node("Gather", node("Shape", rows["key"]), constant(np.array(2, np.int64)))
            keys = node("Range", constant(np.array(0, np.int64)), length, constant(np.array(1, np.int64)))
            queries = node("Unsqueeze", "position_ids", constant(np.array([-1], np.int64)))
            later = node("Greater", keys, queries)  # (1, queries, keys)
            masked = node("Where", later, constant(np.array(-1e9, np.float32)), scores)
            mixed = node("MatMul", node("Softmax", masked, axis=-1), rows["value"])
            mixed = node("Reshape", node("Transpose", mixed, perm=[0, 2, 1, 3]), width_of)
            x = node("Add", x, node("MatMul", mixed, self.weight(WIDTH, WIDTH)))
        node("MatMul", x, self.weight(WIDTH, VOCABULARY), output="logits")
        graph = helper.make_graph(self.nodes, "two layers", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model.SerializeToString()

    def shape(self, tokens: int) -> tuple[int, ...]:
        return (1, HEADS, tokens, DIM) if self.order == "hnd" else (1, tokens, HEADS, DIM)

    def empty(self) -> list[np.ndarray]:
        return [np.zeros(self.shape(0), self.dtype) for _ in range(2 * LAYERS)]

    def first(self, tensors: list[np.ndarray], tokens: int) -> list[np.ndarray]:
        return [np.ascontiguousarray(one[:, :, :tokens] if self.order == "hnd" else one[:, :tokens])
                for one in tensors]

    def run(self, tokens: list[int], past: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """The logits and the present tensors."""
        first = past[0].shape[2 if self.order == "hnd" else 1]
        names = [f"{layer}.{side}" for layer in range(LAYERS) for side in ("key", "value")]
        given = {f"past_key_values.{name}": one for name, one in zip(names, past)}
        given["input_ids"] = np.array([tokens], np.int64)
        given["position_ids"] = np.arange(first, first + len(tokens), dtype=np.int64)[None]
        logits, *present = self.session.run(["logits"] + [f"present.{name}" for name in names], given)
        return logits, present


class Cache:
    """The program, with pipes to it."""

    def __init__(self, program: str, codec: str, model: Model):
        words = [program, codec, model.number, model.order, str(LAYERS), str(HEADS), str(DIM)]
        self.model = model
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, size: int) -> bytes:
        got = self.process.stdout.read(size)
        if len(got) != size:
            raise SystemExit(f"FAILED: the program ended with {self.process.wait()}")
        return got

    def ask(self, kind: int, tokens: list[int]) -> tuple[int, list[np.ndarray]]:
        """The number of tokens that the cache has, and for a prompt (kind 0) their past tensors."""
        self.process.stdin.write(struct.pack(f"={2 + len(tokens)}i", kind, len(tokens), *tokens))
        self.process.stdin.flush()
        (cached,) = struct.unpack("=i", self.read(4))
        shape = self.model.shape(cached)
        past = []
        for _ in range(2 * LAYERS if kind == 0 else 0):
            size = int(np.prod(shape)) * np.dtype(self.model.dtype).itemsize
            past.append(np.frombuffer(self.read(size), self.model.dtype).reshape(shape))
        return cached, past

    def store(self, present: list[np.ndarray]) -> None:
        for one in present:
            self.process.stdin.write(np.ascontiguousarray(one).tobytes())
        self.process.stdin.flush()

    def end(self) -> int:
        self.process.stdin.close()
        return self.process.wait()


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def check(program: str, codec: str, number: str, order: str) -> None:
    model = Model(number, order)
    cache = Cache(program, codec, model)
    random = np.random.default_rng(SEED)
    draw = lambda count: [int(one) for one in random.integers(0, VOCABULARY, count)]
    computed: list[tuple[list[int], list[np.ndarray]]] = []  # tokens, and their rows as the runtime had them
    reused = runs = 0

    def require(right: bool, what: str) -> None:
        if not right:
            raise SystemExit(f"FAILED: {codec} pages, {number} tensors, {order}: {what}")

    prompt = draw(57)
    edited = prompt[:40] + draw(23)
    for tokens in (prompt, edited, prompt, prompt[:33] + draw(40), edited + draw(9)):
        cached, past = cache.ask(0, tokens)
        # The same rows, without the cache.
        memory = model.empty()
        if cached > 0:
            memory = next(model.first(rows, cached) for known, rows in computed if known[:cached] == tokens[:cached])
        require(all(same(a, b) for a, b in zip(past, memory)), "the past has other bits than the present it came from")
        logits, present = model.run(tokens[cached:], past)
        wanted, _ = model.run(tokens[cached:], memory)
        require(same(logits, wanted), "the logits of a prompt have other bits than without a cache")
        if cached > 0:
            spoilt, _ = model.run(tokens[cached:], [np.zeros_like(one) for one in past])
            require(not same(spoilt, wanted), "the model does not read its past")
        cache.store(present)
        reused, runs = reused + cached, runs + 1
        for _ in range(3):  # tokens of an answer
            tokens = tokens + [int(np.argmax(logits[0, -1]))]
            cached, _ = cache.ask(1, tokens[-1:])
            require(cached == len(tokens) - 1, "the cache has another length")
            logits, present = model.run(tokens[-1:], present)
            cache.store(present)
        computed.append((tokens, present))
    require(reused > 100, f"only {reused} tokens were reused")
    require(cache.end() == 0, "the program failed")
    print(f"{codec} pages, {number} tensors, {order}: {runs} prompts, {reused} tokens reused, the same bits")


def main() -> int:
    for codec, number, order in (("f32", "f32", "hnd"), ("nhd_f32", "f32", "nhd"), ("f32", "f16", "nhd"),
                                 ("hnd_f16", "f16", "hnd")):
        check(sys.argv[1], codec, number, order)
    return 0


if __name__ == "__main__":
    sys.exit(main())
