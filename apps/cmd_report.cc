// carat report DIR: one page of all records of a folder.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>

#include "apps/cli_measure.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "measure/report.h"

namespace carat {
namespace {

struct ReportOptions {
  std::vector<std::string> from;
  std::string html, markdown, tables, title = "Carat: measured";
};

std::vector<Record> records_in(const std::vector<std::string>& given) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const std::string& path : given) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> here;
    for (const auto& e : fs::recursive_directory_iterator(path))
      if (e.path().extension() == ".json" || e.path().extension() == ".jsonl")
        here.push_back(e.path().string());
    std::sort(here.begin(), here.end());
    files.insert(files.end(), here.begin(), here.end());
  }
  std::vector<Record> all;
  for (const std::string& file : files)
    for (Record& r : read_records(file)) {
      if (const std::string fault = unreadable(r); !fault.empty()) {
        log_warn("'{}': a record is damaged: left out ({})", file, fault);
        continue;
      }
      r["file"] = file;
      all.push_back(std::move(r));
    }
  if (all.empty()) throw Error("no records there", "commands that measure write them with --records DIR");
  return all;
}

void write(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
  fmt::print("{}\n", path);
}

void run_report(const ReportOptions& o) {
  const std::vector<Record> all = records_in(o.from);
  Record tables = Record::array();
  if (!o.tables.empty()) tables = Record::parse(read_file(o.tables), nullptr, false);
  if (!tables.is_array()) throw Error(fmt::format("'{}' is no JSON array of tables", o.tables));
  if (!o.markdown.empty()) write(o.markdown, report_markdown(all, o.title, tables));
  if (!o.html.empty()) write(o.html, report_html(all, o.title, tables));
}

}  // namespace

void add_report(CLI::App& app) {
  auto o = std::make_shared<ReportOptions>();
  CLI::App* sub =
      app.add_subcommand("report", "Make an HTML page (and Markdown) of the measurements in a folder");
  sub->add_option("from", o->from, "Folders and files of records")->required();
  sub->add_option("--out", o->html, "The page to write")->default_str("report.html");
  sub->add_option("--markdown", o->markdown, "The same tables as Markdown");
  sub->add_option("--tables", o->tables,
                  "JSON of tables of your own at the end: [{\"title\", \"note\", \"head\", \"rows\"}]");
  sub->add_option("--title", o->title, "Its title")->capture_default_str();
  sub->callback([o] {
    if (o->html.empty()) o->html = "report.html";
    run_report(*o);
  });
}

}  // namespace carat
