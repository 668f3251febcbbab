"""vLLM's own block manager, without a GPU and without torch: what its scheduler calls for a request, and nothing else.

vLLM is pure Python here: KVCacheManager, BlockPool and Request run as they are installed, and for recurrent states the
scheduler's function that decides where a part of a prompt ends. What these modules import and the
block manager never calls is replaced by placeholders, which refuse to be called: the modules of PLACEHOLDERS. Two packages
are entered without running their __init__.py: vllm itself, and vllm.v1.structured_output. One placeholder is called, once:
vllm.platforms registers no further kind of KV cache, as on every platform that vLLM has.
"""
import importlib.metadata
import importlib.util
import types
from dataclasses import dataclass
from pathlib import Path

import placeholders

PLACEHOLDERS = ("torch", "prometheus_client", "vllm.config", "vllm.multimodal", "vllm.distributed", "vllm.platforms", "vllm.compilation",
                "vllm.v1.metrics.perf", "vllm.usage", "vllm.utils.torch_utils", "vllm.sampling_params", "vllm.v1.engine", "vllm.outputs",
                "vllm.v1.structured_output.utils")
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
    from vllm.v1 import structured_output
    from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
    placeholders.attribute(structured_output, "StructuredOutputManager")  # the scheduler names it
    single_type_kv_cache_manager.register_all_kvcache_specs(None)
    kv_cache_utils.init_none_hash(sha256)
    return importlib.metadata.version("vllm")


@dataclass(frozen=True)
class Groups:
    """Groups of layers as vLLM makes them, all with blocks of the same bytes: one of full attention, one for each of `windows`,
    and so many of recurrent states. A state is kept where a block ends (cache mode "align"). `tokens`: of a block. `unit`:
    the tokens at whose multiples a hit can end.
    """
    windows: tuple[int, ...] = ()
    states: int = 0
    tokens: int = BLOCK
    unit: int = BLOCK


class BlockManager:
    """A KVCacheManager with vLLM's standard hash of blocks (SHA-256 of their pickle). `chunk`: the tokens of a prompt that are
    computed at a time; all of them by default. With recurrent states a part of a prompt ends where vLLM's scheduler ends it.
    """
    def __init__(self, blocks: int, in_flight: int, of: Groups = Groups(), chunk: int | None = None):
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec, SlidingWindowSpec
        from vllm.v1.request import Request
        layer = {"block_size": of.tokens, "num_kv_heads": 1, "head_size": 1, "dtype": None}
        groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(**layer))]
        groups += [KVCacheGroupSpec([f"window {i}"], SlidingWindowSpec(**layer, sliding_window=window))
                   for i, window in enumerate(of.windows)]
        state = {"block_size": of.tokens, "shapes": (), "dtypes": (), "mamba_cache_mode": "align"}
        groups += [KVCacheGroupSpec([f"state {i}"], MambaSpec(**state)) for i in range(of.states)]
        config = KVCacheConfig(num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups)  # one is vLLM's null block
        self.manager = KVCacheManager(config, max_model_len=1 << 20, scheduler_block_size=of.tokens, hash_block_size=of.unit,
                                      max_in_flight_tokens=chunk)
        self.hasher = get_request_block_hasher(of.unit, sha256)
        self.request_type, self.chunk = Request, chunk
        self.params = types.SimpleNamespace(max_tokens=1, structured_outputs=None, extra_args=None, skip_reading_prefix_cache=None)
        self.in_flight, self.flying, self.count = in_flight, [], 0
        self.part = self.splitter(of) if of.states else lambda request, left, hit: left

    def splitter(self, of: Groups):
        """The scheduler's function that shortens the next part of a prompt so that it ends where a state is kept."""
        from vllm.v1.core.sched.scheduler import Scheduler
        settings = types.SimpleNamespace(
            cache_config=types.SimpleNamespace(block_size=of.tokens), block_size=of.tokens, hash_block_size=of.unit,
            use_eagle_block_drop=False, num_hash_lookahead_tokens=0, max_num_scheduled_tokens=self.chunk or 1 << 20,
            scheduler_config=types.SimpleNamespace(long_prefill_token_threshold=0), mamba_has_prefill_checkpoint_blocks=False,
            mamba_prefill_checkpoint_alignment=None, mamba_shared_prefix_checkpoint=False,
            mamba_partial_cache_hit=of.unit < of.tokens and self.manager.coordinator.enable_partial_hash_hits)
        return lambda request, left, hit: Scheduler._mamba_block_aligned_split(settings, request, left, hit)

    def request(self, prompt: list[int]):
        """A request; its blocks are hashed here."""
        self.count += 1
        return self.request_type(str(self.count), prompt, self.params, None, block_hasher=self.hasher)

    def run(self, request, answer: list[int]) -> int:
        """Admits a request and generates its answer. Returns the tokens of the prompt that were reused."""
        if len(self.flying) == self.in_flight:
            self.release()
        blocks, hit, request.shared_prefix_boundary = self.manager.get_computed_blocks(request)
        while request.num_computed_tokens < request.num_tokens:
            left = request.num_tokens - max(hit, request.num_computed_tokens)
            new = hit if blocks else 0
            self.allocate(request, self.part(request, min(left, self.chunk or left), new), new, blocks)
            blocks = None
        for token in answer:
            request.append_output_token_ids(token)
            self.allocate(request, 1, 0, None)
        self.flying.append(request)
        return hit

    def allocate(self, request, count: int, hit: int, blocks):
        self.manager.new_step_starts()
        while self.manager.allocate_slots(request, count, hit, blocks) is None:
            if not self.flying:
                raise RuntimeError(f"a request of {request.num_tokens} tokens does not fit")
            self.release()
        request.num_computed_tokens += hit + count
        copied = self.manager.take_kv_cache_block_copies()[1]
        if copied:
            self.manager.block_pool.free_blocks(copied)
        self.manager.take_boundary_state_offloads()

    def release(self):
        self.manager.free(self.flying.pop(0))
