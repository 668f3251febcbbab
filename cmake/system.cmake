# What the build and the installed package both need to find the dependencies of a component.

# An imported target for a library without a CMake package: a header, and a library where one must be linked.
# Without them on the system there is no target.
function(kvcache_system_library target header)
  if(TARGET kvcache::${target})
    return()
  endif()
  find_path(kvcache_${target}_INCLUDE ${header})
  mark_as_advanced(kvcache_${target}_INCLUDE)
  set(libraries)
  if(ARGN)
    find_library(kvcache_${target}_LIBRARY ${ARGN})
    mark_as_advanced(kvcache_${target}_LIBRARY)
    set(libraries ${kvcache_${target}_LIBRARY})
  endif()
  if(kvcache_${target}_INCLUDE AND (NOT ARGN OR libraries))
    add_library(kvcache::${target} INTERFACE IMPORTED)
    target_include_directories(kvcache::${target} INTERFACE ${kvcache_${target}_INCLUDE})
    target_link_libraries(kvcache::${target} INTERFACE ${libraries})
  endif()
endfunction()

# Debian's xsimd 8.1 names xtl in its link interface but does not need it.
macro(kvcache_mend_xsimd)
  if(TARGET xsimd AND NOT TARGET xtl)
    add_library(xtl INTERFACE IMPORTED)
  endif()
endmacro()
