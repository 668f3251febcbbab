// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>
#include <kvcache/core/version.hpp>

// The library has two forms. Header-only, the standard: every function is defined in a header. Compiled, where
// KVCACHE_COMPILED is defined: what is expensive to compile is only declared in its header, and defined once, in the
// objects of the CMake target kvcache::compiled, which defines KVCACHE_COMPILED for itself and for whoever links it.
//
//     KVCACHE_ONCE     before a declaration: the compiled form defines this function once
//     KVCACHE_BODY     before its definition, in an impl/ header
//     KVCACHE_TAGGED   behind template <...>: the compiled form instantiates this function template once
//     KVCACHE_LAZY     before an inline function: it is instantiated where it is called
//
// A function costs every file that includes it what it calls, used or not, unless it is a template. One with an empty
// pack is called like any other function. A class of many members is a template with an empty pack for the same reason.
//
// Vector instructions, contract checks and the version decide what some classes hold and what their inline functions
// do. The compiled form writes them into the names of its functions, so that objects built otherwise do not link.
#define KVCACHE_LAZY template <class...>
#if !defined(KVCACHE_COMPILED)
#define KVCACHE_BODY KVCACHE_LAZY
#define KVCACHE_ONCE KVCACHE_LAZY
#define KVCACHE_TAGGED
#else
#define KVCACHE_BODY
#if defined(__AVX512VNNI__)
#define KVCACHE_BUILT_FOR "avx512vnni"
#elif defined(__AVX512F__)
#define KVCACHE_BUILT_FOR "avx512"
#elif defined(__AVX2__) && defined(__FMA__)
#define KVCACHE_BUILT_FOR "avx2"
#elif defined(__AVX__)
#define KVCACHE_BUILT_FOR "avx"
#else
#define KVCACHE_BUILT_FOR "base"
#endif
#if KVCACHE_CONTRACTS
#define KVCACHE_BUILT_WITH "contracts"
#else
#define KVCACHE_BUILT_WITH "unchecked"
#endif
#define KVCACHE_TEXT(x) #x
#define KVCACHE_VERSION_TEXT(major, minor, patch)                                                                      \
    "v" KVCACHE_TEXT(major) "_" KVCACHE_TEXT(minor) "_" KVCACHE_TEXT(patch)
#define KVCACHE_BUILT_AS KVCACHE_VERSION_TEXT(KVCACHE_VERSION_MAJOR, KVCACHE_VERSION_MINOR, KVCACHE_VERSION_PATCH)
#if defined(__GNUC__)
#define KVCACHE_TAGGED [[gnu::abi_tag(KVCACHE_BUILT_AS, KVCACHE_BUILT_FOR, KVCACHE_BUILT_WITH)]]
#else
#define KVCACHE_TAGGED
#endif
#define KVCACHE_ONCE KVCACHE_TAGGED
#endif
