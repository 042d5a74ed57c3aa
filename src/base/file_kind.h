// What a file is that was taken for another: downloads that brought a page, pointers of Git LFS, archives.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace carat {

inline constexpr std::string_view kSafetensorsFile = "a safetensors file", kJsonText = "a JSON text";

struct FileKind {
  std::string_view is;    // "a web page (HTML)"
  std::string_view hint;  // what to do about it
};
// By its first bytes; nullptr: nothing that is known.
const FileKind* foreign_kind(std::string_view head);
inline const FileKind* foreign_kind(std::span<const std::byte> bytes) {
  return foreign_kind(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// Error if a text that should be JSON is one of the others. name: for messages.
void require_json_text(std::string_view text, std::string_view name);

}  // namespace carat
