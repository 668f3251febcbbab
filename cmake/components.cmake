# The headers of each component, below include/kvcache/: a folder (with a slash) or a header, one a line. Where several
# paths fit a header, the longest one counts. Each header has a component. tools/layers.py reads these lists, too.
set(kvcache_components cache core json text crypto lmdb redis cuda llama)

set(kvcache_cache_paths  # the cache alone: xxHash and threads
  cache.hpp
  layer_groups.hpp
  tier.hpp
  adapters/tensors.hpp
  adapters/tensors/
  cache/
  codec/concept.hpp
  codec/by_group.hpp
  codec/external.hpp
  codec/f32.hpp
  codec/opaque.hpp
  codec/residual_page.hpp
  codec/row_major.hpp
  core/
  eviction/
  hash/
  index/
  layers/
  locking/
  observer/
  recompute/
  record/
  storage/
  tier/
)

set(kvcache_core_paths  # all that needs Eigen and xsimd
  attention.hpp
  kvcache.hpp
  testing.hpp
  attention/
  cache/any_cache.hpp
  cache/any_codec.hpp
  cache/any_kv_codec.hpp
  codec/
  core/tensor.hpp
  formats/
  kernel/
  model/
  chunk/
  session/
  testing/
)

set(kvcache_json_paths  # nlohmann/json
  model.hpp
  formats/json.hpp
  model/huggingface/
  model/impl/load.hpp
  model/load.hpp
)

set(kvcache_text_paths  # PCRE2 and utf8proc
  chat.hpp
  session/chat_overflow.hpp
  session/chat_session.hpp
  session/chat_transcript.hpp
  session/open_chat.hpp
  text/
)

set(kvcache_crypto_paths  # OpenSSL
  hash/sha256.hpp
)

set(kvcache_lmdb_paths  # LMDB
  tier/lmdb.hpp
  tier/lmdb_check.hpp
  tier/lmdb_store.hpp
)

set(kvcache_llama_paths  # llama.cpp
  adapters/llama.hpp
  adapters/llama/
)

set(kvcache_redis_paths  # OpenSSL
  tier/redis.hpp
  tier/redis_link.hpp
  tier/redis_nodes.hpp
  tier/resp.hpp
)

set(kvcache_cuda_paths  # nvcc for its kernels
  cuda/
  testing/emulated_device.hpp
)

# Sets kvcache_<component>_headers, relative to the project's folder.
file(GLOB_RECURSE kvcache_all_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include/kvcache
     ${PROJECT_SOURCE_DIR}/include/kvcache/*.hpp)
foreach(header IN LISTS kvcache_all_headers)
  set(longest 0)
  foreach(component IN LISTS kvcache_components)
    foreach(path IN LISTS kvcache_${component}_paths)
      string(FIND ${header} ${path} at)
      string(LENGTH ${path} length)
      if(at EQUAL 0 AND length GREATER longest)
        set(longest ${length})
        set(owner ${component})
      endif()
    endforeach()
  endforeach()
  if(longest EQUAL 0)
    message(FATAL_ERROR "cmake/components.cmake: no component has ${header}")
  endif()
  list(APPEND kvcache_${owner}_headers include/kvcache/${header})
endforeach()
