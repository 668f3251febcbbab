# The golden digests, from builds that differ in all that must not change a bit: lane width, contraction, optimisation.
function(kvcache_golden name)
  add_executable(golden_${name} ${PROJECT_SOURCE_DIR}/tests/golden/digests.cpp)
  target_link_libraries(golden_${name} PRIVATE kvcache)
  target_include_directories(golden_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(golden_${name} PRIVATE -g0 ${ARGN})
  add_test(NAME "golden: ${name}" COMMAND golden_${name})
  set_tests_properties("golden: ${name}" PROPERTIES LABELS golden TIMEOUT 600)
endfunction()

kvcache_golden(fast -O3 -ffp-contract=fast)
kvcache_golden(off -O2 -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  kvcache_golden(v3_fast -O2 -march=x86-64-v3 -ffp-contract=fast)
  kvcache_golden(v3_off -O1 -march=x86-64-v3 -ffp-contract=off)
  kvcache_golden(slow -O1 -march=x86-64 -DKVCACHE_ALLOW_SLOW)  # SSE2, std::fma by the C library
endif()
