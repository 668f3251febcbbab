// SPDX-License-Identifier: MIT
#pragma once

// Functions of kernel32 that neither C nor C++ has, declared by hand, because windows.h defines thousands of macros.
// The types are those of windows.h, so a file may include both.

#include <kvcache/core/platform/machine.hpp>

#include <cstddef>

#if KVCACHE_WINDOWS

struct _SECURITY_ATTRIBUTES;
struct _MEMORY_BASIC_INFORMATION;

extern "C" {
__declspec(dllimport) void* __stdcall VirtualAlloc(void*, std::size_t, unsigned long, unsigned long);
__declspec(dllimport) int __stdcall VirtualFree(void*, std::size_t, unsigned long);
__declspec(dllimport) std::size_t __stdcall VirtualQuery(const void*, struct _MEMORY_BASIC_INFORMATION*, std::size_t);
__declspec(dllimport) int __stdcall VirtualUnlock(void*, std::size_t);
__declspec(dllimport) int __stdcall GetPhysicallyInstalledSystemMemory(unsigned long long*);
__declspec(dllimport) void* __stdcall CreateFileMappingW(void*, struct _SECURITY_ATTRIBUTES*, unsigned long,
                                                         unsigned long, unsigned long, const wchar_t*);
__declspec(dllimport) void* __stdcall MapViewOfFile(void*, unsigned long, unsigned long, unsigned long, std::size_t);
__declspec(dllimport) int __stdcall UnmapViewOfFile(const void*);
__declspec(dllimport) int __stdcall CloseHandle(void*);
}

#endif
