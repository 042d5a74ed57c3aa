// Filters on sequences and mappings, and the tests (x is name).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "text/jinja/context.h"
#include "text/jinja/filters.h"
#include "text/jinja/text.h"

namespace carat::jinja {
namespace {

// The value at a path like "function.name" or "0.x".
Value at_path(Context& c, Value v, const Value& path) {
  if (path.is_integral()) return c.item(v, path);
  if (!path.is_string()) throw Fail{"an attribute must be a name or a number"};
  for (const std::string_view part : split(path.str(), ".", -1)) {
    uint32_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc{} && end == part.data() + part.size();
    v = c.item(v, number ? Value(static_cast<int>(index)) : Value(part));
  }
  return v;
}

Value folded(const Value& v, bool case_sensitive) {
  return v.is_string() && !case_sensitive ? Value(lower(v.str())) : v;
}

void sort_by(Context& c, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first, c.budget) < 0 : compare(a.first, b.first, c.budget) < 0;
  });
}

Value second_of(std::vector<std::pair<Value, Value>>&& keyed) {
  std::vector<Value> out;
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return Value::list(std::move(out));
}

Value join_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("join", a, {"d", "attribute"});
  const std::string glue = b[0] ? to_str(*b[0], c.budget) : "";
  std::string out;
  for (bool first = true; const Value& item : iterate(v, c.budget)) {
    if (!first) out += glue;
    first = false;
    out += to_str(b[1] && !b[1]->is_none() ? at_path(c, item, *b[1]) : item, c.budget);
    if (out.size() > c.budget.max_bytes()) break;
  }
  c.budget.text(out.size());
  return Value(std::move(out));
}

Value list_filter(Context& c, const Value& v, const Args& a) {
  Bound("list", a, {});
  return Value::list(iterate(v, c.budget));
}
Value first_filter(Context& c, const Value& v, const Args& a) {
  Bound("first", a, {});
  const std::vector<Value> items = iterate(v, c.budget);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}
Value last_filter(Context& c, const Value& v, const Args& a) {
  Bound("last", a, {});
  const std::vector<Value> items = iterate(v, c.budget);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}
Value reverse_filter(Context& c, const Value& v, const Args& a) {
  Bound("reverse", a, {});
  std::vector<Value> items = iterate(v, c.budget);
  std::reverse(items.begin(), items.end());
  if (!v.is_string()) return Value::generator(std::move(items));
  std::string out;
  for (const Value& item : items) out += item.str();
  return Value(std::move(out));
}

