// SPDX-License-Identifier: MIT

// Records every function that a program compiled with -finstrument-functions enters or leaves between trace_begin and
// trace_end, and prints a line for each: "name NAME", "enter ADDRESS" or "leave". Compiled without that flag itself.
#include <cstdio>
#include <cstdlib>

namespace {

struct event {
    const char* name;    // of a trace, at its begin
    const void* entered; // null: a function is left
};

event events[1 << 20];
unsigned long count;
bool tracing;

void add(event added) {
    if (count == sizeof events / sizeof *events)
        std::abort();
    events[count++] = added;
}

} // namespace

void trace_begin(const char* name) {
    add({name, nullptr});
    tracing = true;
}

void trace_end() {
    tracing = false;
    for (unsigned long i = 0; i < count; ++i) {
        if (events[i].name)
            std::printf("name %s\n", events[i].name);
        else if (events[i].entered)
            std::printf("enter %p\n", events[i].entered);
        else
            std::printf("leave\n");
    }
    count = 0;
}

extern "C" {
void __cyg_profile_func_enter(void* function, void*) {
    if (tracing)
        add({nullptr, function});
}
void __cyg_profile_func_exit(void*, void*) {
    if (tracing)
        add({nullptr, nullptr});
}
}
