# What the headers need. Found on the system; shared by the build and by the installed package.
find_package(Threads REQUIRED)
find_package(Eigen3 3.4 REQUIRED)
find_package(xsimd 8 REQUIRED)
if(NOT TARGET xtl)  # Debian's xsimd 8.1 names xtl in its link interface but does not need it
  add_library(xtl INTERFACE IMPORTED)
endif()
find_package(nlohmann_json 3.11 REQUIRED)

# Libraries without a CMake package of their own: a header, and a library where one must be linked.
function(kvcache_plain_library target header library)
  find_path(${target}_INCLUDE ${header} REQUIRED)
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} INTERFACE ${${target}_INCLUDE})
  if(library)
    find_library(${target}_LIBRARY ${library} REQUIRED)
    target_link_libraries(${target} INTERFACE ${${target}_LIBRARY})
  endif()
endfunction()
kvcache_plain_library(kvcache_xxhash   xxhash.h   "")
kvcache_plain_library(kvcache_pcre2    pcre2.h    pcre2-8)
kvcache_plain_library(kvcache_utf8proc utf8proc.h utf8proc)
