// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/cache/handle.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/record/page_records.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/run.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The chunks of a cache as records of its tier, which outlive the process and are found by others. A chunk's record
/// has all tokens from the first one of its prompt to its end, and the rows after the last full page; the full pages
/// are records of their own already. It is found by the chunk's first tokens, as many as the shortest chunk has, under
/// the name of its tenant (record_names::chunk). Chunks that begin alike lie at places 0, 1, ...
///
///     record   [ context | the chunk's tokens ], rows of page 2      in the tier: page 0, page 1
///     found    prompt [ ... | the chunk's tokens | ... ], at any position
///
/// What is loaded is in memory as if this process had computed it: the pages of the record's tokens, and the chunk.
template <class Core>
class chunk_records {
public:
    using sequence = basic_sequence<Core>;

    static constexpr std::size_t places = 8;        ///< Maximum number of chunks that begin alike.
    static constexpr std::size_t most_context = 15; ///< Maximum tokens before a chunk, as a multiple of its own.

    explicit chunk_records(Core& core) : core_(core) {}

    /// Hands over the record of a chunk that lies in a sequence, unless the tier has one. `known`: whether memory had
    /// a chunk of this content before, so that a record was handed over then. A failure is counted. Requires: the
    /// tokens are exact, and a codec that encodes whole pages has whole pages. Cost: O(first + count).
    void store(const sequence& of, std::size_t first, std::size_t count, bool known) noexcept {
        if (is_null(tier()) || first > most_context * count)
            return;
        if (!detail::completes<std::bad_alloc>([&] { hand_over(of.state_in(core_), first, count, known); }))
            core_.tier().note([](tier_stats& s) { ++s.failed; });
    }

    /// Loads the chunks that begin in the tokens [first, last) of a prompt, and end there. Pages that they need stay
    /// in memory as long as the sequences that are added to `held`. A failure is counted, and is a miss. Cost: one
    /// name a token, and one question to the tier; then as acquire, for each chunk.
    void load(std::uint32_t tenant, std::span<const token_id> tokens, std::size_t first, std::size_t last,
              std::vector<sequence>& held) noexcept {
        if (is_null(tier()) || first + least() > last)
            return;
        if (!detail::completes<std::bad_alloc>([&] { load_all(tenant, tokens.subspan(first, last - first), held); }))
            core_.tier().note([](tier_stats& s) { ++s.failed; });
    }

private:
    using codec = typename Core::codec_type;

    // A record that was read, with the bytes that it lies in.
    struct found_chunk {
        std::vector<std::byte> bytes;
        std::optional<record> read;

        [[nodiscard]] std::span<const token_id> path() const noexcept { return read->tokens(); }
        [[nodiscard]] std::size_t context() const noexcept { return static_cast<std::size_t>(read->first()); }
        [[nodiscard]] std::span<const token_id> chunk() const noexcept { return path().subspan(context()); }
    };

    [[nodiscard]] auto& tier() noexcept { return core_.tier().tier(); }
    [[nodiscard]] const record_authenticator& auth() const noexcept { return core_.tier().records().auth(); }
    [[nodiscard]] std::size_t least() const { return core_.pages().index().least(); }
    [[nodiscard]] std::size_t page_tokens() const noexcept { return core_.shape().tokens; }

    void hand_over(const sequence_state& state, std::size_t first, std::size_t count, bool known) {
        const std::span<const token_id> path = std::span<const token_id>(state.tokens).first(first + count);
        const record_names& names = core_.tier().records().names_of(state.tenant);
        std::optional<std::size_t> free;
        for (std::size_t place = 0; !free && place < places; ++place) {
            const sha256_digest name = names.chunk(place, path.subspan(first, least()));
            if (known && place == 0 && tier().contains(name))
                return;
            const auto there = read(names, name, path.subspan(first, least()));
            if (!there)
                free = place;
            else if (ranges::equal(there->chunk(), path.subspan(first)))
                return;
        }
        if (!free)
            return;
        page_parts<Core> parts(core_);
        const std::size_t whole = path.size() - path.size() % page_tokens();
        if (whole < path.size()) {
            page_entry tail = state.table[whole / page_tokens()];
            tail.count = static_cast<std::uint32_t>(path.size() - whole);
            parts.add(tail, whole / page_tokens(), path.size(), 0);
        }
        const sha256_digest name = names.chunk(*free, path.subspan(first, least()));
        const record_writer made(
            {record_kind::chunk, first, path, names.of(path.first(whole), page_tokens()), name, parts.parts()}, names,
            auth());
        const tier_entry entry{.name = name, .cost = core_.prefill_seconds(first, count)};
        if (auto taken = tier().put(entry, made.pieces()); !taken)
            core_.tier().fail(taken.error());
        else
            core_.tier().note([](tier_stats& s) { ++s.chunks; });
    }

