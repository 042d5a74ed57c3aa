#include "text/chat.h"
#include "apps/cli.h"
namespace carat {
std::unique_ptr<ChatFormat> make_chat_format(std::string_view, std::string_view) { return nullptr; }
void add_serve(CLI::App&) {}
}
