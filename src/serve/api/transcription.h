// OpenAI's /v1/audio/transcriptions and /v1/audio/translations
// (platform.openai.com/docs/api-reference/audio): what a model that hears answers when it is asked to write
// down what is said. A sound longer than it hears at once is asked about piece by piece, and each piece's
// times are known.
#pragma once
#include <string>
#include <vector>

#include "serve/api/openai.h"
#include "serve/api/placed.h"

namespace carat {

HttpResponse transcriptions(const ApiContext& api, const HttpRequest& request);
HttpResponse translations(const ApiContext& api, const HttpRequest& request);

// Pieces with their times (seconds), in order: what a transcript is told as.
struct SpokenPiece {
  double begin = 0, end = 0;
  std::string text;
};
std::string srt_of(const std::vector<SpokenPiece>& pieces);
std::string vtt_of(const std::vector<SpokenPiece>& pieces);

struct TranscriptAsked {
  bool translate = false;
  std::string format, context;
  std::string spoken, written;  // languages; empty: that of the speech
  GenerateOptions options;
  std::vector<SpokenPiece> pieces;   // without texts
  std::vector<PromptMedium> sounds;  // one for each
  double seconds = 0;

  std::string question() const;
  std::string told_language() const;  // in the answer
};
// ApiError 400 (413: the file is too large) naming the field.
TranscriptAsked read_transcript(const ApiContext& api, const HttpRequest& request, bool translate);

}  // namespace carat
