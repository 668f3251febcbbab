# How this project builds its own programs. Consumers never see any of it.
option(KVCACHE_WARNINGS_AS_ERRORS "A warning fails the build" OFF)
set(KVCACHE_ARCH "native" CACHE STRING "What -march the programs are built for; empty keeps the compiler's own")
set(KVCACHE_SANITIZE "" CACHE STRING "Sanitizers for every program, for example address,undefined")

add_compile_options(-Wall -Wextra -Wpedantic -Wconversion -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-restrict) # GCC 12 sees overlaps in std::string's operator+ at -O3 (its bug 105651)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=1000000) # it collects garbage from 1 GB on: a fifth of its time else
endif()
set(CMAKE_COMPILE_WARNING_AS_ERROR ${KVCACHE_WARNINGS_AS_ERRORS})
if(KVCACHE_ARCH)
  add_compile_options(-march=${KVCACHE_ARCH})
endif()
if(KVCACHE_SANITIZE)
  add_compile_options(-fsanitize=${KVCACHE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # These two take five sixths of a kernel's time to compile. AddressSanitizer finds what is read past an object; a
  # pointer that is only computed goes unseen here, and is seen by `./dev test platforms libc++`.
  if(KVCACHE_SANITIZE MATCHES "address.*undefined")
    add_compile_options(-fno-sanitize=object-size,pointer-overflow)
  endif()
  add_link_options(-fsanitize=${KVCACHE_SANITIZE})
endif()

find_program(KVCACHE_CCACHE ccache)
mark_as_advanced(KVCACHE_CCACHE)
if(KVCACHE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KVCACHE_CCACHE})
endif()
