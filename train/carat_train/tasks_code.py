"""Small programming tasks: functions in Python and C++, corrections, renames, questions about a snippet."""
from . import words as w

# what it does, parameters, Python expression or body, C++ result type, C++ parameters, C++ body
FUNCTIONS = [row.split("|") for row in """adds two numbers|a, b|return a + b|int|int a, int b|return a + b;
subtracts the second number from the first|a, b|return a - b|int|int a, int b|return a - b;
multiplies two numbers|a, b|return a * b|int|int a, int b|return a * b;
returns the larger of two numbers|a, b|return a if a > b else b|int|int a, int b|return a > b ? a : b;
returns the smaller of two numbers|a, b|return a if a < b else b|int|int a, int b|return a < b ? a : b;
returns the square of a number|x|return x * x|int|int x|return x * x;
returns the cube of a number|x|return x * x * x|int|int x|return x * x * x;
returns the absolute value of a number|x|return -x if x < 0 else x|int|int x|return x < 0 ? -x : x;
checks whether a number is even|n|return n % 2 == 0|bool|int n|return n % 2 == 0;
checks whether a number is odd|n|return n % 2 == 1|bool|int n|return n % 2 != 0;
checks whether a number is positive|n|return n > 0|bool|int n|return n > 0;
checks whether a year is a leap year|year|return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)|bool|int year|return year % 4 == 0 && (year % 100 != 0 or year % 400 == 0);
returns the average of two numbers|a, b|return (a + b) / 2|double|double a, double b|return (a + b) / 2;
returns the area of a rectangle|width, height|return width * height|double|double width, double height|return width * height;
converts Celsius to Fahrenheit|c|return c * 9 / 5 + 32|double|double c|return c * 9 / 5 + 32;
converts Fahrenheit to Celsius|f|return (f - 32) * 5 / 9|double|double f|return (f - 32) * 5 / 9;
returns the factorial of n|n|result = 1~for i in range(2, n + 1):~    result *= i~return result|long|int n|long result = 1;~for (int i = 2; i <= n; i++) result *= i;~return result;
returns the sum of the numbers from 1 to n|n|return n * (n + 1) // 2|int|int n|return n * (n + 1) / 2;
returns the sum of a list|values|total = 0~for v in values:~    total += v~return total|int|const std::vector<int>& values|int total = 0;~for (int v : values) total += v;~return total;
returns the largest element of a list|values|best = values[0]~for v in values:~    if v > best:~        best = v~return best|int|const std::vector<int>& values|int best = values[0];~for (int v : values) best = std::max(best, v);~return best;
returns the smallest element of a list|values|return min(values)|int|const std::vector<int>& values|return *std::min_element(values.begin(), values.end());
reverses a string|text|return text[::-1]|std::string|std::string text|std::reverse(text.begin(), text.end());~return text;
checks whether a string is a palindrome|text|return text == text[::-1]|bool|const std::string& text|return std::equal(text.begin(), text.end(), text.rbegin());
counts how often a character occurs in a string|text, c|return text.count(c)|int|const std::string& text, char c|return std::count(text.begin(), text.end(), c);
counts the vowels in a string|text|return sum(c in "aeiou" for c in text.lower())|int|const std::string& text|int n = 0;~for (char c : text) n += std::string("aeiouAEIOU").find(c) != std::string::npos;~return n;
returns the number of words in a text|text|return len(text.split())|int|const std::string& text|std::istringstream in(text);~std::string word;~int n = 0;~while (in >> word) n++;~return n;
returns the n-th Fibonacci number|n|a, b = 0, 1~for _ in range(n):~    a, b = b, a + b~return a|long|int n|long a = 0, b = 1;~for (int i = 0; i < n; i++) {~    long c = a + b;~    a = b;~    b = c;~}~return a;
computes the greatest common divisor of two numbers|a, b|while b:~    a, b = b, a % b~return a|int|int a, int b|while (b) {~    int t = a % b;~    a = b;~    b = t;~}~return a;
checks whether a number is prime|n|if n < 2:~    return False~for i in range(2, int(n ** 0.5) + 1):~    if n % i == 0:~        return False~return True|bool|int n|if (n < 2) return false;~for (int i = 2; i * i <= n; i++)~    if (n % i == 0) return false;~return true;
returns the last element of a list|items|return items[-1]|int|const std::vector<int>& items|return items.back();
removes duplicates from a list|items|seen = []~for x in items:~    if x not in seen:~        seen.append(x)~return seen|std::set<int>|const std::vector<int>& items|return std::set<int>(items.begin(), items.end());
returns the length of a string|text|return len(text)|size_t|const std::string& text|return text.size();
clamps a value between two limits|x, low, high|return max(low, min(x, high))|int|int x, int low, int high|return std::max(low, std::min(x, high));
swaps two values|a, b|return b, a|std::pair<int, int>|int a, int b|return {b, a};
joins a list of words with spaces|words|return " ".join(words)|std::string|const std::vector<std::string>& words|std::string out;~for (const auto& word : words) out += (out.empty() ? "" : " ") + word;~return out;
doubles every element of a list|items|return [2 * x for x in items]|std::vector<int>|std::vector<int> items|for (int& x : items) x *= 2;~return items;
keeps only the even numbers of a list|items|return [x for x in items if x % 2 == 0]|std::vector<int>|const std::vector<int>& items|std::vector<int> out;~for (int x : items)~    if (x % 2 == 0) out.push_back(x);~return out;""".split("\n")]


