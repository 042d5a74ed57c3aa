// The prefix cache's tier on disk: a directory of saved sequences (state/snapshot.h), one a conversation. It
// outlives the process; what is damaged or belongs to another model is no part of it, nor are files of other
// names. Processes of one machine may share it: each finds what the others have saved. One thread.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace carat {

class PrefixStore {
 public:
  // Makes the directory if it is not there, and removes what a killed process left half written. model: as in
  // snapshots. Error if the directory cannot be used.
  PrefixStore(std::string directory, std::string model, int64_t most_bytes);

  // The file that shares the longest start with the tokens, if that is longer than `known`; "": none.
  std::string find(std::span<const Token> tokens, int32_t known);
  // Where these tokens are to be saved.
  std::string path_of(std::span<const Token> tokens) const;
  // They have been saved there: files that hold only a beginning of them go, and the oldest if there is too
  // much.
  void saved(std::span<const Token> tokens);
  // No file holds them, or a beginning of them.
  void forget(std::span<const Token> tokens);
  // It cannot be used; remove: nor will it ever.
  void discard(const std::string& path, bool remove);
  size_t files() const { return files_.size(); }

 private:
  struct File {
    std::string path;
    std::vector<Token> tokens;
    int32_t from = 0;  // the first position where a sequence can go on
    int64_t bytes = 0;
    std::filesystem::file_time_type time;
  };
  void refresh();
  void take(const std::string& path, std::filesystem::file_time_type time);
  void remove(size_t i);
  void shrink();

  const std::string directory_, model_;
  const int64_t most_bytes_;
  std::vector<File> files_;                 // oldest first
  std::vector<std::string> not_ours_;       // other models' files, so that each is read once
  std::filesystem::file_time_type seen_{};  // the directory's, when it was last read
};

}  // namespace carat
