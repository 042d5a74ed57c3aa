#include "serve/api/pictures.h"

#include <algorithm>
#include <iterator>

#include "media/data_url.h"
#include "serve/api/readable.h"

namespace carat {
namespace {

constexpr size_t kMostPictures = 16;
constexpr int32_t kTokenBudgets[] = {70, 140, 280, 560, 1120};

[[noreturn]] void bad(const std::string& field, const std::string& what) {
  throw ApiError(400, fmt::format("{}: {}", field, what), field);
}

// The first of the fields that is there: itself, or its "url".
std::string text_in(const Json& part, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!part.contains(name)) continue;
    const Json& j = part[name];
    if (j.is_string()) return j.get<std::string>();
    if (j.is_object() && j.contains("url") && j["url"].is_string()) return j["url"].get<std::string>();
  }
  return {};
}

AskedPicture asked_by(const Json& part, const std::string& field) {
  AskedPicture out;
  out.field = field;
  const Json source = part.value("source", Json());  // Anthropic's
  out.value = source.is_object() ? text_in(source, {"data", "url"})
                                 : text_in(part, {"image_url", "image", "url", "data"});
  if (out.value.empty())
    bad(field, "a picture needs its bytes: \"image_url\": {\"url\": \"data:image/png;base64,...\"}");
  const Json& holder = part.contains("image_url") && part["image_url"].is_object() ? part["image_url"] : part;
  if (holder.contains("detail") && holder["detail"].is_string())
    out.detail = holder["detail"].get<std::string>();
  return out;
}

int32_t budget_of(const Eyes& eyes, const AskedPicture& picture, int32_t asked) {
  const int32_t most = eyes.options().most_rows ? eyes.options().most_rows : std::end(kTokenBudgets)[-1];
  if (picture.detail == "low") return kTokenBudgets[0];
  if (picture.detail == "high" || picture.detail == "original")
    return *std::prev(std::upper_bound(std::begin(kTokenBudgets) + 1, std::end(kTokenBudgets), most));
  if (!picture.detail.empty() && picture.detail != "auto")
    bad(picture.field + ".detail", "must be \"auto\", \"low\" or \"high\"");
  return asked;
}

// What the request says for all of its pictures; 0: nothing.
int32_t asked_budget(const Eyes& eyes, const Json& body) {
  const Fields f(body);
  int64_t asked = f.get_int("image_tokens", 0);
  if (const Json* kwargs = f.find("mm_processor_kwargs"); kwargs && asked == 0) {
    if (!kwargs->is_object()) f.fail("mm_processor_kwargs", "an object");
    asked = Fields(*kwargs, "mm_processor_kwargs.").get_int("max_soft_tokens", 0);
  }
  if (asked == 0) return 0;
  if (std::find(std::begin(kTokenBudgets), std::end(kTokenBudgets), asked) == std::end(kTokenBudgets))
    f.fail("image_tokens", "70, 140, 280, 560 or 1120");
  if (eyes.options().most_rows > 0 && asked > eyes.options().most_rows)
    f.fail(
        "image_tokens",
        fmt::format("at most {}: this model reads a picture in one step; start the server with a larger -b",
                    eyes.options().most_rows));
  return static_cast<int32_t>(asked);
}

// An error about a picture tells which.
template <class F>
auto of_picture(const std::string& field, F&& f) {
  try {
    return f();
  } catch (const ApiError&) {
    throw;
  } catch (const DeviceError&) {
    throw;
  } catch (const Error& e) {
    bad(field, e.hint().empty() ? std::string(e.what()) : fmt::format("{} ({})", e.what(), e.hint()));
  }
}

std::vector<uint8_t> file_of(const Eyes& eyes, const AskedPicture& picture) {
  const bool address = picture.value.starts_with("http://") || picture.value.starts_with("https://");
  if (!address) return file_of_request(picture.value);
  if (!eyes.options().load)
    bad(picture.field,
        "pictures are not loaded from elsewhere: send the bytes as data:image/png;base64,... (the server's "
        "--media-hosts HOST permits a host)");
  return eyes.options().load(picture.value);
}

}  // namespace

std::vector<AskedPicture> take_pictures(Json& messages) {
  std::vector<AskedPicture> out;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object() || !messages[i].contains("content") || !messages[i]["content"].is_array())
      continue;
    Json& content = messages[i]["content"];
    for (size_t k = 0; k < content.size(); ++k) {
      if (!is_picture(content[k])) continue;
      out.push_back(asked_by(content[k], fmt::format("messages[{}].content[{}]", i, k)));
      content[k] = {{"type", "image"}};
    }
  }
  if (out.size() > kMostPictures)
    bad("messages", fmt::format("{} pictures, but a request may have {}", out.size(), kMostPictures));
  return out;
}

