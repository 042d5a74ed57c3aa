#include "serve/api/placed.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "media/data_url.h"

namespace carat {
namespace {

constexpr int32_t kTokenBudgets[] = {70, 140, 280, 560, 1120};

int32_t budget_of(const Eyes& eyes, const AskedMedium& picture, int32_t asked) {
  const int32_t most = eyes.options().most_rows ? eyes.options().most_rows : std::end(kTokenBudgets)[-1];
  if (picture.detail == "low") return kTokenBudgets[0];
  if (picture.detail == "high" || picture.detail == "original")
    return *std::prev(std::upper_bound(std::begin(kTokenBudgets) + 1, std::end(kTokenBudgets), most));
  if (!picture.detail.empty() && picture.detail != "auto")
    refuse_medium(picture.field + ".detail", "must be \"auto\", \"low\" or \"high\"");
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

// An error about a picture or a sound tells which.
template <class F>
auto of_medium(const std::string& field, F&& f) {
  try {
    return f();
  } catch (const ApiError&) {
    throw;
  } catch (const DeviceError&) {
    throw;
  } catch (const Error& e) {
    refuse_medium(field,
                  e.hint().empty() ? std::string(e.what()) : fmt::format("{} ({})", e.what(), e.hint()));
  }
}

using Load = std::function<std::vector<uint8_t>(const std::string& url)>;

std::vector<uint8_t> file_of(const Load& load, const AskedMedium& asked, const std::string& value) {
  const bool address = value.starts_with("http://") || value.starts_with("https://");
  if (!address) return file_of_request(value);
  const bool picture = asked.kind != Medium::sound;
  if (!load)
    refuse_medium(
        asked.field,
        fmt::format("{} are not loaded from elsewhere: send the bytes as {};base64,... (the server's "
                    "--media-hosts HOST permits a host)",
                    picture ? "pictures" : "sounds", picture ? "data:image/png" : "data:audio/wav"));
  return load(value);
}

int32_t rows_of(const ServedModel& model, const PromptMedium& m, const std::vector<uint8_t>& file) {
  return of_medium(m.field, [&] { return model.eyes->rows(file, m.budget); });
}

class PlacedTokens {
 public:
  explicit PlacedTokens(const ServedModel& model) : model_(model) {}

  void text(const std::string& text) { text_ += text; }
  // In two parts, which no vocabulary takes for its token.
  void spelled(std::string_view mark) {
    end_text();
    add(model_.tokenizer.encode(mark.substr(0, 1), false));
    add(model_.tokenizer.encode(mark.substr(1), false));
  }
  void place(const PromptMedium& m) {
    if (m.kind == Medium::sound)
      for (const int32_t n : m.sound->rows) rows(model_.ears->marks(), n);
    else if (m.kind == Medium::picture)
      rows(model_.eyes->marks(), rows_of(model_, m, m.file));
    else
      frames(m);
  }
  PromptTokens take() {
    end_text();
    return std::move(out_);
  }

 private:
  void frames(const PromptMedium& m) {
    const bool clock = model_.eyes->shape().frames.clock;
    for (const PromptMedium::Frame& f : m.frames) {
      if (clock && &f != m.frames.data()) text(" ");
      text(time_text(clock ? FrameTime::clock : FrameTime::seconds, f.seconds));
      rows(model_.eyes->frame_marks(), rows_of(model_, m, f.file)).filmed = true;
    }
  }
  SoftRows& rows(const SoftMarks& marks, int32_t n) {
    end_text();
    add_one(marks.open);
    SoftRows& rows = out_.soft.emplace_back();
    rows.begin = static_cast<int32_t>(out_.tokens.size());
    rows.rows = n;
    out_.tokens.insert(out_.tokens.end(), static_cast<size_t>(n), marks.place);
    add_one(marks.close);
    return rows;
  }
  // What stands between two places becomes tokens at once.
  void end_text() {
    const std::string text = std::exchange(text_, {});
    add(out_.tokens.empty() ? encode_prompt(model_.tokenizer, text) : model_.tokenizer.encode(text, true));
  }
  void add(const std::vector<Token>& more) {
    out_.tokens.insert(out_.tokens.end(), more.begin(), more.end());
  }
  void add_one(Token t) {
    if (t >= 0) out_.tokens.push_back(t);
  }
  const ServedModel& model_;
  std::string text_;
  PromptTokens out_;
};

}  // namespace

std::vector<PromptMedium> read_media(const ServedModel& model, const Json& body,
                                     std::vector<AskedMedium> asked) {
  std::vector<PromptMedium> out;
  const int32_t all = model.eyes ? asked_budget(*model.eyes, body) : 0;
  double seconds = 0;
  for (AskedMedium& a : asked) {
    PromptMedium m{a.kind, a.field};
    if (a.kind == Medium::picture) {
      m.file = of_medium(a.field, [&] { return file_of(model.eyes->options().load, a, a.value); });
      m.budget = budget_of(*model.eyes, a, all);
    } else if (a.kind == Medium::video) {
      for (AskedFrame& f : a.frames) {
        const std::string value = std::exchange(f.value, {});
        m.frames.push_back(
            {of_medium(a.field, [&] { return file_of(model.eyes->options().load, a, value); }), f.seconds});
      }
      m.budget = budget_of(*model.eyes, a, all ? all : kTokenBudgets[0]);
    } else {
      m.sound = of_medium(a.field, [&] {
        return std::make_shared<const Listened>(
            model.ears->listen(file_of(model.ears->options().load, a, a.value)));
      });
      seconds += m.sound->seconds;
      if (const double most = model.ears->options().seconds; seconds > most + 1)
        refuse_medium(a.field,
                      fmt::format("the sounds of a request last {:.0f} s up to here, and {} s together are "
                                  "allowed (--audio-max-seconds)",
                                  seconds, most));
    }
    a.value = {};
    out.push_back(std::move(m));
  }
  return out;
}

std::vector<Medium> PlacedText::places() const {
  std::vector<Medium> out;
  for (const Spot& s : spots)
    if (s.place) out.push_back(s.kind);
  return out;
}

PlacedText find_places(const std::string& rendered, const std::vector<PlaceMark>& marks) {
  struct Sought {
    const PlaceMark* of;
    std::string_view text;
    size_t next;
  };
  std::vector<Sought> sought;
  for (const PlaceMark& m : marks)
    for (const std::string_view text : {m.mark, std::string_view(m.hidden)})
      if (!text.empty()) sought.push_back({&m, text, rendered.find(text)});
  PlacedText out;
  for (size_t at = 0; at < rendered.size();) {
    const Sought* first = nullptr;
    for (Sought& s : sought) {
      if (s.next < at) s.next = rendered.find(s.text, at);
      if (s.next != rendered.npos && (!first || s.next < first->next)) first = &s;
    }
    out.text.append(rendered, at, first ? first->next - at : rendered.npos);
    if (!first) break;
    out.spots.push_back({out.text.size(), first->of->mark, first->of->kind, first->text == first->of->mark});
    out.text += first->of->mark;
    at = first->next + first->text.size();
  }
  return out;
}

PromptTokens encode_placed(const ServedModel& model, const PlacedText& placed,
                           const std::vector<PromptMedium>& media) {
  PlacedTokens out(model);
  size_t at = 0, place = 0;
  for (const PlacedText::Spot& s : placed.spots) {
    out.text(placed.text.substr(at, s.at - at));
    at = s.at + s.mark.size();
    if (s.place)
      out.place(media[place++]);
    else
      out.spelled(s.mark);
  }
  out.text(placed.text.substr(at));
  return out.take();
}

void perceive(const ServedModel& model, const std::vector<PromptMedium>& media, std::vector<SoftRows>& soft) {
  size_t next = 0;
  for (const PromptMedium& m : media) {
    const std::vector<SoftRows> all = of_medium(m.field, [&] {
      if (m.kind == Medium::sound) return model.ears->hear(*m.sound);
      if (m.kind == Medium::picture) return std::vector<SoftRows>{model.eyes->see(m.file, m.budget)};
      std::vector<SoftRows> frames;
      for (const PromptMedium::Frame& f : m.frames) frames.push_back(model.eyes->see(f.file, m.budget));
      return frames;
    });
    for (SoftRows rows : all) {
      SoftRows& place = soft[next++];
      CARAT_CHECK(rows.rows == place.rows, "{} rows, expected {}", rows.rows, place.rows);
      rows.begin = place.begin, rows.filmed = place.filmed;
      place = std::move(rows);
    }
  }
}

}  // namespace carat