    void load_all(std::uint32_t tenant, std::span<const token_id> tokens, std::vector<sequence>& held) {
        const record_names& names = core_.tier().records().names_of(tenant);
        std::vector<sha256_digest> firsts;
        for (std::size_t at = 0; at + least() <= tokens.size(); ++at)
            firsts.push_back(names.chunk(0, tokens.subspan(at, least())));
        const std::vector<bool> there = tier::present(tier(), std::span<const sha256_digest>(firsts));
        for (std::size_t at = 0; at < there.size();) {
            std::optional<found_chunk> best;
            for (std::size_t place = 0; there[at] && place < places; ++place) {
                const auto begin = tokens.subspan(at, least());
                auto one = read(names, place == 0 ? firsts[at] : names.chunk(place, begin), begin);
                if (!one)
                    break;
                const auto chunk = one->chunk();
                if (chunk.size() <= tokens.size() - at && ranges::equal(chunk, tokens.subspan(at, chunk.size())) &&
                    (!best || best->chunk().size() < chunk.size()))
                    best = std::move(one);
            }
            at += best && place(tenant, *best, held) ? best->chunk().size() : 1;
        }
    }

    // The sound record of a chunk that begins with `begin`; nothing if there is none.
    [[nodiscard]] std::optional<found_chunk> read(const record_names& names, const sha256_digest& name,
                                                  std::span<const token_id> begin) {
        found_chunk made;
        const auto found = tier().read(name, [&](std::span<const std::byte> bytes) {
            made.bytes.assign(bytes.data(), bytes.data() + bytes.size());
        });
        if (!found)
            core_.tier().fail(found.error());
        if (!found || !*found)
            return std::nullopt;
        auto parsed = record::parse(made.bytes, auth());
        if (!parsed) {
            core_.tier().refuse(name, parsed.error());
            return std::nullopt;
        }
        made.read.emplace(std::move(*parsed));
        if (auto sound = check(made, names, name, begin); !sound) {
            core_.tier().refuse(name, sound.error());
            return std::nullopt;
        }
        return made;
    }

    [[nodiscard]] result<void> check(const found_chunk& of, const record_names& names, const sha256_digest& name,
                                     std::span<const token_id> begin) const {
        const record& read = *of.read;
        if (auto own = read.made_under(names); !own)
            return own;
        const auto size = of.path().size();
        const bool is = read.kind() == record_kind::chunk;
        const bool ends = is && read.first() < size && size - of.context() >= begin.size();
        const struct {
            const char* field;
            bool holds;
        } facts[] = {
            {"kind", is},
            {"name", read.name() == name},
            {"first_token", ends},
            {"tokens", ends && ranges::equal(of.chunk().first(begin.size()), begin)},
            {"before", ends && read.before() == names.of(of.path().first(size - size % page_tokens()), page_tokens())}};
        for (const auto& [field, holds] : facts)
            if (!holds)
                return error{error_code::mismatched, field,
                             std::string(field) + ": the record is not the one that was asked for"};
        return {};
    }

    // Loads the pages of a record's tokens and its own rows, and registers the chunk. Returns whether it is in memory.
    [[nodiscard]] bool place(std::uint32_t tenant, const found_chunk& of, std::vector<sequence>& held) {
        const auto path = of.path();
        const std::size_t whole = path.size() - path.size() % page_tokens();
        core_.tier().prefetch(core_, tenant, path.first(whole));
        auto found = core_.match_in_memory(tenant, path, {.emits = false}).sequence;
        if (found.size() < whole)
            return false;
        if (found.size() < path.size()) {
            found.truncate(whole);
            if (!append(found, of, path.subspan(whole)))
                return false;
        }
        const std::size_t last = path.size() - 1;
        bool noted = false;
        {
            const std::lock_guard guard(core_.lock());
            const sequence_state& state = found.state_in(core_);
            noted = core_.pages().index().note(tenant, state.table[last / page_tokens()].page,
                                               static_cast<std::uint32_t>(last % page_tokens() + 1), of.chunk().size());
        }
        if (noted)
            core_.tier().note([](tier_stats& s) { ++s.loaded_chunks; });
        held.push_back(std::move(found));
        return noted;
    }

    // Appends a record's own rows to the sequence of its full pages.
    [[nodiscard]] bool append(sequence& to, const found_chunk& of, std::span<const token_id> tokens) {
        auto lease = core_.reserve(to.state_in(core_), tokens.size(), {.max_batch_tokens = 1});
        if (!lease) {
            core_.tier().note([](tier_stats& s) { ++s.no_room; });
            return false;
        }
        const auto opened = lease->opened();
        if (auto placed = place_page<codec>(*of.read, 0, opened, 0, static_cast<std::uint32_t>(tokens.size()), auth());
            !placed) {
            core_.tier().refuse(of.read->name(), placed.error());
            return false;
        }
        opened.commit_in_place(tokens);
        return true;
    }

    Core& core_;
};

}} // namespace kvcache
