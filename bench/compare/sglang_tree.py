"""SGLang's own radix tree, without a GPU and without torch: what its scheduler calls for a request, and nothing else.

RadixCache, RadixKey and TreeNode run as they are installed. Of torch they use tensors of one dimension; these are arrays
of numpy here, whose small operations are faster than those of torch. What their modules import and the tree never calls
is replaced by placeholders, which refuse to be called: the modules of PLACEHOLDERS.
"""
import importlib.metadata
import importlib.util
import sys
import types
from array import array
from pathlib import Path

import numpy as np
import placeholders

PLACEHOLDERS = ("sglang.srt.mem_cache.allocator", "sglang.srt.mem_cache.memory_pool", "sglang.srt.mem_cache.unified_cache",
                "sglang.srt.observability", "sglang.srt.runtime_context", "sglang.srt.disaggregation", "sglang.kernels",
                "sglang.srt.environ", "sglang.srt.mem_cache.cpp_utils", "sglang.srt.utils")
NOT_RUN = ("sglang", "sglang.srt", "sglang.srt.mem_cache")


class Tensor(np.ndarray):
    """An array with the members of a tensor that the tree uses."""
    def clone(self):
        return self.copy()


def tensors() -> types.ModuleType:
    """A torch of numbers in one dimension."""
    made = types.ModuleType("torch")
    made.int64, made.Tensor, made.device = np.int64, Tensor, str
    made.empty = lambda shape, dtype, device: np.empty(shape, dtype).view(Tensor)
    made.tensor = lambda values, dtype: np.array(values, dtype).view(Tensor)
    made.cat = lambda parts: np.concatenate(parts).view(Tensor)
    return made


def load() -> str | None:
    """Imports the tree. Returns its version, or nothing if SGLang is not installed."""
    found = importlib.util.find_spec("sglang")
    if found is None:
        return None
    sys.modules["torch"] = tensors()
    placeholders.install(Path(found.submodule_search_locations[0]), NOT_RUN, PLACEHOLDERS)
    import sglang.srt.mem_cache.events as events
    events.KVCacheEventRecorder = lambda **options: types.SimpleNamespace(  # as a scheduler that publishes no events
        record_all_cleared=lambda: None, record_store=lambda node: None, record_remove=lambda node: None)
    import sglang.srt.mem_cache.radix_cache  # noqa: F401
    return importlib.metadata.version("sglang")


class Slots:
    """The free slots of a pool, one a token, as SGLang's allocator of pages of one token has them."""
    device = "cpu"

    def __init__(self, slots: int):
        self.free = np.arange(slots, dtype=np.int64).view(Tensor)

    def take(self, count: int):
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def free_segment(self, slots, start_pos: int = 0):
        self.free = np.concatenate([self.free, slots]).view(Tensor)


class Tree:
    """A RadixCache with pages of one token and LRU eviction."""
    def __init__(self, slots: int):
        from sglang.srt.mem_cache import radix_cache
        self.module, self.slots = radix_cache, Slots(slots)
        self.tree = radix_cache.RadixCache(types.SimpleNamespace(
            disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=self.slots, page_size=1, is_eagle=False,
            eviction_policy="lru", eviction_policy_config=None, enable_kv_cache_events=False, dynamo_kv_event_format=False,
            kv_event_lora_names=None, enable_metrics=False))
        self.tree.update_eviction_metrics = lambda count, begin: None

    def key(self, tokens: array):
        return self.module.RadixKey(tokens)

    def take(self, count: int):
        """Slots for `count` tokens; evicts if there are too few."""
        if count > len(self.slots.free):
            self.tree.evict(self.module.EvictParams(num_tokens=count - len(self.slots.free)))
        if count > len(self.slots.free):
            raise RuntimeError(f"{count} tokens do not fit")
        return self.slots.take(count)

    def run(self, prompt: array, answer: array) -> int:
        """Admits a request, generates its answer, and ends it. Returns the tokens of the prompt that were reused."""
        found = self.tree.match_prefix(self.module.MatchPrefixParams(key=self.key(prompt[:-1])))
        hit = found.device_prefix_len
        last = found.last_device_node
        held = self.tree.path_device_indices(last)
        self.tree.inc_lock_ref(last)
        held = np.concatenate([held, self.take(len(prompt) - hit)]).view(Tensor)
        last = self.insert(prompt, held, hit, last)
        if len(answer) > 0:
            held = np.concatenate([held, *[self.take(1) for _ in answer]]).view(Tensor)
            last = self.insert(prompt + answer, held, len(prompt), last)
        self.tree.dec_lock_ref(last)
        return hit

    def insert(self, tokens: array, held, shared: int, last):
        """Gives the tree the slots of a sequence, of which it has `shared`, and holds the sequence by its new last node."""
        done = self.tree.insert(self.module.InsertParams(key=self.key(tokens), value=held))
        self.slots.free_segment(held[shared:done.prefix_len])
        node = self.tree.match_prefix(self.module.MatchPrefixParams(key=self.key(tokens))).last_device_node
        self.tree.inc_lock_ref(node)
        self.tree.dec_lock_ref(last)
        return node

    def bytes(self) -> int:
        """Of the nodes, their keys and their slots."""
        all_bytes, stack = 0, [self.tree.root_node]
        while stack:
            node = stack.pop()
            all_bytes += sum(map(sys.getsizeof, (node, node.__dict__, node.children, node.key, node.key.token_ids, node.value)))
            stack.extend(node.children.values())
        return all_bytes
