#include "serve/api/completion.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "serve/api/logprobs.h"
#include "serve/api/stream.h"
#include "text/tokenizer/fim.h"

namespace carat {
namespace {

constexpr size_t kMaxPrompts = 64;

// What a body asks for beside the common options.
struct Native {
  bool one = true;  // the answer is an object, not an array of them
  bool tokens = false;
  std::vector<std::string> fields;  // of the answer; none: all
  Json settings;
};

const char* stop_type(const Choice& c) {
  if (c.finish == Finish::none) return "none";
  if (c.by_stop_string) return "word";
  return c.finish == Finish::length ? "limit" : "eos";
}

Json settings_of(const ApiContext& api, const GenerateOptions& o, const Json& body) {
  const SampleParams& s = o.sample;
  Json out = {{"n_ctx", api.model.engine.config().context},
              {"model", api.config.names.front()},
              {"n_predict", o.max_tokens},
              {"max_tokens", o.max_tokens},
              {"seed", s.seed},
              {"temperature", s.temperature},
              {"top_k", s.top_k},
              {"top_p", s.top_p},
              {"min_p", s.min_p},
              {"repeat_last_n", s.repeat_last_n},
              {"repeat_penalty", s.repeat_penalty},
              {"presence_penalty", s.presence_penalty},
              {"frequency_penalty", s.frequency_penalty},
              {"top_n_sigma", s.top_n_sigma},
              {"typical_p", s.typical_p},
              {"xtc_probability", s.xtc_probability},
              {"xtc_threshold", s.xtc_threshold},
              {"dynatemp_range", s.dynatemp_range},
              {"dynatemp_exponent", s.dynatemp_exponent},
              {"mirostat", s.mirostat},
              {"mirostat_tau", s.mirostat_tau},
              {"mirostat_eta", s.mirostat_eta},
              {"dry_multiplier", s.dry_multiplier},
              {"dry_base", s.dry_base},
              {"dry_allowed_length", s.dry_allowed_length},
              {"dry_penalty_last_n", s.dry_penalty_last_n},
              {"dry_sequence_breakers", o.wishes.dry_breakers},
              {"min_tokens", o.wishes.min_tokens},
              {"stop", o.stop},
              {"stream", o.stream},
              {"ignore_eos", o.ignore_eos},
              {"n_probs", std::max(0, o.logprobs)},
              {"n_keep", 0},
              {"grammar", ""}};
  Json& bias = out["logit_bias"] = Json::array();
  const auto add_bias = [&](Token t, Json b) { bias.push_back({{"token", t}, {"bias", std::move(b)}}); };
  for (const auto& [token, b] : s.logit_bias) add_bias(token, std::isfinite(b) ? Json(b) : Json());
  if (o.ignore_eos)
    for (const Token t : api.model.tokenizer.data().end_of_generation) add_bias(t, nullptr);
  for (const char* name : {"grammar", "json_schema"})
    if (body.contains(name) && !body[name].is_null()) out[name] = body[name];
  return out;
}

Json with_id(Json j, Token t) {
  Json out = {{"id", t}};
  out.update(j);
  return out;
}

// completion_probabilities from the report `first` on.
Json probabilities(const Job& job, const Choice& c, size_t first) {
  Json out = Json::array();
  for (size_t i = first; i < c.reports.size() && i < c.tokens.size(); ++i) {
    Json token = with_id(token_json(c.reports[i].text, c.reports[i].logprobs.chosen), c.tokens[i]);
    token["top_logprobs"] = Json::array();
    for (const TokenLogprob& t : c.reports[i].logprobs.top)
      token["top_logprobs"].push_back(
          with_id(token_json(job.model().tokenizer.piece(t.token), t.logprob), t.token));
    out.push_back(std::move(token));
  }
  return out;
}

// "a/b" of an object of objects, under that name.
Json only(const Json& whole, const std::vector<std::string>& fields) {
  if (fields.empty()) return whole;
  Json out = Json::object();
  for (const std::string& field : fields) {
    const Json* at = &whole;
    for (size_t begin = 0; at && begin <= field.size();) {
      const size_t end = std::min(field.find('/', begin), field.size());
      const std::string name = field.substr(begin, end - begin);
      at = at->is_object() && at->contains(name) ? &(*at)[name] : nullptr;
      begin = end + 1;
    }
    if (at) out[field] = *at;
  }
  return out;
}

class NativeWriter {
 public:
  NativeWriter(const ApiContext& api, Job& job, Native asked)
      : api_(api), job_(job), asked_(std::move(asked)), told_(job.choices().size()) {}

