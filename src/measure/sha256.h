// SHA-256 (FIPS 180-4): names the file that a record was made with.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace carat {

std::string sha256(std::span<const std::byte> bytes);  // 64 hexadecimal digits
// Of a file: all of it up to 1 GiB; of a longer one its size, first and last 16 MiB and 64 KiB of every 16
// MiB between, and the name begins with "sampled-". Of a directory its config.json and *.safetensors in
// order.
std::string model_hash(const std::string& path);

}  // namespace carat
