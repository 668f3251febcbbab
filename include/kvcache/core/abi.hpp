// SPDX-License-Identifier: MIT
#pragma once

/// The one place where the version lives; CMake reads it from here.
#define KVCACHE_VERSION_MAJOR 0
#define KVCACHE_VERSION_MINOR 1
#define KVCACHE_VERSION_PATCH 0

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#endif

// Contract checks are on in debug builds. Define KVCACHE_CONTRACTS as 1 or 0 to choose.
#if !defined(KVCACHE_CONTRACTS)
#if defined(NDEBUG)
#define KVCACHE_CONTRACTS 0
#else
#define KVCACHE_CONTRACTS 1
#endif
#endif

// KVCACHE_ABI is the inline namespace of the whole library. Its name encodes everything that changes the library's code
// or layout: the version, the instruction set, contract checks and exceptions. Objects that are built differently
// therefore share no function, and passing a type of the library between them is a link error.
//
// A host that builds files for several processors and passes caches between them defines KVCACHE_TARGET, with the same
// name in all files, and ensures that each file runs only on a processor that has its instructions. This works for the
// cache alone: the layout of arithmetic classes depends on the instruction set, so kernel/native.hpp rejects it.
#if defined(KVCACHE_TARGET)
#define KVCACHE_TARGET_IS_SHARED 1
#else
#define KVCACHE_TARGET_IS_SHARED 0
#endif
#if !KVCACHE_TARGET_IS_SHARED
#if defined(__AVX512VNNI__)
#define KVCACHE_TARGET avx512vnni
#elif defined(__AVX512F__)
#define KVCACHE_TARGET avx512
#elif defined(__AVX2__) && defined(__FMA__)
#define KVCACHE_TARGET avx2
#elif defined(__AVX__)
#define KVCACHE_TARGET avx
#elif defined(__SSE4_2__)
#define KVCACHE_TARGET sse4
#else
#define KVCACHE_TARGET base
#endif
#endif
#if KVCACHE_CONTRACTS
#define KVCACHE_ABI_CHECKS checked
#else
#define KVCACHE_ABI_CHECKS unchecked
#endif
#if defined(__cpp_exceptions)
#define KVCACHE_ABI_EXCEPTIONS throwing
#else
#define KVCACHE_ABI_EXCEPTIONS nothrow
#endif
#define KVCACHE_ABI_JOINED(major, minor, patch, target, checks, exceptions)                                            \
    v##major##_##minor##_##patch##_##target##_##checks##_##exceptions
#define KVCACHE_ABI_NAME(major, minor, patch, target, checks, exceptions)                                              \
    KVCACHE_ABI_JOINED(major, minor, patch, target, checks, exceptions)
#define KVCACHE_ABI                                                                                                    \
    KVCACHE_ABI_NAME(KVCACHE_VERSION_MAJOR, KVCACHE_VERSION_MINOR, KVCACHE_VERSION_PATCH, KVCACHE_TARGET,              \
                     KVCACHE_ABI_CHECKS, KVCACHE_ABI_EXCEPTIONS)

// The ABI name as a string literal.
#define KVCACHE_ABI_QUOTED(name) #name
#define KVCACHE_ABI_TEXT_OF(name) KVCACHE_ABI_QUOTED(name)
#define KVCACHE_ABI_TEXT KVCACHE_ABI_TEXT_OF(KVCACHE_ABI)
