#include "measure/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace carat {
namespace {

std::string number(double v) {
  if (v == 0) return "0";
  const double a = std::fabs(v);
  return fmt::format("{:.{}f}", v, a >= 100 ? 0 : a >= 10 ? 1 : a >= 1 ? 2 : 3);
}

// A step of 1, 2 or 5 times a power of ten, so that about `parts` fit.
double step_of(double range, int parts) {
  const double raw = std::max(range, 1e-12) / parts, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0})
    if (raw <= m * power) return m * power;
  return 10 * power;
}

// With as many places as a scale in such steps needs.
std::string tick(double v, double step) {
  const double places = std::ceil(-std::log10(step) - 1e-9);
  return fmt::format("{:.{}f}", v + 0.0, places > 0 ? static_cast<int>(places) : 0);
}

// Six colours: the seventh to twelfth series have them again, hollow and dashed.
std::string css_of(const char* what, int colour) {
  const bool again = colour / 6 % 2 == 1;
  if (*what == 'l') return fmt::format("l{}{}", colour % 6, again ? " d" : "");
  return fmt::format("{}{}", again ? "o" : "f", colour % 6);
}

std::string linked(const std::string& link, const std::string& inner) {
  return link.empty() ? inner : fmt::format("<a href=\"{}\">{}</a>", link, inner);
}

constexpr double kWidth = 720, kHeight = 380, kLeft = 64, kRight = 180, kTop = 30, kBottom = 46;

// Where values lie on paper.
struct Frame {
  Axes axes;
  double x0 = 0, x1 = 1, y0 = 0, y1 = 1;
  double at_x(double x) const {
    const double v = axes.log2_x ? std::log2(std::max(x, 1e-9)) : x;
    return kLeft + (v - x0) / std::max(1e-12, x1 - x0) * (kWidth - kLeft - kRight);
  }
  double at_y(double y) const {
    return kHeight - kBottom - (y - y0) / std::max(1e-12, y1 - y0) * (kHeight - kTop - kBottom);
  }
};

Frame frame_of(const Axes& axes, const std::vector<Series>& series) {
  Frame f;
  f.axes = axes;
  bool first = true;
  for (const Series& s : series)
    for (const Point& p : s.points) {
      const double x = axes.log2_x ? std::log2(std::max(p.x, 1e-9)) : p.x;
      f.x0 = first ? x : std::min(f.x0, x), f.x1 = first ? x : std::max(f.x1, x);
      f.y0 = first ? p.y : std::min(f.y0, p.y), f.y1 = first ? p.y : std::max(f.y1, p.y);
      first = false;
    }
  if (axes.zero_y) f.y0 = std::min(0.0, f.y0);
  if (!axes.log2_x && !first) f.x0 = std::min(f.x0, axes.zero_y ? 0.0 : f.x0);
  if (f.x1 <= f.x0) f.x1 = f.x0 + 1;
  if (f.y1 <= f.y0) f.y1 = f.y0 + 1;
  f.y1 += 0.06 * (f.y1 - f.y0);
  f.x1 += 0.02 * (f.x1 - f.x0);
  return f;
}

std::string open_svg(const std::string& title, double height) {
  return fmt::format(
      "<figure><svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n"
      "<text class=\"t\" x=\"8\" y=\"18\">{}</text>\n",
      kWidth, height, html_escaped(title), html_escaped(title));
}

std::string grid(const Frame& f) {
  std::string s;
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  const double dy = step_of(f.y1 - f.y0, 5);
  for (double y = std::ceil(f.y0 / dy) * dy; y <= f.y1; y += dy)
    s += fmt::format(
        "<line class=\"g\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"a e\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5}</text>\n",
        kLeft, right, f.at_y(y), kLeft - 6, f.at_y(y) + 4, tick(y, dy));
  const double dx = f.axes.log2_x ? 1 : step_of(f.x1 - f.x0, 6);
  for (double x = std::ceil(f.x0 / dx) * dx; x <= f.x1; x += dx) {
    const double value = f.axes.log2_x ? std::exp2(x) : x;
    s += fmt::format("<text class=\"a m\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", f.at_x(value), bottom + 16,
                     f.axes.log2_x ? fmt::format("{:.0f}", value) : tick(value, dx));
  }
  s += fmt::format("<text class=\"a m\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", (kLeft + right) / 2,
                   kHeight - 8, html_escaped(f.axes.x));
  s += fmt::format("<text class=\"a m\" transform=\"translate(14 {:.1f}) rotate(-90)\">{}</text>\n",
                   (kTop + bottom) / 2, html_escaped(f.axes.y));
  return s;
}

