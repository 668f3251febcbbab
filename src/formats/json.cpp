// SPDX-License-Identifier: MIT
#include <kvcache/formats/json.hpp>

namespace kvcache {

template bool detail::tell_json(std::string_view, detail::json_events&);
template result<json> parse_json_as(std::string_view, std::string);
template result<nlohmann::json> parse_json_as(std::string_view, std::string);
template std::string json_text(const json&);
template result<std::string> read_file(const std::filesystem::path&, std::size_t);

} // namespace kvcache
