// A page of records: one HTML file that needs nothing else, and the same tables as Markdown.
#pragma once
#include <string>
#include <vector>

#include "measure/record.h"

namespace carat {

// records in the order in which they are numbered; title for both.
std::string report_html(const std::vector<Record>& records, const std::string& title);
std::string report_markdown(const std::vector<Record>& records, const std::string& title);

}  // namespace carat