  Json whole(int i) const {
    const Choice& c = choice(i);
    Json out = ending(i);
    out["content"] = c.content;
    if (asked_.tokens) out["tokens"] = c.tokens;
    if (job_.options().logprobs >= 0) out["completion_probabilities"] = probabilities(job_, c, 0);
    return only(out, asked_.fields);
  }
  std::string deltas(int i) {
    Choice& c = choice(i);
    std::string text;
    for (const ChatDelta& d : std::exchange(c.fresh, {})) text += d.text;
    size_t& told = told_[static_cast<size_t>(i)];
    std::string out;
    if (c.progress_fresh) out += sse(dump_json(progress(i)));
    c.progress_fresh = false;
    if (text.empty()) return out;
    Json piece = common(i);
    piece["content"] = text;
    piece["tokens"] = Json::array();
    for (; told < c.tokens.size(); ++told) piece["tokens"].push_back(c.tokens[told]);
    piece["stop"] = false;
    if (job_.options().logprobs >= 0)
      piece["completion_probabilities"] =
          probabilities(job_, c, std::exchange(c.fresh_reports, c.reports.size()));
    if (job_.options().timings_each) piece["timings"] = job_.timings();
    return out + sse(dump_json(piece));
  }
  std::string last(int i) {
    Choice& c = choice(i);
    Json out = ending(i);
    const size_t told = told_[static_cast<size_t>(i)];
    for (size_t t = told; t < c.tokens.size(); ++t) out["tokens"].push_back(c.tokens[t]);
    if (job_.options().logprobs >= 0 && c.fresh_reports < c.reports.size())
      out["completion_probabilities"] = probabilities(job_, c, c.fresh_reports);
    return sse(dump_json(only(out, asked_.fields)));
  }
  bool one() const { return asked_.one; }

 private:
  Choice& choice(int i) const { return job_.choices()[static_cast<size_t>(i)]; }
  Json common(int i) const {
    const Choice& c = choice(i);
    return {{"index", i},
            {"content", ""},
            {"tokens", Json::array()},
            {"id_slot", c.slot},
            {"stop", false},
            {"tokens_predicted", c.generated},
            {"tokens_evaluated", c.prompt.size()}};
  }
  Json progress(int i) const {
    const Choice& c = choice(i);
    Json out = common(i);
    out["prompt_progress"] = c.prompt_progress();
    return out;
  }
  Json ending(int i) const {
    const Choice& c = choice(i);
    Json out = common(i);
    out["stop"] = true;
    out["model"] = api_.config.names.front();
    out["generation_settings"] = asked_.settings;
    out["prompt"] = api_.model.tokenizer.decode(c.prompt, true);
    out["has_new_line"] = c.content.find('\n') != std::string::npos;
    const auto room = static_cast<size_t>(api_.model.engine.config().context);
    out["truncated"] = c.finish == Finish::length && c.prompt.size() + c.tokens.size() >= room;
    out["stop_type"] = stop_type(c);
    out["stopping_word"] = c.by_stop_string ? c.stop.matched() : "";
    out["tokens_cached"] = c.cached;
    out["timings"] = job_.timings();
    return out;
  }

