// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace record_tests {

namespace kv = kvcache;

using bytes = std::vector<std::byte>;

/// The identity of the golden records.
inline kv::identity golden_identity() {
    return {.weights = {1, 2},
            .tokenizer = {3, 4},
            .config = "llama",
            .rope = "theta 10000",
            .codec = "float32",
            .layout = "tiles",
            .page_tokens = 16,
            .weight_format = "bf16",
            .numeric_contract = 1,
            .format = 2,
            .tenant = "alice"};
}

inline std::vector<kv::token_id> golden_run() {
    std::vector<kv::token_id> run = {kv::token_id{1}, kv::token_id{-2}, kv::token_id{3}};
    for (int token = 100; token < 113; ++token)
        run.push_back(kv::token_id{token});
    return run;
}

inline bytes golden_page() {
    bytes made(200);
    for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = static_cast<std::byte>(i * 7 % 256);
    return made;
}

inline bytes joined(const kv::record_writer& writer) {
    bytes all;
    for (const auto piece : writer.pieces())
        all.insert(all.end(), piece.begin(), piece.end());
    return all;
}

/// The second page of a chain.
inline bytes page_record(const std::string& secret, const kv::identity& id = golden_identity()) {
    const kv::record_names names(id, secret);
    const kv::record_authenticator auth(secret);
    const auto run = golden_run();
    const bytes page = golden_page();
    const kv::part_source parts[] = {{kv::part_kind::page, 0, 16, page}};
    const kv::sha256_digest first = names.chain(names.root(), run);
    return joined(
        kv::record_writer({kv::record_kind::page, 16, run, first, names.chain(first, run), parts}, names, auth));
}

/// The state of layer group 2 after the second page of a chain.
inline bytes block_record(const std::string& secret, const kv::identity& id = golden_identity()) {
    const kv::record_names names(id, secret);
    const kv::record_authenticator auth(secret);
    const auto run = golden_run();
    const bytes state = golden_page();
    const kv::part_source parts[] = {{kv::group_part(2), 0, 0, state}};
    const kv::sha256_digest first = names.chain(names.root(), run);
    return joined(kv::record_writer(
        {kv::record_kind::block, 16, run, first, names.block(names.chain(first, run), 2), parts}, names, auth));
}

/// A sequence of seventeen tokens, with the parts of page codecs and of generation states.
inline bytes sequence_record(const std::string& secret, const kv::identity& id = golden_identity()) {
    const kv::record_names names(id, secret);
    const kv::record_authenticator auth(secret);
    auto run = golden_run();
    const kv::sha256_digest first = names.chain(names.root(), run);
    run.push_back(kv::token_id{5});
    const bytes page = golden_page(), turned(page.rbegin(), page.rend()), exact(page.begin(), page.begin() + 100);
    const std::string said = "speaking";
    const kv::part_source parts[] = {{kv::part_kind::page, 0, 16, page},
                                     {kv::part_kind::page, 1, 1, turned},
                                     {kv::part_kind::exact, 1, 1, exact},
                                     {kv::part_kind::generation_state, 2, 0, std::as_bytes(std::span(said))}};
    return joined(kv::record_writer(
        {kv::record_kind::sequence, 0, run, names.root(), names.chain(first, std::span(run).last(1)), parts}, names,
        auth));
}

/// A chunk of eight tokens after nine others, the second one that begins so.
inline bytes chunk_record(const std::string& secret, const kv::identity& id = golden_identity()) {
    const kv::record_names names(id, secret);
    auto run = golden_run();
    const kv::sha256_digest before = names.chain(names.root(), run);
    run.push_back(kv::token_id{5});
    const bytes page = golden_page(), turned(page.rbegin(), page.rend());
    const kv::part_source parts[] = {{kv::part_kind::page, 0, 1, turned}};
    return joined(
        kv::record_writer({kv::record_kind::chunk, 9, run, before, names.chunk(1, std::span(run).subspan(9, 8)), parts},
                          names, kv::record_authenticator(secret)));
}

} // namespace record_tests
