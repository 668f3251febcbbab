// SPDX-License-Identifier: MIT
//
// Feeds arbitrary bytes to the parser of records, as they are and with the checksum of the header put right, and reads
// all that it gives out:
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/record.cpp -o fuzz
//     ./fuzz -max_len=8192 -max_total_time=60 tests/fuzz/corpus/record

#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

namespace kv = kvcache;
namespace at = kvcache::record_layout;

const kv::record_authenticator& auth() {
    static const kv::record_authenticator made("");
    return made;
}

void read(std::span<const std::byte> bytes) {
    const auto read = kv::record::parse(bytes, auth());
    if (!read) {
        if (read.error().field.empty() || read.error().message.empty())
            std::abort();
        return;
    }
    static const kv::record_names names(kv::identity{}, "");
    if (read->made_under(names) && read->identity().size() != names.fields().size())
        std::abort();
    const std::byte* end = bytes.data();
    for (const kv::record_part& part : read->parts()) {
        if (part.bytes.data() < end || part.bytes.data() + part.bytes.size() > bytes.data() + bytes.size())
            std::abort();
        end = part.bytes.data() + part.bytes.size();
        static_cast<void>(kv::record::sound(part, part.bytes, auth()));
    }
    if (end != bytes.data() + bytes.size() && !read->parts().empty())
        std::abort();
    // What was taken apart can be put together again, but for an identity of its own and checksums that lied.
    std::vector<kv::part_source> parts;
    for (const kv::record_part& part : read->parts())
        parts.push_back({part.kind, part.index, part.rows, part.bytes});
    const kv::record_writer again({read->kind(), read->first(), read->tokens(), read->before(), read->name(), parts},
                                  names, auth());
    std::vector<std::byte> written;
    for (const auto piece : again.pieces())
        written.insert(written.end(), piece.begin(), piece.end());
    const auto back = kv::record::parse(written, auth());
    if (!back || back->tokens() != read->tokens() || back->parts().size() != read->parts().size())
        std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto raw = std::as_bytes(std::span(data, size));
    read(raw);
    if (size < at::fixed_bytes)
        return 0;
    std::vector<std::byte> sealed(raw.begin(), raw.end());
    std::ranges::copy(std::as_bytes(std::span(at::magic)), sealed.begin());
    kv::store_little<std::uint32_t>(sealed, at::format, kv::record_format_revision);
    kv::store_little(std::span(sealed), at::checksum_kind, static_cast<std::uint32_t>(kv::authenticator_kind::xxh3));
    kv::store_little<std::uint64_t>(sealed, at::total_bytes, size);
    const auto header = std::min<std::uint64_t>(kv::load_little<std::uint64_t>(sealed, at::header_bytes), size);
    const auto behind =
        std::span(sealed).first(std::max<std::size_t>(header, at::fixed_bytes)).subspan(at::fixed_bytes);
    const kv::sha256_digest sum = auth().of(std::span(sealed).first(at::checksum), behind);
    std::ranges::copy(sum.bytes, sealed.begin() + at::checksum);
    read(sealed);
    return 0;
}
