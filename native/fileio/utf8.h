// Text from files: whether it is UTF-8, and how to show it in a message. Knows: bytes. Must not know:
// formats.
#pragma once

#include <string>
#include <string_view>

namespace plait {

// True for well-formed UTF-8: no overlong forms, surrogates or values above U+10FFFF.
bool is_utf8(std::string_view text);

// True when a byte below 0x20 or 0x7f occurs.
bool has_control_bytes(std::string_view text);

// 'text' for a message: other than printable ASCII becomes \xNN, and a long text is cut to its first 64
// bytes.
std::string quoted(std::string_view text);

}  // namespace plait