void words_for_pictures(Json& messages, std::string_view why) {
  size_t newest = messages.size();  // behind the last answer
  while (newest > 0 && messages[newest - 1].is_object() &&
         messages[newest - 1].value("role", Json()) != "assistant")
    --newest;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& m = messages[i];
    if (!m.is_object() || !m.contains("content") || !m["content"].is_array()) continue;
    for (Json& part : m["content"]) {
      if (!is_picture(part)) continue;
      if (i >= newest && m.value("role", Json()) != "tool")
        bad(fmt::format("messages[{}].content", i), std::string(why));
      part = {{"type", "text"}, {"text", readable(part)}};
    }
  }
}

void hide_mark(Json& j, std::string_view mark, const std::string& instead) {
  if (j.is_string()) {
    std::string& text = j.get_ref<std::string&>();
    for (size_t at = 0; (at = text.find(mark, at)) != text.npos; at += instead.size())
      text.replace(at, mark.size(), instead);
  } else if (j.is_structured()) {
    for (Json& inner : j) hide_mark(inner, mark, instead);
  }
}

std::vector<PromptPicture> read_pictures(const Eyes& eyes, const Json& body,
                                         std::vector<AskedPicture> asked) {
  std::vector<PromptPicture> out;
  const int32_t all = asked_budget(eyes, body);
  for (AskedPicture& a : asked) {
    out.push_back(
        {of_picture(a.field, [&] { return file_of(eyes, a); }), budget_of(eyes, a, all), std::move(a.field)});
  }
  return out;
}

PlacedText place_marks(const std::string& rendered, std::string_view mark, const std::string& hidden) {
  PlacedText out;
  for (size_t at = 0; at < rendered.size();) {
    const size_t place = rendered.find(mark, at);
    const size_t text = hidden.empty() ? rendered.npos : rendered.find(hidden, at);
    const size_t next = std::min(place, text);
    out.text += rendered.substr(at, next - at);
    if (next == rendered.npos) break;
    (place < text ? out.places : out.spelled).push_back(out.text.size());
    out.text += mark;
    at = next + (place < text ? mark.size() : hidden.size());
  }
  return out;
}

int64_t PromptTokens::image_tokens() const {
  int64_t n = 0;
  for (const SoftRows& s : soft) n += s.rows;
  return n;
}

PromptTokens encode_placed(const ServedModel& model, const PlacedText& placed,
                           const std::vector<PromptPicture>& pictures) {
  PromptTokens out;
  if (placed.places.empty() && placed.spelled.empty()) {
    out.tokens = encode_prompt(model.tokenizer, placed.text);
    return out;
  }
  const Eyes::Marks& marks = model.eyes->marks();
  const auto add = [&](const std::vector<Token>& more) {
    out.tokens.insert(out.tokens.end(), more.begin(), more.end());
  };
  const auto add_one = [&](Token t) {
    if (t >= 0) out.tokens.push_back(t);
  };
  size_t at = 0, place = 0, spelled = 0;
  const auto add_text = [&](size_t until) {
    const std::string text = placed.text.substr(at, until - at);
    add(at == 0 ? encode_prompt(model.tokenizer, text) : model.tokenizer.encode(text, true));
  };
  while (place < placed.places.size() || spelled < placed.spelled.size()) {
    const bool is_place = spelled == placed.spelled.size() ||
                          (place < placed.places.size() && placed.places[place] < placed.spelled[spelled]);
    const size_t next = is_place ? placed.places[place] : placed.spelled[spelled++];
    add_text(next);
    at = next + marks.mark.size();
    if (!is_place) {  // in two parts, which no vocabulary takes for its token
      add(model.tokenizer.encode(marks.mark.substr(0, 1), false));
      add(model.tokenizer.encode(marks.mark.substr(1), false));
      continue;
    }
    const PromptPicture& p = pictures[place++];
    SoftRows rows;
    rows.rows = of_picture(p.field, [&] { return model.eyes->rows(p.file, p.budget); });
    add_one(marks.open);
    rows.begin = static_cast<int32_t>(out.tokens.size());
    out.tokens.insert(out.tokens.end(), static_cast<size_t>(rows.rows), marks.place);
    add_one(marks.close);
    out.soft.push_back(std::move(rows));
  }
  add_text(placed.text.size());
  return out;
}

void see_pictures(Eyes& eyes, const std::vector<PromptPicture>& pictures, std::vector<SoftRows>& soft) {
  for (size_t i = 0; i < soft.size(); ++i) {
    const PromptPicture& p = pictures[i];
    SoftRows seen = of_picture(p.field, [&] { return eyes.see(p.file, p.budget); });
    CARAT_CHECK(seen.rows == soft[i].rows, "{} rows, expected {}", seen.rows, soft[i].rows);
    seen.begin = soft[i].begin;
    soft[i] = std::move(seen);
  }
}

}  // namespace carat
