// Between a file's tokenizer, in GGUF keys or Hugging Face's json files, and TokenizerData.
#pragma once
#include "model/files/source.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {

bool has_tokenizer(const WeightSource& source);
// From tokenizer.ggml.* and tokenizer.chat_template, or from tokenizer.json and its companions in a
// directory. Error if there is none or it is inconsistent.
TokenizerData tokenizer_from_source(const WeightSource& source);
void tokenizer_to_metadata(const TokenizerData& data, Metadata& meta);
// As many tokens as the table has rows: rows without one get "[PADn]", of type unused. Other readers refuse a
// file that has fewer.
void fit_vocabulary(Metadata& meta, int64_t rows);

}  // namespace carat
