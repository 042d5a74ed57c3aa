// Charts as inline SVG, without a library and without scripts: their colours are the page's variables --c0 ..
// --c5, so that they can be read in the dark and on paper.
#pragma once
#include <string>
#include <vector>

namespace carat {

struct Bar {
  std::string label, link;  // link: what a click leads to
  double value = 0;
  int colour = 0;
  bool starred = false;
};
// Horizontal bars in the given order.
std::string bar_chart(const std::string& title, const std::string& unit, const std::vector<Bar>& bars);

struct Point {
  double x = 0, y = 0;
  std::string label, link;
};
struct Series {
  std::string name;
  std::vector<Point> points;
  int colour = 0;
};
struct Axes {
  std::string title, x, y;
  bool log2_x = false, zero_y = true;
};
std::string line_chart(const Axes& axes, const std::vector<Series>& series);
// Points alone. up_right: larger is better on both axes; else larger x and smaller y. The points that no
// other beats on both are joined.
std::string pareto_chart(const Axes& axes, const std::vector<Series>& series, bool up_right);
// Of points, those that no other beats on both axes, by x.
std::vector<Point> pareto(std::vector<Point> points, bool up_right);

std::string html_escaped(const std::string& text);

}  // namespace carat
