// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include "connection.hpp"
#include "exchange.hpp"

namespace server {

/// Waits until a request is over. It is cancelled if the client disconnects.
template <class Layers>
void serve(exchange<Layers>& talk, const connection& client) {
    constexpr std::chrono::milliseconds moment(100);
    while (!talk.wait(moment))
        if (client.closed())
            talk.abandon();
}

} // namespace server