std::string dots(const Frame& f, const Series& s) {
  std::string out;
  for (const Point& p : s.points)
    out += linked(p.link,
                  fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}: {}, {}"
                              "</title></circle>",
                              css_of("f", s.colour), f.at_x(p.x), f.at_y(p.y), html_escaped(p.label),
                              number(p.x), number(p.y))) +
           "\n";
  return out;
}

std::string path_of(const Frame& f, const std::vector<Point>& points, const std::string& css) {
  std::string d;
  for (const Point& p : points)
    d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", f.at_x(p.x), f.at_y(p.y));
  return points.size() < 2 ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", css, d);
}

std::string legend(const std::vector<Series>& series) {
  std::string s;
  double y = kTop + 10;
  for (const Series& one : series) {
    s += fmt::format(
        "<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"10\" height=\"10\"/>"
        "<text class=\"a\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n",
        css_of("f", one.colour), kWidth - kRight + 12, y - 9, kWidth - kRight + 28, y,
        html_escaped(one.name.substr(0, 26)));
    y += 18;
  }
  return s;
}

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

std::string bar_chart(const std::string& title, const std::string& unit, const std::vector<Bar>& bars) {
  constexpr double kRow = 20, kLabels = 270, kEnd = 80;
  double most = 1e-12;
  for (const Bar& b : bars) most = std::max(most, b.value);
  std::string s = open_svg(title, kTop + 8 + kRow * static_cast<double>(bars.size()) + 8);
  double y = kTop + 4;
  for (const Bar& b : bars) {
    const double w = std::max(1.0, b.value / most * (kWidth - kLabels - kEnd));
    const std::string label = b.label.size() > 42 ? b.label.substr(0, 41) + "." : b.label;
    s += linked(b.link,
                fmt::format("<text class=\"a e\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>"
                            "<rect class=\"f{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"14\">"
                            "<title>{}: {} {}</title></rect>"
                            "<text class=\"a\" x=\"{:.1f}\" y=\"{:.0f}\">{}{}</text>",
                            kLabels - 8, y + 11, html_escaped(label), b.colour % 6, kLabels, y, w,
                            html_escaped(b.label), number(b.value), html_escaped(unit), kLabels + w + 6,
                            y + 11, number(b.value), b.starred ? " &#9733;" : "")) +
         "\n";
    y += kRow;
  }
  return s + "</svg></figure>\n";
}

std::string line_chart(const Axes& axes, const std::vector<Series>& series) {
  const Frame f = frame_of(axes, series);
  std::string s = open_svg(axes.title, kHeight) + grid(f);
  for (const Series& one : series) s += path_of(f, one.points, css_of("l", one.colour)) + dots(f, one);
  return s + legend(series) + "</svg></figure>\n";
}

std::vector<Point> pareto(std::vector<Point> points, bool up_right) {
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x > b.x; });
  std::vector<Point> best;
  for (const Point& p : points)
    if (best.empty() || (up_right ? p.y > best.back().y : p.y < best.back().y)) best.push_back(p);
  std::reverse(best.begin(), best.end());
  return best;
}

std::string pareto_chart(const Axes& axes, const std::vector<Series>& series, bool up_right) {
  const Frame f = frame_of(axes, series);
  std::vector<Point> all;
  for (const Series& one : series) all.insert(all.end(), one.points.begin(), one.points.end());
  std::string s = open_svg(axes.title, kHeight) + grid(f) + path_of(f, pareto(std::move(all), up_right), "p");
  for (const Series& one : series) s += dots(f, one);
  return s + legend(series) + "</svg></figure>\n";
}

}  // namespace carat