Value dict_pairs(Context& c, const Value& v, bool lazy) {
  std::vector<Value> out;
  c.budget.step(8 * v.dict().items.size());
  for (const auto& [key, value] : v.dict().items) out.push_back(Value::list({key, value}, true));
  return lazy ? Value::generator(std::move(out)) : Value::list(std::move(out));
}
Value items_filter(Context& c, const Value& v, const Args& a) {
  Bound("items", a, {});
  if (v.is_undefined()) return Value::generator({});
  if (!v.is_dict()) throw Fail{"Can only get item pairs from a mapping."};
  return dict_pairs(c, v, true);
}
Value dictsort_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("dictsort", a, {"case_sensitive", "by", "reverse"});
  const bool by_value = b[1] && b.text(1) == "value";
  if (b[1] && !by_value && b.text(1) != "key") throw Fail{"'dictsort' sorts by key or by value"};
  if (v.is_undefined()) throw Fail{v.why() ? *v.why() : "a value is undefined"};
  if (!v.is_dict()) throw Fail{fmt::format("'{}' object has no attribute 'items'", type_name(v))};
  std::vector<std::pair<Value, Value>> keyed;
  const Value pairs = dict_pairs(c, v, false);
  for (const Value& pair : pairs.items()) {
    keyed.emplace_back(folded(pair.items()[by_value ? 1 : 0], b.flag(0, false)), pair);
  }
  sort_by(c, keyed, b.flag(2, false));
  return second_of(std::move(keyed));
}
Value sort_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("sort", a, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : iterate(v, c.budget)) {
    if (!b[2] || b[2]->is_none()) {
      keyed.emplace_back(folded(item, b.flag(1, false)), item);
      continue;
    }
    if (b[2]->is_integral()) {
      keyed.emplace_back(folded(at_path(c, item, *b[2]), b.flag(1, false)), item);
      continue;
    }
    std::vector<Value> key;  // "a,b": first by a, then by b
    for (const std::string_view path : split(b.text(2), ",", -1))
      key.push_back(folded(at_path(c, item, Value(path)), b.flag(1, false)));
    keyed.emplace_back(Value::list(std::move(key)), item);
  }
  sort_by(c, keyed, b.flag(0, false));
  return second_of(std::move(keyed));
}
Value unique_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("unique", a, {"case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> seen;
  std::vector<Value> out;
  for (const Value& item : iterate(v, c.budget)) {
    c.budget.step(4);
    seen.emplace_back(folded(b[1] && !b[1]->is_none() ? at_path(c, item, *b[1]) : item, b.flag(0, false)),
                      Value(out.size()));
    out.push_back(item);
  }
  std::vector<Value> kept;
  const Value first = Value::dict([&] {
    std::vector<std::pair<Value, Value>> backwards(seen.rbegin(),
                                                   seen.rend());  // the first one of equals stays
    return backwards;
  }());
  for (size_t i = 0; i < out.size(); ++i) {
    if (first.dict().find(seen[i].first)->integer() == Int{i}) kept.push_back(out[i]);
  }
  return Value::generator(std::move(kept));
}
Value extreme(Context& c, const char* name, const Value& v, const Args& a, int wanted) {
  const Bound b(name, a, {"case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(v, c.budget);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& item) {
    return folded(b[1] && !b[1]->is_none() ? at_path(c, item, *b[1]) : item, b.flag(0, false));
  };
  const Value* best = &items[0];
  for (const Value& item : items) {
    if (compare(key(item), key(*best), c.budget) * wanted > 0) best = &item;
  }
  return *best;
}
Value min_filter(Context& c, const Value& v, const Args& a) { return extreme(c, "min", v, a, -1); }
Value max_filter(Context& c, const Value& v, const Args& a) { return extreme(c, "max", v, a, 1); }
Value sum_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("sum", a, {"attribute", "start"});
  Int whole = 0;
  double real = 0;
  bool integral = true;
  const auto add = [&](const Value& x) {
    if (!x.is_number()) throw Fail{fmt::format("'sum' needs numbers, not {}", type_name(x))};
    if (x.is_integral() && __builtin_add_overflow(whole, x.integer(), &whole))
      throw Fail{"an integer is too large"};
    if (!x.is_integral() && integral) real = static_cast<double>(whole);
    integral &= x.is_integral();
    if (!integral) real += x.real();
  };
  if (b[1]) add(*b[1]);
  for (const Value& item : iterate(v, c.budget))
    add(b[0] && !b[0]->is_none() ? at_path(c, item, *b[0]) : item);
  return integral ? Value(whole) : Value(real);
}
Value batch_filter(Context& c, const Value& v, const Args& a) {
  const Bound b("batch", a, {"linecount", "fill_with"}, 1);
  const int64_t size = b.integer(0, 1);
  if (size < 1 || size > 100'000) throw Fail{"'batch' needs a size from 1 to 100000"};
  std::vector<Value> rows, row;
  const std::vector<Value> items = iterate(v, c.budget);
  for (size_t i = 0; i < items.size(); ++i) {
    row.push_back(items[i]);
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(Value::list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    c.budget.step(static_cast<size_t>(size));
    while (b[1] && !b[1]->is_none() && static_cast<int64_t>(row.size()) < size) row.push_back(*b[1]);
    rows.push_back(Value::list(std::move(row)));
  }
  return Value::generator(std::move(rows));
}

Args from(const Args& a, size_t first) {
  return {
      {a.positional.begin() + static_cast<long>(std::min(first, a.positional.size())), a.positional.end()},
      a.named};
}

Value map_filter(Context& c, const Value& v, const Args& a) {
  std::vector<Value> out;
  const std::vector<Value> items = iterate(v, c.budget);
  c.budget.step(4 * items.size());
  if (a.positional.empty()) {
    const Bound b("map", a, {"attribute", "default"}, 1);
    for (const Value& item : items) {
      Value x = at_path(c, item, *b[0]);
      out.push_back(x.is_undefined() && b[1] ? *b[1] : std::move(x));
    }
    return Value::generator(std::move(out));
  }
  const std::string name = a.positional[0].is_string() ? a.positional[0].str() : "";
  const FilterFn filter = find_filter(name);
  if (!filter) throw Fail{fmt::format("the filter '{}' is not supported", name)};
  const Args rest = from(a, 1);
  for (const Value& item : items) out.push_back(filter(c, item, rest));
  return Value::generator(std::move(out));
}

// select, reject, selectattr, rejectattr
Value choose(Context& c, const Value& v, const Args& a, bool wanted, bool by_attribute) {
  const size_t skip = by_attribute ? 1 : 0;
  if (a.positional.size() < skip) throw Fail{"'selectattr' needs an attribute"};
  TestFn test = nullptr;
  if (a.positional.size() > skip) {
    const std::string name = a.positional[skip].is_string() ? a.positional[skip].str() : "";
    test = find_test(name);
    if (!test) throw Fail{fmt::format("the test '{}' is not supported", name)};
  }
  const Args rest = from(a, skip + 1);
  std::vector<Value> out;
  for (const Value& item : iterate(v, c.budget)) {
    const Value x = by_attribute ? at_path(c, item, a.positional[0]) : item;
    c.budget.step(4);
    if ((test ? test(c, x, rest) : truthy(x)) == wanted) out.push_back(item);
  }
  return Value::generator(std::move(out));
}
Value select_filter(Context& c, const Value& v, const Args& a) { return choose(c, v, a, true, false); }
Value reject_filter(Context& c, const Value& v, const Args& a) { return choose(c, v, a, false, false); }
Value selectattr_filter(Context& c, const Value& v, const Args& a) { return choose(c, v, a, true, true); }
Value rejectattr_filter(Context& c, const Value& v, const Args& a) { return choose(c, v, a, false, true); }

// ---- tests

const Value& one(std::string_view name, const Args& a) {
  if (a.positional.size() != 1 || !a.named.empty())
    throw Fail{fmt::format("the test '{}' needs one argument", name)};
  return a.positional[0];
}
Int whole(std::string_view name, const Value& v) {
  if (!v.is_integral()) throw Fail{fmt::format("the test '{}' needs an integer, not {}", name, type_name(v))};
  return v.integer();
}
bool is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_dict() || (v.is_list() && !v.is_generator());
}
bool same(const Value& a, const Value& b, Budget& budget) {
  return a.kind() == b.kind() && equal(a, b, budget);
}

constexpr std::pair<std::string_view, TestFn> kTests[] = {
    {"defined", [](Context&, const Value& v, const Args&) { return !v.is_undefined(); }},
    {"undefined", [](Context&, const Value& v, const Args&) { return v.is_undefined(); }},
    {"none", [](Context&, const Value& v, const Args&) { return v.is_none(); }},
    {"string", [](Context&, const Value& v, const Args&) { return v.is_string(); }},
    {"mapping", [](Context&, const Value& v, const Args&) { return v.is_dict(); }},
    {"sequence", [](Context&, const Value& v, const Args&) { return is_sequence(v); }},
    {"iterable", [](Context&, const Value& v, const Args&) { return is_sequence(v) || v.is_list(); }},
    {"number", [](Context&, const Value& v, const Args&) { return v.is_number(); }},
    {"integer", [](Context&, const Value& v, const Args&) { return v.is(Value::Kind::integer); }},
    {"float", [](Context&, const Value& v, const Args&) { return v.is(Value::Kind::real); }},
    {"boolean", [](Context&, const Value& v, const Args&) { return v.is(Value::Kind::boolean); }},
    {"true", [](Context&, const Value& v, const Args&) { return v.is(Value::Kind::boolean) && v.boolean(); }},
    {"false",
     [](Context&, const Value& v, const Args&) { return v.is(Value::Kind::boolean) && !v.boolean(); }},
    {"callable",
     [](Context&, const Value& v, const Args&) {
       return v.is_undefined() || (v.is(Value::Kind::object) && v.object()->kind != Object::Kind::name_space);
     }},
    {"escaped", [](Context&, const Value& v, const Args&) { return v.markup(); }},
    {"filter", [](Context&, const Value& v, const Args&) { return v.is_string() && find_filter(v.str()); }},
    {"test", [](Context&, const Value& v, const Args&) { return v.is_string() && find_test(v.str()); }},
    {"lower",
     [](Context& c, const Value& v, const Args&) {
       return truthy(string_method(c, Value(to_str(v, c.budget)), "islower", {}));
     }},
    {"upper",
     [](Context& c, const Value& v, const Args&) {
       return truthy(string_method(c, Value(to_str(v, c.budget)), "isupper", {}));
     }},
    {"odd", [](Context&, const Value& v, const Args&) { return whole("odd", v) % 2 != 0; }},
    {"even", [](Context&, const Value& v, const Args&) { return whole("even", v) % 2 == 0; }},
    {"divisibleby",
     [](Context&, const Value& v, const Args& a) {
       const Int by = whole("divisibleby", one("divisibleby", a));
       if (by == 0) throw Fail{"division by zero"};
       return by == -1 || whole("divisibleby", v) % by == 0;
     }},
    {"in", [](Context& c, const Value& v, const Args& a) { return contains(one("in", a), v, c.budget); }},
    {"sameas", [](Context& c, const Value& v, const Args& a) { return same(v, one("sameas", a), c.budget); }},
    {"eq", [](Context& c, const Value& v, const Args& a) { return equal(v, one("eq", a), c.budget); }},
    {"ne", [](Context& c, const Value& v, const Args& a) { return !equal(v, one("ne", a), c.budget); }},
    {"lt", [](Context& c, const Value& v, const Args& a) { return compare(v, one("lt", a), c.budget) < 0; }},
    {"le", [](Context& c, const Value& v, const Args& a) { return compare(v, one("le", a), c.budget) <= 0; }},
    {"gt", [](Context& c, const Value& v, const Args& a) { return compare(v, one("gt", a), c.budget) > 0; }},
    {"ge", [](Context& c, const Value& v, const Args& a) { return compare(v, one("ge", a), c.budget) >= 0; }},
};

constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"==", "eq"}, {"equalto", "eq"}, {"!=", "ne"}, {"<", "lt"},           {"lessthan", "lt"},
    {"<=", "le"}, {">", "gt"},       {">=", "ge"}, {"greaterthan", "gt"},
};

constexpr std::pair<std::string_view, FilterFn> kListFilters[] = {
    {"batch", batch_filter},     {"dictsort", dictsort_filter}, {"first", first_filter},
    {"items", items_filter},     {"join", join_filter},         {"last", last_filter},
    {"list", list_filter},       {"map", map_filter},           {"max", max_filter},
    {"min", min_filter},         {"reject", reject_filter},     {"rejectattr", rejectattr_filter},
    {"reverse", reverse_filter}, {"select", select_filter},     {"selectattr", selectattr_filter},
    {"sort", sort_filter},       {"sum", sum_filter},           {"unique", unique_filter},
};

}  // namespace

FilterFn find_list_filter(std::string_view name) {
  for (const auto& [key, f] : kListFilters) {
    if (key == name) return f;
  }
  return nullptr;
}

TestFn find_test(std::string_view name) {
  for (const auto& [alias, target] : kAliases) {
    if (alias == name) name = target;
  }
  for (const auto& [key, f] : kTests) {
    if (key == name) return f;
  }
  return nullptr;
}

}  // namespace carat::jinja
