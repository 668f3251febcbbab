"""vLLM's own block manager, without a GPU and without torch: what its scheduler calls for a request, and nothing else.

vLLM is pure Python here: KVCacheManager, BlockPool and Request run as they are installed. What these modules import and the
block manager never calls is replaced by placeholders, which refuse to be called: the modules of PLACEHOLDERS. Two packages
are entered without running their __init__.py: vllm itself, and vllm.v1.structured_output. One placeholder is called, once:
vllm.platforms registers no further kind of KV cache, as on every platform that vLLM has.
"""
import importlib.metadata
import importlib.util
import types
from pathlib import Path

import placeholders

PLACEHOLDERS = ("torch", "prometheus_client", "vllm.config", "vllm.multimodal", "vllm.distributed", "vllm.platforms", "vllm.compilation",
                "vllm.v1.metrics.perf", "vllm.usage", "vllm.utils.torch_utils", "vllm.sampling_params", "vllm.v1.engine")
NOT_RUN = ("vllm", "vllm.v1.structured_output")
BLOCK = 16


def load() -> str | None:
    """Imports the block manager. Returns its version, or nothing if vLLM is not installed."""
    found = importlib.util.find_spec("vllm")
    if found is None:
        return None
    placeholders.install(Path(found.submodule_search_locations[0]), NOT_RUN, PLACEHOLDERS)
    import vllm.platforms
    vllm.platforms.current_platform = types.SimpleNamespace(register_custom_kv_cache_specs=lambda config: None)
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
    single_type_kv_cache_manager.register_all_kvcache_specs(None)
    kv_cache_utils.init_none_hash(sha256)
    return importlib.metadata.version("vllm")


class BlockManager:
    """A KVCacheManager of groups of layers, with vLLM's standard hash of blocks (SHA-256 of their pickle): one of full
    attention, and one for each of `windows`, all with blocks of the same bytes. `chunk`: the tokens of a prompt that are
    computed at a time; all of them by default.
    """
    def __init__(self, blocks: int, in_flight: int, windows: tuple[int, ...] = (), chunk: int | None = None):
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
        from vllm.v1.request import Request
        layer = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": None}
        groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(**layer))]
        groups += [KVCacheGroupSpec([f"window {i}"], SlidingWindowSpec(**layer, sliding_window=window))
                   for i, window in enumerate(windows)]
        config = KVCacheConfig(num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups)  # one is vLLM's null block
        self.manager = KVCacheManager(config, max_model_len=1 << 20, scheduler_block_size=BLOCK, hash_block_size=BLOCK,
                                      max_in_flight_tokens=chunk)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.request_type, self.chunk = Request, chunk
        self.params = types.SimpleNamespace(max_tokens=1, structured_outputs=None, extra_args=None, skip_reading_prefix_cache=None)
        self.in_flight, self.flying, self.count = in_flight, [], 0

    def request(self, prompt: list[int]):
        """A request; its blocks are hashed here."""
        self.count += 1
        return self.request_type(str(self.count), prompt, self.params, None, block_hasher=self.hasher)

    def run(self, request, answer: list[int]) -> int:
        """Admits a request and generates its answer. Returns the tokens of the prompt that were reused."""
        if len(self.flying) == self.in_flight:
            self.release()
        blocks, hit, _ = self.manager.get_computed_blocks(request)
        while request.num_computed_tokens < request.num_tokens:
            left = request.num_tokens - max(hit, request.num_computed_tokens)
            self.allocate(request, min(left, self.chunk or left), hit if blocks else 0, blocks)
            blocks = None
        for token in answer:
            request.append_output_token_ids(token)
            self.allocate(request, 1, 0, None)
        self.flying.append(request)
        return hit

    def allocate(self, request, count: int, hit: int, blocks):
        while self.manager.allocate_slots(request, count, hit, blocks) is None:
            if not self.flying:
                raise RuntimeError(f"a request of {request.num_tokens} tokens does not fit")
            self.release()
        request.num_computed_tokens += hit + count

    def release(self):
        self.manager.free(self.flying.pop(0))
