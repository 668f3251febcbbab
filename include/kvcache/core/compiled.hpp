// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

// The library has two forms. Header-only (the default): every function is defined in a header. Compiled
// (KVCACHE_COMPILED is defined and not 0): functions that are expensive to compile are only declared in their headers
// and defined once, in the objects of the CMake target kvcache::compiled. That target defines KVCACHE_COMPILED for
// itself and for targets that link it. Objects that are built with other flags do not link: their names differ
// (core/abi.hpp).
//
// A program without CMake defines KVCACHE_DECLARATIONS for all its files and compiles the files of src/ with it; or it
// includes single_include/kvcache/kvcache.hpp, and defines KVCACHE_IMPLEMENTATION in one file.
//
//     KVCACHE_ONCE   before a declaration: the compiled form defines this function once
//     KVCACHE_BODY   before its definition, in an impl/ header
//     KVCACHE_LAZY   before an inline function: it is instantiated where it is called
//
// Every file that includes an ordinary inline function compiles it and the functions it calls, used or not; a template
// is compiled only where it is called. A function template with an empty pack is called like an ordinary function.
// Classes with many members are templates with an empty pack for the same reason.
#if !defined(KVCACHE_COMPILED)
#if defined(KVCACHE_DECLARATIONS) || defined(KVCACHE_IMPLEMENTATION)
#define KVCACHE_COMPILED 1
#else
#define KVCACHE_COMPILED 0
#endif
#endif
#define KVCACHE_LAZY template <class...>
#if KVCACHE_COMPILED
#define KVCACHE_ONCE
#define KVCACHE_BODY
#else
#define KVCACHE_ONCE KVCACHE_LAZY
#define KVCACHE_BODY KVCACHE_LAZY
#endif
