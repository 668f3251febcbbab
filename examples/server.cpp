// SPDX-License-Identifier: MIT
// Serves a model directory over OpenAI's API, with a web page at /.
// test: --help
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "server/computing_slice.hpp"
#include "server/connection_limits.hpp"
#include "server/host.hpp"
#include "server/listener.hpp"
#include "server/options.hpp"
#include "server/origin.hpp"
#include "server/routes.hpp"
#include "server/web.hpp"
#include "support/flags.hpp"
#include "support/kept_layers.hpp"
#include "support/model_directory.hpp"
#include <CLI/CLI.hpp>
#include <malloc.h>

namespace {

template <class Layers>
int run(const server::options& with, kvcache::loaded_model loaded, const Layers& layers) {
    // All threads block the signals, and one thread waits for them. A disconnected client must not end the server.
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
#if defined(__GLIBC__)
    ::mallopt(M_MMAP_THRESHOLD, 1 << 20); // bodies go back to the system when they are freed
    if (server::detail::soft_limit(RLIMIT_AS) != server::detail::no_limit)
        ::mallopt(M_ARENA_MAX, 4); // of 64 MiB of addresses each
#endif
    std::signal(SIGXFSZ, SIG_IGN); // a file of the tier at its limit is an error of the tier

    auto opened = [&] {
        const server::computing_slice slices;
        return server::host<Layers>::open(with, std::move(loaded), layers);
    }();
    if (!opened)
        return support::report("server", opened.error());
    server::host<Layers>& at = **opened;
    const auto room = server::room_for_connections(with.connections, server::web::limits{}.reserve,
                                                   std::uint64_t{with.cache_mib + with.bodies_mib + 256} << 20);
    if (room.connections == 0)
        return support::report("server",
                               {kvcache::error_code::unsupported, "--connections",
                                "--connections: there is no room for one more connection with " + room.limit});
    if (!room.limit.empty())
        std::fprintf(stderr, "warning: --connections is %zu instead of %zu, which is what there is room for with %s\n",
                     room.connections, with.connections, room.limit.c_str());

    const auto listener = server::listener::open(with.host, with.port);
    if (!listener)
        return support::report("server", listener.error());
    server::routes<Layers> paths(at);
    using std::chrono::seconds;
    server::web web({.connections = room.connections,
                     .patience = {.idle = seconds(75), .head = seconds(with.read_timeout_s), .write = seconds(30)}},
                    paths.rules(), {"/health", "/metrics"});
    if (at.keys.empty() && !server::is_loopback(with.host))
        std::fprintf(stderr, "warning: anyone who reaches %s may use this server; there is no API key\n",
                     with.host.c_str());
    std::printf("%s\nlistening on http://%s:%d\n", kvcache::describe(at.cache).c_str(), with.host.c_str(),
                listener->port());
    std::fflush(stdout);
    std::jthread waiting([&](const std::stop_token& stop) {
        const timespec moment{.tv_sec = 0, .tv_nsec = 100'000'000};
        while (!stop.stop_requested())
            if (sigtimedwait(&ends, nullptr, &moment) > 0) {
                at.stop(); // running answers end, and their clients are told
                web.end();
                return;
            }
    });
    web.serve(*listener);
    waiting.request_stop();
    waiting.join();
    at.stop();
    at.sessions.clear();
    if (const auto sound = at.cache.check(); !sound)
        return support::report("server", sound.error());
    if (const auto written = at.cache.tier().flush(); !written) // writes everything that was put into the tier
        std::fprintf(stderr, "warning: pages were not stored: %s\n", written.error().message.c_str());
    const auto rest = at.cache.stats();
    std::printf("ended; %zu pages in use, invariants hold\n", rest.in_use);
    return rest.in_use == 0 ? 0 : 1;
}

// The same with the model and the codec that the options name.
int run(const server::options& with) {
    auto loaded = support::open_model(with.model, with.packed_cache, with.int8);
    if (!loaded)
        return support::report("server", loaded.error());
    return support::with_layers(
        loaded->model, with.page, with.codec, *support::read_mode(with.mode),
        [&](const auto& layers) {
            using layers_type = std::decay_t<decltype(layers)>;
            if (!std::is_same_v<layers_type, support::alike_layers<kvcache::codec::f32>> && with.overflow == "sinks")
                return support::report("server", {kvcache::error_code::unsupported, "--overflow",
                                                  "--overflow sinks drops single tokens, which takes --codec f32 and a "
                                                  "model whose layers all keep the same; use slide or refuse"});
            return run(with, std::move(*loaded), layers);
        },
        [](const kvcache::error& fault) { return support::report("server", fault); });
}

} // namespace

int main(int argc, char** argv) {
    server::options with;
    CLI::App app{"Serves a model directory to clients of OpenAI's API."};
    server::add_flags(app, with);
    return support::guarded("server", app, argc, argv, [&] { return run(with); });
}
