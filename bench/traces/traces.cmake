# What reads recorded traces: used by benchmarks, tests and fuzz targets, and not installed. Without zlib, zstd or the
# component json there is no target, and the programs that need it are left out.
kvcache_system_library(zlib zlib.h z)
kvcache_system_library(zstd zstd.h zstd)
if(TARGET kvcache_json AND TARGET kvcache::zlib AND TARGET kvcache::zstd)
  add_library(bench_traces INTERFACE)
  target_link_libraries(bench_traces INTERFACE kvcache_json kvcache::zlib kvcache::zstd)
else()
  message(STATUS "kvcache: no zlib (Debian: zlib1g-dev) or no zstd (libzstd-dev), so without what reads traces")
endif()
