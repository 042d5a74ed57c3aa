// carat eval needle: facts hidden at depth, asked for afterwards. Four tasks after RULER (Hsieh et al., arXiv
// 2404.06654), in words that a small model knows; an answer counts if it contains what was asked for.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <array>
#include <cstdio>

#include "apps/cli.h"
#include "apps/eval.h"
#include "base/file.h"

namespace carat {
namespace {

struct NeedleOptions : EvalOptions {
  std::vector<int32_t> lengths{1024, 4096};
  std::vector<std::string> tasks{"single", "multikey", "tracking", "counting"}, caches;
  int32_t samples = 8;
  uint64_t seed = 1;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint32_t operator()(uint32_t n) {  // SplitMix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return static_cast<uint32_t>((z ^ z >> 31) % n);
  }

 private:
  uint64_t state_;
};

constexpr std::array kNames = {"Nora",  "Paul", "Anna",  "Peter", "Clara",
                               "David", "Emma", "Frank", "Maria", "Oscar"};
constexpr std::array kPlaces = {"Prague", "Lisbon", "Paris",  "Rome",   "Madrid",
                                "London", "Berlin", "Vienna", "Athens", "Dublin"};
constexpr std::array kFiller = {
    "The morning was cold and the street was quiet.",
    "A man with a grey hat walked slowly along the river.",
    "The baker opened his shop and put the bread in the window.",
    "Nobody knew why the old clock had stopped.",
    "The children ran across the field and laughed.",
    "In the evening the wind came from the sea.",
    "She closed the book and looked out of the window.",
    "The train was late, as it often was in winter.",
    "There was a small garden behind the house.",
    "He drank his tea and said nothing for a long time.",
    "The road went up the hill and down again to the village.",
    "A dog barked somewhere in the dark.",
};

struct Question {
  std::vector<std::string> facts;  // hidden in this order
  std::string ask, answer;
};

template <class List>
std::string any(const List& list, Dice& dice) {
  return list[dice(static_cast<uint32_t>(list.size()))];
}

Question make(const std::string& task, Dice& dice) {
  if (task == "single") {
    const std::string code = fmt::format("{}", 1000 + dice(9000));
    return {{fmt::format("The secret number is {}.", code)}, "What is the secret number?", code};
  }
  const uint32_t first = dice(kNames.size()), home = dice(kPlaces.size());
  const auto name = [&](uint32_t i) { return kNames[(first + i) % kNames.size()]; };
  const auto place = [&](uint32_t i) { return kPlaces[(home + i) % kPlaces.size()]; };
  if (task == "multikey") {
    Question q;
    for (uint32_t i = 0; i < 4; ++i)
      q.facts.push_back(fmt::format("{} keeps the key in {}.", name(i), place(i)));
    const uint32_t asked = dice(4);
    q.ask = fmt::format("Where does {} keep the key?", name(asked));
    q.answer = place(asked);
    return q;
  }
  if (task == "tracking")
    return {{fmt::format("{} lives in {}.", name(0), place(0)),
             fmt::format("{} lives where {} lives.", name(1), name(0)),
             fmt::format("{} lives where {} lives.", name(2), name(1))},
            fmt::format("Where does {} live?", name(2)),
            place(0)};
  if (task == "counting") {
    Question q;
    const uint32_t n = 2 + dice(4);
    for (uint32_t i = 0; i < n; ++i) q.facts.push_back("The bell rang once.");
    q.ask = "How many times did the bell ring? Answer with a number.";
    q.answer = fmt::format("{}", n);
    return q;
  }
  throw Error(fmt::format("unknown task '{}'", task), "known tasks: single multikey tracking counting");
}

// Sentences of the user's text, or of ours in any order.
class Filler {
 public:
  explicit Filler(const std::string& path) {
    if (path.empty()) return;
    const std::string text = read_file(path, size_t{64} << 20);
    for (size_t at = 0; at < text.size();) {
      size_t end = text.find(". ", at);
      end = end == std::string::npos ? text.size() : end + 2;
      if (end - at > 2) sentences_.push_back(text.substr(at, end - at));
      at = end;
    }
  }
  std::string next(Dice& dice) {
    if (sentences_.empty()) return any(kFiller, dice) + " ";
    if (at_ == SIZE_MAX) at_ = dice(static_cast<uint32_t>(sentences_.size()));
    return sentences_[at_++ % sentences_.size()];
  }

 private:
  std::vector<std::string> sentences_;
  size_t at_ = SIZE_MAX;
};

class Asker {
 public:
  Asker(const Opened& opened, const NeedleOptions& o, const KvFormats& formats, int32_t context)
      : opened_(opened), feeder_(opened, o.rows(), formats, context) {}

