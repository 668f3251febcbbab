# Used by the build and by the installed package.

# The compiled form: what is expensive to compile, once, in a static library that defines KVCACHE_COMPILED for whoever links
# it. It is built with the flags of the directory that calls this and belongs to programs that are built with the same:
# others do not link (core/abi.hpp). Nothing is built that nobody links.
#
#     kvcache_compiled(<target> <folder of src/> COMPONENTS <json|text>... [OPTIONS <compile options>])
function(kvcache_compiled target folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "COMPONENTS;OPTIONS")
  set(folders kernel attention)
  set(links kvcache::kvcache)
  if("json" IN_LIST arg_COMPONENTS OR "text" IN_LIST arg_COMPONENTS)  # text reads JSON
    list(APPEND folders formats model)
    list(APPEND links kvcache::json)
  endif()
  if("text" IN_LIST arg_COMPONENTS)
    list(APPEND folders text)
    list(APPEND links kvcache::text)
  endif()
  list(TRANSFORM folders REPLACE "(.+)" "${folder}/\\1/*.cpp")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folders})
  add_library(${target} STATIC EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${target} PUBLIC ${links})
  target_compile_definitions(${target} PUBLIC KVCACHE_COMPILED=1)
  target_compile_options(${target} PRIVATE ${arg_OPTIONS})
endfunction()