def indent(body):
    return "\n".join("    " + x for x in body.split("~"))


def name_for(rng, what):
    plain = {"adds two numbers": "add", "multiplies two numbers": "multiply", "reverses a string": "reverse", "checks whether a number is even": "is_even",
             "checks whether a number is prime": "is_prime", "returns the factorial of n": "factorial", "returns the sum of a list": "sum_list",
             "returns the square of a number": "square", "returns the larger of two numbers": "maximum", "checks whether a number is odd": "is_odd"}
    if what in plain and rng.random() < 0.5:
        return plain[what], False
    return rng.choice([w.snake(rng), w.snake(rng), w.invented(rng)]), True


def write(rng):
    what, params, py, result, cparams, cc = rng.choice(FUNCTIONS)
    name, given = name_for(rng, what)
    called = f" called {name}" if given else ""
    if rng.random() < 0.6:
        doc = f'    """{what[0].upper() + what[1:]}."""\n' if rng.random() < 0.3 else ""
        code, lang = f"def {name}({params}):\n{doc}{indent(py)}", "python"
        ask = rng.choice(["Write a Python function{} that {}.", "Write a function{} in Python that {}.", "In Python, write a function{} that {}.",
                          "Please write a Python function{} that {}."])
    else:
        code, lang = f"{result} {name}({cparams}) {{\n{indent(cc)}\n}}", "cpp"
        ask = rng.choice(["Write a C++ function{} that {}.", "In C++, write a function{} that {}.", "Write a function{} in C++ that {}."])
    fenced = f"```{lang}\n{code}\n```"
    if rng.random() < 0.5:
        fenced = rng.choice([f"Here is a function that {what}:\n\n", "Here it is:\n\n", f"This function {what}:\n\n"]) + fenced
    return ask.format(called, what), fenced


def explain(rng):
    what, params, py, result, cparams, cc = rng.choice(FUNCTIONS)
    name = w.invented(rng)
    code = f"def {name}({params}):\n{indent(py)}" if rng.random() < 0.5 else f"{result} {name}({cparams}) {{\n{indent(cc)}\n}}"
    return rng.choice(["What does this function do?\n\n{}", "Explain this code:\n{}", "{}\n\nWhat does it do?"]).format(code), f"The function {name} {what}."


def rename(rng):
    what, params, py, _, _, _ = rng.choice(FUNCTIONS)
    old, new = w.snake(rng), w.identifier(rng)
    code = f"def {old}({params}):\n{indent(py)}\n\n\nprint({old}({', '.join(str(rng.randint(1, 9)) for _ in params.split(','))}))"
    return f"Rename {old} to {new}:\n\n{code}", code.replace(old, new)


def ask_about(rng):
    names = rng.sample([w.identifier(rng) for _ in range(12)], 4)
    values = [rng.choice([str(rng.randint(0, 999)), f'"{w.path(rng)}"', f'"{w.code(rng)}"', "True", "None"]) for _ in names]
    code = "\n".join(f"{n} = {v}" for n, v in zip(names, values))
    i = rng.randrange(4)
    return f"{code}\n\nWhat is the value of {names[i]}?", f"The value of {names[i]} is {values[i]}."


def loop(rng):
    n, word = rng.randint(2, 20), rng.choice(["hello", w.invented(rng), rng.choice(w.OBJECTS)])
    if rng.random() < 0.5:
        return f"Write a Python loop that prints \"{word}\" {n} times.", f"```python\nfor _ in range({n}):\n    print(\"{word}\")\n```"
    return f"Write a C++ loop that prints the numbers from 1 to {n}.", f"```cpp\nfor (int i = 1; i <= {n}; i++) {{\n    std::cout << i << \"\\n\";\n}}\n```"


def structure(rng):
    name, fields = w.camel(rng), rng.sample(w.PARTS, rng.randint(2, 4))
    if rng.random() < 0.5:
        body = "\n".join(f"    {x}: {rng.choice(['int', 'str', 'float'])}" for x in fields)
        return f"Write a Python dataclass {name} with the fields {w.join(fields)}.", f"```python\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass {name}:\n{body}\n```"
    body = "\n".join(f"    {rng.choice(['int', 'std::string', 'double'])} {x};" for x in fields)
    return f"Write a C++ struct {name} with the fields {w.join(fields)}.", f"```cpp\nstruct {name} {{\n{body}\n}};\n```"


TASKS = [(write, 8), (explain, 3), (rename, 3), (ask_about, 3), (loop, 2), (structure, 2)]
