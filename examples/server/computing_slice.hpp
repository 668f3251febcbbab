// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <sys/syscall.h>
#include <unistd.h>

namespace server {

/// Gives threads started during its lifetime a long scheduler slice. A thread that wakes for a short task, such as
/// sending a token, then preempts them instead of waiting for the end of a slice. It has no effect on systems without
/// configurable slices (Linux before 6.12).
class computing_slice {
public:
    computing_slice() : set_(set(100'000'000)) {}
    computing_slice(const computing_slice&) = delete;
    computing_slice& operator=(const computing_slice&) = delete;
    ~computing_slice() {
        if (set_)
            (void)set(0); // restores the system's default
    }

private:
    // The struct of Linux (sched_setattr(2)), which glibc declares since 2.41.
    struct attributes {
        std::uint32_t size = sizeof(attributes);
        std::uint32_t policy = 0;
        std::uint64_t flags = 0;
        std::int32_t nice = 0;
        std::uint32_t priority = 0;
        std::uint64_t runtime = 0, deadline = 0, period = 0; // nanoseconds; runtime is the slice
    };

    [[nodiscard]] static bool set(std::uint64_t nanoseconds) {
#if defined(SYS_sched_setattr) && defined(SYS_sched_getattr)
        attributes own;
        if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) != 0 || own.policy != 0)
            return false;
        own.flags = 0;
        own.runtime = nanoseconds;
        return syscall(SYS_sched_setattr, 0, &own, 0) == 0;
#else
        return nanoseconds == 0;
#endif
    }

    bool set_;
};

} // namespace server
