// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include "connection.hpp"
#include "exchange.hpp"

namespace server {

/// Waits until a request of this thread's connection is over. It is cancelled if the client disconnects.
inline void serve(exchange& talk) {
    constexpr std::chrono::milliseconds moment(100);
    while (!talk.wait(moment))
        if (const connection* client = connection::here(); client != nullptr && client->closed())
            talk.abandon();
}

} // namespace server