  const ApiContext& api_;
  Job& job_;
  const Native asked_;
  std::vector<size_t> told_;  // tokens of each choice
};

HttpStream stream(Job& job, NativeWriter& w, const std::function<bool()>& gone, const HttpWrite& write) {
  Pulse pulse(write, kHeartbeat);
  bool failed = false;
  const auto on_change = [&](int i) {
    const Choice& c = job.choices()[static_cast<size_t>(i)];
    std::string out = w.deltas(i);
    if (c.finish == Finish::error || c.finish == Finish::cancelled) {
      failed = true;
      const bool ours = c.finish == Finish::error;
      out += sse(dump_json(ours ? error_object(c.status, why_failed(c), {}, "generation_failed")
                                : error_object(503, kEnding, {}, "ending")));
    } else if (c.finish != Finish::none) {
      out += w.last(i);
    }
    return pulse.write(out) && !failed;
  };
  std::optional<bool> whole;
  while (!(whole = job.step(gone, on_change))) {
    pulse.beat();
    co_await job.more();
  }
  if (!*whole && !failed) write(sse(dump_json(error_object(503, kEnding, {}, "ending"))));
}

HttpResponse answer(std::shared_ptr<Job> job, std::shared_ptr<NativeWriter> writer,
                    const HttpRequest& request) {
  if (job->options().stream) {
    HttpResponse r;
    r.type = "text/event-stream";
    r.stream = [job, writer, gone = request.gone](const HttpWrite& write) {
      return stream(*job, *writer, gone, write);
    };
    return r;
  }
  if (!job->run(request.gone, [](int) { return true; })) return error_response(499, "the client has gone");
  Json out = Json::array();
  for (int i = 0; i < static_cast<int>(job->choices().size()); ++i) {
    const Choice& c = job->choices()[static_cast<size_t>(i)];
    if (c.finish == Finish::error) throw ApiError(c.status, why_failed(c), {}, "generation_failed");
    if (c.finish == Finish::cancelled) throw ApiError(503, kEnding, {}, "ending");
    out.push_back(writer->whole(i));
  }
  return json_response(writer->one() ? out[0] : out);
}

// Wishes that cannot be met are refused; what only concerns how llama.cpp works (n_keep, n_cache_reuse,
// cache_prompt, t_max_prompt_ms) changes no token here.
Native read_native(const Fields& f) {
  Native n;
  n.tokens = f.get_bool("return_tokens", false);
  f.get_bool("cache_prompt", true);
  if (const Json* fields = f.find("response_fields")) {
    if (!fields->is_array()) f.fail("response_fields", "an array of names");
    for (const Json& name : *fields) {
      if (!name.is_string()) f.fail("response_fields", "an array of names");
      n.fields.push_back(name.get<std::string>());
    }
  }
  return n;
}

// {" word": -1} stands for the pair of a text and a bias, where no text is a number.
Json with_bias_pairs(Json body) {
  Json* bias = body.contains("logit_bias") && body["logit_bias"].is_object() ? &body["logit_bias"] : nullptr;
  const auto is_text = [](const std::string& key) {
    return key.find_first_not_of("0123456789") != std::string::npos;
  };
  if (!bias) return body;
  Json pairs = Json::array();
  for (const auto& [key, value] : bias->items()) {
    if (!is_text(key)) return body;
    pairs.push_back({key, value});
  }
  *bias = std::move(pairs);
  return body;
}

GenerateOptions read_native_options(const ApiContext& api, const Json& given, const HttpRequest& request) {
  const Json body = with_bias_pairs(given);
  const Fields f(body);
  GenerateOptions o = read_options(body, api.config, request);
  refuse_thinking_budget(f);
  const int64_t probs = f.get_int("n_probs", 0, 0, kMaxAlternatives);
  if (probs > 0) o.logprobs = static_cast<int32_t>(probs);
  o.grammar = api.constraints.of_text(body);
  return o;
}

HttpResponse complete(const ApiContext& api, const Json& body, GenerateOptions options,
                      const std::vector<std::vector<Token>>& prompts, bool one, const HttpRequest& request) {
  Native asked = read_native(Fields(body));
  asked.one = one && options.n == 1;
  asked.settings = settings_of(api, options, body);
  const auto job = std::make_shared<Job>(api.model, api.metrics, "cmpl-", options, api.config.stuck_seconds);
  for (std::vector<Token> prompt : prompts) {
    truncate_prompt(prompt, options.wishes, api.model.engine.config().context, options.max_tokens,
                    api.model.tokenizer.data().bos);
    check_length(prompt.size(), api.model.engine.config().context, "prompt");
    for (int i = 0; i < options.n; ++i) job->add(prompt).special = options.wishes.special_tokens;
  }
  job->submit(false);
  return answer(job, std::make_shared<NativeWriter>(api, *job, std::move(asked)), request);
}

std::vector<Token> tokens_of(const Tokenizer& tokenizer, const Json& prompt) {
  const auto bad = [](const std::string& why) { throw ApiError(400, "prompt " + why, "prompt"); };
  if (prompt.is_string()) return encode_prompt(tokenizer, prompt.get_ref<const std::string&>());
  if (prompt.is_object()) {
    if (prompt.contains("multimodal_data") && !prompt["multimodal_data"].empty())
      bad("has multimodal_data: this server reads text alone");
    if (!prompt.contains("prompt_string") || !prompt["prompt_string"].is_string())
      bad("must have a prompt_string");
    return encode_prompt(tokenizer, prompt["prompt_string"].get_ref<const std::string&>());
  }
  if (!prompt.is_array()) bad("must be a text, token ids, both mixed, or an array of such");
  std::vector<Token> out;
  for (size_t i = 0; i < prompt.size(); ++i) {
    const Json& part = prompt[i];
    if (part.is_string()) {
      const std::string& text = part.get_ref<const std::string&>();
      const auto more = i == 0 ? encode_prompt(tokenizer, text) : tokenizer.encode(text, true);
      out.insert(out.end(), more.begin(), more.end());
    } else {
      const Token t = read_tokens(Json::array({part}), "prompt").front();
      if (t >= tokenizer.size()) bad(fmt::format(": there is no token {}", t));
      out.push_back(t);
    }
  }
  return out;
}

}  // namespace

std::vector<std::vector<Token>> native_prompts(const Tokenizer& tokenizer, const Json& prompt, bool& one) {
  // An array is one prompt where it has a number, else one prompt a member.
  one = !prompt.is_array() ||
        std::any_of(prompt.begin(), prompt.end(), [](const Json& p) { return p.is_number(); });
  std::vector<std::vector<Token>> out;
  if (one) {
    out.push_back(tokens_of(tokenizer, prompt));
  } else {
    if (prompt.size() > kMaxPrompts) throw ApiError(400, "prompt must be at most 64 prompts", "prompt");
    for (const Json& p : prompt) out.push_back(tokens_of(tokenizer, p));
    if (out.empty()) throw ApiError(400, "prompt must not be empty", "prompt");
  }
  for (std::vector<Token>& p : out)
    if (p.empty()) throw ApiError(400, "prompt must be at least one token long", "prompt");
  return out;
}

HttpResponse native_completion(const ApiContext& api, const HttpRequest& request) {
  const Json body = parse_body(request.body);
  const Json* prompt = Fields(body).find("prompt");
  if (!prompt) Fields(body).fail("prompt", "given");
  bool one = true;
  const auto prompts = native_prompts(api.model.tokenizer, *prompt, one);
  return complete(api, body, read_native_options(api, body, request), prompts, one, request);
}

HttpResponse infill(const ApiContext& api, const HttpRequest& request) {
  Json body = parse_body(request.body);
  const FimTokens fim = fim_tokens(api.model.tokenizer);
  if (!fim)
    throw ApiError(501, "this model was not made to fill gaps: its vocabulary has no tokens for them", {},
                   "not_supported");
  if (body.contains("samplers") && body["samplers"].is_array()) {  // one of llama.cpp's that we do not have
    Json& samplers = body["samplers"];
    samplers.erase(std::remove(samplers.begin(), samplers.end(), Json("infill")), samplers.end());
  }
  const Fields f(body);
  Gap gap;
  for (const char* name : {"input_prefix", "input_suffix"})
    if (!f.find(name)) f.fail(name, "a string");
  gap.before = f.get_string("input_prefix", "");
  gap.after = f.get_string("input_suffix", "");
  gap.begun = f.get_string("prompt", "");
  if (const Json* extra = f.find("input_extra")) {
    if (!extra->is_array()) f.fail("input_extra", "an array of objects with filename and text");
    for (const Json& e : *extra) {
      if (!e.is_object() || !e.contains("text") || !e["text"].is_string())
        f.fail("input_extra", "an array of objects with filename and text");
      gap.others.push_back({Fields(e).get_string("filename", "tmp"), e["text"].get<std::string>()});
    }
  }
  std::vector<Token> prompt = fim_prompt(api.model.tokenizer, fim, gap);
  const TokenizerData& d = api.model.tokenizer.data();
  if (d.add_bos && d.bos >= 0) prompt.insert(prompt.begin(), d.bos);
  GenerateOptions options = read_native_options(api, body, request);
  options.further_ends = fim.ends;
  return complete(api, body, options, {prompt}, true, request);
}

}  // namespace carat
