#include "serve/api/refusals.h"

#include <algorithm>

namespace carat {
namespace {

bool asks(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  if (value.is_number()) return value.get<double>() >= 0;
  return !value.empty();
}

struct Refused {
  const char* name;
  const char* instead;
  bool (*wish)(const Json& value) = asks;
};
constexpr Refused kRefused[] = {
    // OpenAI
    {"suffix", "a completion goes on at the end of the prompt; use /infill where the model can fill in"},
    {"audio", "this server answers with text"},
    {"web_search_options", "this server searches nothing; declare a tool that does"},
    // vLLM
    {"prompt_logprobs", "use `echo` and `logprobs` of /v1/completions",
     [](const Json& j) { return j != false; }},
    {"logprob_token_ids", "use `top_logprobs`, or `logprobs` of /v1/completions"},
    {"use_beam_search", "leave it out, and use `n` with a temperature"},
    {"length_penalty", "leave it out: no beams are searched", [](const Json& j) { return j != 1; }},
    {"logits_processors", "use `logit_bias`, `bad_words` or `allowed_token_ids`"},
    {"watermarking", "answers carry no mark"},
    {"repetition_detection", "use `dry_multiplier` or `repetition_penalty`"},
    {"prompt_embeds", "send a text or token ids"},
    {"chat_template",
     "prompts are rendered by the model's own template; `carat serve --chat-template` sets another"},
    {"documents", "put them into a message"},
    {"media_io_kwargs", "`image_tokens` sets what a picture may cost"},
    {"kv_transfer_params", "caches are not handed from server to server"},
    {"ec_transfer_params", "caches are not handed from server to server"},
    {"vllm_xargs", "there are no extensions here"},
    {"return_token_offsets", "use /tokenize with `with_pieces`"},
    {"guided_whitespace_pattern", "`structured_outputs` with `disable_any_whitespace` leaves all of it out"},
    {"previous_input_messages", "send the conversation in `input`"},
    {"previous_response", "send the conversation in `input`"},
    {"enable_response_messages", "`return_token_ids` of /v1/chat/completions shows what was read and said"},
    // llama.cpp
    {"adaptive_target", "use `min_p` or `mirostat`"},
    {"min_keep", "leave it out: filters keep the tokens that they say",
     [](const Json& j) { return j != 0 && j != 1; }},
    {"post_sampling_probs", "log probabilities are those of the model"},
    {"lora", "this server has no adapters"},
    {"grammar_lazy", "use `tools`, or `structured_outputs` with a structural tag"},
    {"grammar_triggers", "use `tools`, or `structured_outputs` with a structural tag"},
    {"preserved_tokens", "/v1/completions shows control tokens with `skip_special_tokens` false"},
    {"reasoning_format", "thoughts come in reasoning_content, and `include_reasoning` false leaves them out",
     [](const Json& j) { return j != "auto" && j != "deepseek"; }},
    {"reasoning_in_content", "thoughts come in reasoning_content"},
    {"thinking_forced_open", "whether a thought is open is read from the prompt"},
    {"parse_tool_calls", "leave out `tools`, and nothing is read as a call",
     [](const Json& j) { return j == false; }},
    {"reasoning_budget_start_tag", "thoughts are marked as the model's family marks them"},
    {"reasoning_budget_end_tag", "thoughts are marked as the model's family marks them"},
    {"chat_format", "answers are read as the model's family writes them",
     [](const Json& j) { return j != 0; }},
    {"chat_parser", "answers are read as the model's family writes them"},
    // Ollama
    {"shift", "an answer ends where the context is full"},
    {"_debug_render_only", "use /apply-template"},
    // Anthropic
    {"mcp_servers", "this server calls no MCP servers; declare their tools"},
    {"container", "this server runs no code"},
};

}  // namespace

void must_be(const std::string& field, const std::string& what) {
  throw ApiError(400, fmt::format("{} must be {}", field, what), field);
}

void refuse_what_is_not_done(const Fields& f) {
  for (const Refused& r : kRefused)
    if (const Json* j = f.find(r.name); j && r.wish(*j))
      throw ApiError(400, fmt::format("{} is not supported: {}", r.name, r.instead), r.name);
  if (const Json* kinds = f.find("modalities"); kinds && *kinds != Json::array({"text"}))
    throw ApiError(400, "modalities must be [\"text\"]: this server answers with text", "modalities");
  const int64_t n = f.get_int("n", 1);
  if (const int64_t best = f.get_int("best_of", n, 1); best > n)
    throw ApiError(400, fmt::format("best_of is {}, but n is {}: answers are not ranked; use `n`", best, n),
                   "best_of");
}

void refuse_special_tokens(const Fields& f) {
  if (f.get_bool("skip_special_tokens", true)) return;
  throw ApiError(
      400,
      "skip_special_tokens: control tokens of a conversation are read as thoughts, calls and ends; "
      "`return_token_ids` tells them, and /v1/completions shows them",
      "skip_special_tokens");
}

}  // namespace carat
