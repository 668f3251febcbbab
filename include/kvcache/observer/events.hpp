// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/observer/concept.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace observer {

/// Publishes the blocks of a cache to routers, as one JSON object per line in the format of vLLM's KV event batches,
/// which Dynamo's routers read too: BlockStored when a full page becomes findable, BlockRemoved when it is evicted.
/// The hash of a block is the low half of its name; it is the same on every host with an equal identity and hash
/// policy. BlockHit and BlockCopied are not vLLM events; omit them for a reader that rejects unknown events.
struct events {
    using role = observer_role;
    std::function<void(std::string_view)> write = {}; ///< Receives one line, with its newline; optional.
    std::function<double()> seconds = {};             ///< Time source; default: the system clock, since 1970.
    bool routers_only = false;                        ///< Publish only BlockStored and BlockRemoved.
    int rank = 0;                                     ///< Index of this cache among several ("data_parallel_rank").
    std::string medium = "CPU";                       ///< Memory that holds the blocks.
    class state;
    [[nodiscard]] state open() const;
};

class events::state {
public:
    explicit state(events how) : how_(std::move(how)) {}

    void on(const event& what) {
        if (!how_.write)
            return;
        switch (what.kind) {
        case event_kind::published:
            tell(R"("type":"BlockStored","block_hashes":[)" + hash(what, what.which.front()) +
                 R"(],"parent_block_hash":)" + (what.parent ? hash(what, *what.parent) : "null") + R"(,"token_ids":[)" +
                 tokens(what.run) + R"(],"block_size":)" + std::to_string(what.page_tokens) + medium());
            break;
        case event_kind::evicted:
            if (what.tokens == what.page_tokens) // a partial page was never published
                tell(R"("type":"BlockRemoved","block_hashes":[)" + hash(what, what.which.front()) + "]" + medium());
            break;
        case event_kind::matched:
            if (!how_.routers_only)
                tell(R"("type":"BlockHit","block_hashes":[)" + hashes(what) + R"(],"tokens":)" +
                     std::to_string(what.tokens) + R"(,"of":)" + std::to_string(what.of) + medium());
            break;
        case event_kind::copied:
            if (!how_.routers_only)
                tell(R"("type":"BlockCopied","tokens":)" + std::to_string(what.tokens) + medium());
            break;
        case event_kind::spliced:
        case event_kind::stored:
        case event_kind::refused:
            break;
        }
    }

private:
    [[nodiscard]] static std::string hash(const event& what, page_id page) {
        return std::to_string(what.name_of(page).low);
    }

    // Returns the hashes of the full pages that matched, in order.
    [[nodiscard]] static std::string hashes(const event& what) {
        std::string text;
        for (std::size_t i = 0; i < what.tokens / what.page_tokens && i < what.which.size(); ++i)
            text += (i > 0 ? "," : "") + hash(what, what.which[i]);
        return text;
    }

    [[nodiscard]] static std::string tokens(std::span<const token_id> run) {
        std::string text;
        for (std::size_t i = 0; i < run.size(); ++i)
            text += (i > 0 ? "," : "") + std::to_string(index_of(run[i]));
        return text;
    }

    [[nodiscard]] std::string medium() const { return R"(,"medium":")" + how_.medium + '"'; }

    void tell(const std::string& fields) {
        const double now =
            how_.seconds ? how_.seconds()
                         : std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
        how_.write(R"({"ts":)" + std::to_string(now) + R"(,"events":[{)" + fields + R"(}],"data_parallel_rank":)" +
                   std::to_string(how_.rank) + "}\n");
    }

    events how_;
};

inline events::state events::open() const {
    return state(*this);
}

static_assert(observer_policy<events>);

}}} // namespace kvcache::observer
