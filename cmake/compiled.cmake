include(${CMAKE_CURRENT_LIST_DIR}/compiled_target.cmake)

set(components)
foreach(component json text)
  string(TOUPPER ${component} upper)
  if(KVCACHE_${upper})
    list(APPEND components ${component})
  endif()
endforeach()
kvcache_compiled(kvcache_compiled ${PROJECT_SOURCE_DIR}/src COMPONENTS ${components})
add_library(kvcache::compiled ALIAS kvcache_compiled)
if(KVCACHE_BUILD_TESTS)  # tests check contracts, and what they link must be built alike
  target_compile_definitions(kvcache_compiled PUBLIC KVCACHE_CONTRACTS=1)
endif()
