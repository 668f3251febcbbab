// SPDX-License-Identifier: MIT
#pragma once

// GCC 12 reports uninitialized values inside its own AVX-512 intrinsics, wherever a program inlines them. A warning
// belongs to the line it points at, so it is silenced there: include this header before any other header that includes
// the intrinsics.
#if defined(__x86_64__) || defined(__i386__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__AVX__)
#include <immintrin.h>
#else
#include <emmintrin.h> // a tenth of the lines
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
