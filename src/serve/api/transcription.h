// OpenAI's /v1/audio/transcriptions and /v1/audio/translations
// (platform.openai.com/docs/api-reference/audio): what a model that hears answers when it is asked to write
// down what is said. A sound longer than it hears at once is asked about piece by piece, and each piece's
// times are known.
#pragma once
#include "serve/api/openai.h"

namespace carat {

HttpResponse transcriptions(const ApiContext& api, const HttpRequest& request);
HttpResponse translations(const ApiContext& api, const HttpRequest& request);

// What a transcript is told as: pieces with their times (seconds), in order.
struct SpokenPiece {
  double begin = 0, end = 0;
  std::string text;
};
std::string srt_of(const std::vector<SpokenPiece>& pieces);
std::string vtt_of(const std::vector<SpokenPiece>& pieces);

}  // namespace carat
