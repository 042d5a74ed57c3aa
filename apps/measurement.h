// What every command that measures does around its work: looks whether the machine is quiet, meters energy,
// and hands over records (measure/record.h) as JSON, CSV or files.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "apps/open.h"
#include "measure/energy.h"
#include "measure/load.h"
#include "measure/record.h"

namespace carat {

struct MeasureFlags {
  bool json = false, csv = false, require_idle = false;
  double wait_minutes = 0;
  std::string folder;  // where records are kept, too
};
// --json, --csv, --records, --require-idle, --wait-idle
void add_measure_flags(CLI::App& app, MeasureFlags& flags);

class Measurement {
 public:
  // Error if the machine is busy and may not be; waits for it if it may be waited for.
  Measurement(const MeasureFlags& flags, std::string kind);
  void opened(const Opened& opened);  // what its records say of model and device
  bool prints_table() const { return !flags_.json && !flags_.csv; }
  EnergyMeter& energy() { return energy_; }
  bool has_energy() const { return has_energy_; }

  // A record without settings and figures; keep it with add().
  Record begin(const std::string& config) const;
  void add(Record record);
  // Looks at the machine once more, then prints and keeps the records.
  void finish();
  // In finish(): what was busy meanwhile; empty: nothing.
  const std::vector<std::string>& busy() const { return busy_; }

 private:
  void look(bool before);
  MeasureFlags flags_;
  std::string kind_;
  std::shared_ptr<Nvml> nvml_;
  LoadWatch watch_;
  EnergyMeter energy_;
  bool has_energy_ = false;
  Record machine_, model_, state_;
  std::vector<std::string> busy_;
  std::vector<Record> records_;
};

// "--sweep name=a,b,c": the values of a flag to go through.
struct Sweep {
  std::string name;
  std::vector<std::string> values;
};
Sweep parse_sweep(const std::string& text);

// Error if a flag was given on the command line that does nothing in what it runs, as "bench without --spec".
void refuse_without_effect(const CLI::App& app, const std::vector<std::string>& flags,
                           const std::string& where);

// KV types of the global layers, for settings: kv_k and kv_v, and kv for all of them where they differ.
void put_cache(Record& settings, const KvFormats& formats);

}  // namespace carat
