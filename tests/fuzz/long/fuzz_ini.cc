// Any bytes as a configuration file: read, or one error; no key or section, however deep or long, is more.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "apps/cli.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path =
      std::filesystem::temp_directory_path() / ("fuzz-ini-" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<long>(size));
  std::string words[] = {"carat", "--config", path, "inspect", "/nonexistent/model.gguf"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(),
                  words[3].data(), words[4].data(), nullptr};
  const int err = ::dup(2), null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);  // errors are read by nobody
  ::dup2(null, 2);
  const int code = carat::run_cli(5, argv);
  ::dup2(err, 2);
  ::close(err);
  ::close(null);
  if (code == 0) std::abort();  // there is no such model
  return 0;
}
