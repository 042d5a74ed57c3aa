// A mapped file (base/file.h) read past its mapping.
#pragma once
#include <cstddef>

namespace carat {

// What the file holds where [p, p + n) is mapped, to `to`: by reading, so that the mapping's pages are not
// touched. drop: what was read leaves the OS's cache, too. false: not all of it is a MappedFile's, or the
// file gives less.
bool read_mapped(void* to, const void* p, size_t n, bool drop);

}  // namespace carat
