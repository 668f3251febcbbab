"""llama.cpp as the package llama-cpp-python builds it, timed in a process of its own: lines of JSON {"name": value}.

    python_peer.py MODEL THREADS PROMPT STEPS DEPTH...

For each depth: tokens a second of a prompt of PROMPT tokens, and of an answer of STEPS tokens, after DEPTH tokens, with F16 pages,
with flash attention and without. Tokens are random, as in llama-bench."""
import ctypes
import json
import sys
import time

import llama_cpp as cpp


class Runner:
    """A model and a context of it."""

    def __init__(self, path: str, threads: int, context: int, flash: bool):
        self.quiet = cpp.llama_log_callback(lambda level, text, data: None)
        cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        cpp.llama_backend_init()
        self.model = cpp.llama_model_load_from_file(path.encode(), cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"{path} does not load")
        options = cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_batch = 2048
        options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type = 1 if flash else 0
        self.context = cpp.llama_init_from_model(self.model, options)
        self.vocabulary = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(self.model))
        self.memory = cpp.llama_get_memory(self.context)

    def run(self, count: int) -> None:
        """Decodes `count` tokens in batches of up to 2,048; logits of the last."""
        while count > 0:
            part = min(count, 2048)
            ids = (cpp.llama_token * part)(*((7919 * i) % self.vocabulary for i in range(part)))
            if cpp.llama_decode(self.context, cpp.llama_batch_get_one(ids, part)) != 0:
                raise RuntimeError("llama_decode failed")
            count -= part
        cpp.llama_synchronize(self.context)

    def keep(self, tokens: int) -> None:
        cpp.llama_memory_seq_rm(self.memory, 0, tokens, -1)

    def rate(self, depth: int, batches: list[int]) -> float:
        began = time.perf_counter()
        for batch in batches:
            self.run(batch)
        seconds = time.perf_counter() - began
        self.keep(depth)
        return sum(batches) / seconds


def main() -> None:
    model, threads, prompt, steps, *depths = sys.argv[1:]
    threads, prompt, steps, depths = int(threads), int(prompt), int(steps), [int(depth) for depth in depths]
    for flash in (True, False):
        runner = Runner(model, threads, max(depths) + prompt + steps + 64, flash)
        how = "llama-cpp-python f16" + ("" if flash else " plain")
        runner.rate(0, [prompt])  # the first touch of its memory
        for depth in depths:
            runner.run(depth)
            for _ in range(2):
                for name, batches in ((f"prefill_{prompt}", [prompt]), ("generation", [1] * steps)):
                    print(json.dumps({"who": how, "name": f"{name}_d{depth}", "value": runner.rate(depth, batches)}), flush=True)
            runner.keep(0)


if __name__ == "__main__":
    main()
