#include "serve/api/endpoints.h"
#include "serve/api/chat_prompt.h"

#include "serve/api/request.h"

namespace carat {
namespace {

// A text, or bytes where it is none (llama.cpp's form).
Json piece_json(const std::string& piece) {
  Utf8Stream utf8;
  if (utf8.push(piece) + utf8.finish() == piece) return piece;
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

Json props(const ApiContext& api) {
  const EngineConfig& e = api.model.engine.config();
  const SampleParams& s = api.config.sample;
  const Json sampling = {{"seed", api.config.seed},
                         {"temperature", s.temperature},
                         {"top_k", s.top_k},
                         {"top_p", s.top_p},
                         {"min_p", s.min_p},
                         {"repeat_penalty", s.repeat_penalty},
                         {"repeat_last_n", s.repeat_last_n},
                         {"presence_penalty", s.presence_penalty},
                         {"frequency_penalty", s.frequency_penalty},
                         {"max_tokens", api.config.max_tokens}};
  Json drafters = Json::array();
  for (const auto& d : e.drafters) drafters.push_back(d->name());
  return {{"default_generation_settings", {{"n_ctx", e.context}, {"params", sampling}}},
          {"total_slots", e.sequences},
          {"model_path", api.config.model_path},
          {"model_alias", api.config.names.front()},
          {"modalities", {{"vision", api.model.eyes != nullptr}, {"audio", api.model.ears != nullptr}}},
          {"chat_template", api.model.chat_template},
          {"chat_format", api.model.chat ? Json(std::string(api.model.chat->name())) : Json()},
          {"bos_token", api.model.bos},
          {"eos_token", api.model.eos},
          {"kv_cache", {{"k", info(e.cache_k).name}, {"v", info(e.cache_v).name}}},
          {"drafters", std::move(drafters)},
          {"build_info", api.config.build}};
}

Json input_modalities(const ApiContext& api) {
  Json out = Json::array({"text"});
  if (api.model.eyes) out.push_back("image");
  if (api.model.ears) out.push_back("audio");
  return out;
}

// What runs in each; the first of those that asked for the same.
void add_slots(const ApiContext& api, Json& list) {
  const EngineConfig& e = api.model.engine.config();
  const size_t begin = list.size();
  for (int32_t i = 0; i < e.sequences; ++i)
    list.push_back({{"id", i},
                    {"model", api.config.names.front()},
                    {"n_ctx", e.context},
                    {"speculative", !e.drafters.empty()},
                    {"is_processing", false}});
  for (const auto& r : api.metrics.live()) {
    const int32_t id = r->slot;
    if (!r->running || id < 0) continue;
    Json& slot = list[begin + static_cast<size_t>(id)];
    if (slot["is_processing"] == false)
      slot.update({{"is_processing", true},
                   {"request", r->id},
                   {"n_prompt_tokens", r->prompt_tokens},
                   {"n_decoded", r->generated_tokens.load()}});
  }
}

HttpResponse tokenize(const ApiContext& api, const HttpRequest& r) {
  const Json body = parse_body(r.body);
  const Fields f(body);
  const Tokenizer& tokenizer = api.model.tokenizer;
  const char* name = f.find("prompt") ? "prompt" : "content";
  const bool chat = f.find("messages") != nullptr;
  const std::string text = chat ? render_chat(api, body) : f.get_string(name, "");
  if (!chat && !f.find(name)) f.fail("content", "given");
  const bool special = f.get_bool("parse_special", true);
  std::vector<Token> tokens = chat && special && (api.model.eyes || api.model.ears)
                                  ? chat_tokens(api, body)
                                  : tokenizer.encode(text, special);
  const bool add = f.get_bool(f.find("add_special_tokens") ? "add_special_tokens" : "add_special",
                              chat || f.find("prompt"));
  const Token bos = tokenizer.data().bos;
  if (add && bos >= 0 && tokenizer.data().add_bos && (tokens.empty() || tokens.front() != bos))
    tokens.insert(tokens.begin(), bos);
  Json out = {{"tokens", Json::array()},
              {"count", tokens.size()},
              {"max_model_len", api.model.engine.config().context}};
  const bool pieces = f.get_bool("with_pieces", false);
  for (const Token t : tokens) {
    if (pieces)
      out["tokens"].push_back({{"id", t}, {"piece", piece_json(tokenizer.piece(t))}});
    else
      out["tokens"].push_back(t);
  }
  if (f.get_bool("return_token_strs", false))  // vLLM's
    for (const Token t : tokens) out["token_strs"].push_back(piece_json(tokenizer.piece(t)));
  return json_response(out);
}

HttpResponse detokenize(const ApiContext& api, const HttpRequest& r) {
  const Json body = parse_body(r.body);
  const Fields f(body);
  const Json* tokens = f.find("tokens");
  if (!tokens) f.fail("tokens", "given");
  const std::vector<Token> ids = read_tokens(*tokens, "tokens");
  for (const Token t : ids)
    if (t >= api.model.tokenizer.size())
      throw ApiError(400, fmt::format("tokens: there is no token {}", t), "tokens");
  Utf8Stream utf8;
  std::string text = utf8.push(api.model.tokenizer.decode(ids, true));
  text += utf8.finish();
  return json_response({{"content", text}, {"prompt", text}});
}

HttpResponse count_chat_tokens(const ApiContext& api, const HttpRequest& r) {
  return json_response(
      {{"object", "response.input_tokens"}, {"input_tokens", chat_tokens(api, parse_body(r.body)).size()}});
}

HttpResponse apply_template(const ApiContext& api, const HttpRequest& r) {
  return json_response({{"prompt", render_chat(api, parse_body(r.body))}});
}

}  // namespace carat
