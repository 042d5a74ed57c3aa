#include "base/file_kind.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace carat {
namespace {

constexpr size_t kHead = 4096;

constexpr FileKind kEmpty = {"empty", "download or copy it again"};
constexpr FileKind kZeros = {"a file of zeros so far",
                             "the download or copy is unfinished; let it end, or start it again"};
constexpr FileKind kLfs = {"a pointer of Git LFS, a few lines in the place of the file",
                           "run 'git lfs pull' in the clone, or download the file itself"};
constexpr FileKind kXet = {"a pointer, a few lines in the place of the file", "download the file itself"};
constexpr FileKind kHtml = {
    "a web page (HTML)",
    "the download brought a page, of a sign-in or of the file's viewer; take the address behind its "
    "download button, on Hugging Face /resolve/ in the place of /blob/"};
constexpr FileKind kXml = {"an XML text, as servers send for errors",
                           "look into it, and download the file again"};
constexpr FileKind kJson = {
    kJsonText,
    "a server's error message, or a model's config.json; give the weights' file, or the "
    "directory that holds config.json"};
constexpr FileKind kZip = {"a ZIP archive or a PyTorch checkpoint",
                           "unpack it; of a checkpoint, take the *.safetensors files or a GGUF file"};
constexpr FileKind kPickle = {"a Python pickle, as old PyTorch checkpoints are",
                              "take the *.safetensors files or a GGUF file of the model"};
constexpr FileKind kGzip = {"compressed by gzip", "unpack it with gunzip"};
constexpr FileKind kXz = {"compressed by xz", "unpack it with unxz"};
constexpr FileKind kZstd = {"compressed by zstd", "unpack it with unzstd"};
constexpr FileKind kTar = {"a tar archive", "unpack it with tar -xf"};
constexpr FileKind kSafetensors = {kSafetensorsFile, "give the directory that holds it with its config.json"};
constexpr FileKind kOldGgml = {"of a format older than GGUF (GGML, GGJT)",
                               "take a GGUF file of the model, or make one with carat convert"};
constexpr FileKind kGguf = {"a GGUF file", "give it a name that ends in .gguf, and give that"};

struct Start {
  std::string_view bytes;
  const FileKind* kind;
};
using namespace std::string_view_literals;
constexpr Start kStarts[] = {
    {"GGUF"sv, &kGguf},
    {"PK\x03\x04"sv, &kZip},
    {"\x1f\x8b"sv, &kGzip},
    {"\xfd"
     "7zXZ"sv,
     &kXz},
    {"\x28\xb5\x2f\xfd"sv, &kZstd},
    {"tjgg"sv, &kOldGgml},
    {"lmgg"sv, &kOldGgml},
    {"fmgg"sv, &kOldGgml},
    {"\x80\x02"sv, &kPickle},
    {"version https://git-lfs"sv, &kLfs},
    {"# xet version"sv, &kXet},
};

bool begins_like(std::string_view text, std::string_view word) {
  if (text.size() < word.size()) return false;
  return std::equal(word.begin(), word.end(), text.begin(), [](char a, char b) {
    return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b + 32) : b);
  });
}

}  // namespace

const FileKind* foreign_kind(std::string_view head) {
  if (head.empty()) return &kEmpty;
  const bool rest = head.size() > kHead;
  head = head.substr(0, kHead);
  for (const Start& s : kStarts)
    if (head.starts_with(s.bytes)) return s.kind;
  if (head.size() > 262 && head.substr(257, 5) == "ustar") return &kTar;
  uint64_t length = 0;
  if (head.size() > 9) std::memcpy(&length, head.data(), 8);
  if (length > 1 && length < (uint64_t{1} << 30) && head[8] == '{' && head[9] == '"') return &kSafetensors;
  std::string_view text = head;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  for (const std::string_view word : {"<!doctype html"sv, "<html"sv, "<head"sv, "<body"sv, "<script"sv})
    if (begins_like(text, word)) return &kHtml;
  if (text.starts_with("<!--")) return &kHtml;
  if (begins_like(text, "<?xml")) return text.find("<html") != text.npos ? &kHtml : &kXml;
  if (text.starts_with("{") || text.starts_with("[")) return &kJson;
  if (rest && head.find_first_not_of('\0') == head.npos) return &kZeros;
  return nullptr;
}

void require_json_text(std::string_view text, std::string_view name) {
  const FileKind* kind = foreign_kind(text);
  if (kind && kind->is != kJsonText)
    throw Error(fmt::format("'{}' is {}", name, kind->is), std::string(kind->hint));
}

}  // namespace carat
