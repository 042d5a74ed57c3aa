// A page of records: one HTML file that needs nothing else, and the same tables as Markdown.
#pragma once
#include <string>
#include <vector>

#include "measure/record.h"

namespace carat {

// Empty if a report can be made of this record; else what is wrong with it.
std::string unreadable(const Record& record);

// records in the order in which they are numbered; title for both. tables: further ones of words alone, each
// {"title", "note", "head": [...], "rows": [[...]]}. Error if they are something else.
std::string report_html(const std::vector<Record>& records, const std::string& title,
                        const Record& tables = Record::array());
std::string report_markdown(const std::vector<Record>& records, const std::string& title,
                            const Record& tables = Record::array());

}  // namespace carat