  // Whether the greedy answer to a prompt of about `length` tokens contains what it should.
  bool ask(const Question& q, int32_t length, Filler& filler, Dice& dice) {
    const Tokenizer& t = *opened_.tokenizer;
    std::vector<std::string> text;
    size_t tokens = 64;  // the frame, the question, the answer
    for (const std::string& f : q.facts) tokens += t.encode(f, false).size() + 1;
    for (; tokens < static_cast<size_t>(length);) {
      text.push_back(filler.next(dice));
      tokens += t.encode(text.back(), false).size();
    }
    std::vector<uint32_t> places;  // facts stand where dice say, in their order
    for (size_t i = 0; i < q.facts.size(); ++i)
      places.push_back(dice(static_cast<uint32_t>(text.size() + 1)));
    std::sort(places.begin(), places.end());
    std::string passage;
    for (size_t i = 0, f = 0; i <= text.size(); ++i) {
      for (; f < places.size() && places[f] == i; ++f) passage += q.facts[f] + " ";
      if (i < text.size()) passage += text[i];
    }
    return answer(fmt::format("Read this text.\n\n{}\n\n{}", passage, q.ask)).find(q.answer) !=
           std::string::npos;
  }

 private:
  std::string answer(const std::string& user) {
    const Tokenizer& t = *opened_.tokenizer;
    ChatInput input;
    input.messages = {{{"role", "user"}, {"content", user}}};
    input.think = false;
    input.bos = opened_.bos;
    input.eos = opened_.eos;
    std::vector<Token> prompt = t.encode(opened_.chat->render(input), true);
    Sequence sequence(feeder_.stepper().pages());
    const auto limit = static_cast<size_t>(feeder_.stepper().limits().context) - 32;
    if (prompt.size() > limit) prompt.resize(limit);
    Token next = 0;
    const auto best = [&](int32_t, std::span<const float> z) {
      next = static_cast<Token>(std::max_element(z.begin(), z.end()) - z.begin());
    };
    feeder_.feed(sequence, prompt, static_cast<int32_t>(prompt.size()) - 1, best);
    std::vector<Token> out;
    while (out.size() < 24 && !t.is_end(next)) {
      out.push_back(next);
      feeder_.feed(sequence, {&out.back(), 1}, 0, best);
    }
    return t.decode(out, false);
  }

  const Opened& opened_;
  Feeder feeder_;
};

void eval_needle(const NeedleOptions& o) {
  Measurement m(o.measure, "needle");
  const Opened opened = open_model(o.open);
  m.opened(opened);
  require_text(opened);
  if (!opened.chat) throw Error("the model has no chat format", "this test asks questions");
  const int32_t longest = *std::max_element(o.lengths.begin(), o.lengths.end());
  check_length(opened, static_cast<size_t>(longest));
  const bool table = m.prints_table();
  if (table) {
    fmt::print("{:16} {:>7}", "cache K/V", "length");
    for (const std::string& task : o.tasks) fmt::print(" {:>9}", task);
    fmt::print("   (right of {})\n", o.samples);
  }
  for (const KvFormats& formats : formats_to_try(o.caches, o, opened, longest + 64)) {
    const std::string name = formats.text();
    for (const int32_t length : o.lengths) {
      Asker asker(opened, o, formats, length + 64);
      Record row = m.begin(fmt::format("needle {} {}", name, length));
      put_cache(row["settings"], formats);
      row["settings"]["ctx"] = length;
      row["figures"]["samples"] = o.samples;
      if (table) fmt::print("{:16} {:>7}", name, length);
      for (const std::string& task : o.tasks) {
        int32_t right = 0;
        for (int32_t i = 0; i < o.samples; ++i) {
          Dice dice(o.seed * 1000003 + static_cast<uint64_t>(i));  // the same questions for every cache
          Filler filler(o.text);
          right += asker.ask(make(task, dice), length, filler, dice);
        }
        row["figures"]["right"][task] = right;
        if (table) fmt::print(" {:>9}", right);
        std::fflush(stdout);
      }
      if (table) fmt::print("\n");
      m.add(std::move(row));
    }
  }
  m.finish();
}

}  // namespace

void add_eval_needle(CLI::App& eval) {
  auto o = std::make_shared<NeedleOptions>();
  CLI::App* app = eval.add_subcommand("needle", "Answers about facts hidden in long prompts (a small RULER)");
  add_eval_common(*app, *o);
  o->chunk = 256;
  app->add_option("-f,--file", o->text, "Text to hide them in (default: plain sentences)");
  app->add_option("--lengths", o->lengths, "Prompt lengths in tokens")
      ->delimiter(',')
      ->check(CLI::Range(128, 1 << 22));
  app->add_option("--tasks", o->tasks, "single, multikey, tracking, counting")->delimiter(',');
  app->add_option("--samples", o->samples, "Questions of each kind")->check(CLI::Range(1, 10000));
  app->add_option("--seed", o->seed, "Seed of the questions");
  add_caches_flag(*app, o->caches, "Go through these caches");
  add_measure_flags(*app, o->measure);
  app->callback([o] { eval_needle(*o); });
}

}  // namespace carat
