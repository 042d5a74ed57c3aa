// Temml as the page has it (lean.js) draws what Temml draws.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { expect, test } from "vitest";
import whole from "temml";
import { lean } from "../lean.js";

const source = "node_modules/temml/dist/temml.mjs";
const made = resolve("node_modules/.lean/temml.mjs");
mkdirSync(resolve("node_modules/.lean"), { recursive: true });
const cut = lean().transform.call({ error: (why: string) => { throw new Error(why); } }, readFileSync(source, "utf8"), `/${source}`);
writeFileSync(made, cut!.code);
const { default: less } = await import(/* @vite-ignore */ made);

const formulas = String.raw`
e^{i\pi} + 1 = 0
\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6}
\int_0^1 x\,dx = \left[\tfrac12 x^2\right]_0^1
\oint_{\partial\Omega} \mathbf{E}\cdot d\mathbf{l} = -\frac{d}{dt}\iint_\Omega \mathbf{B}\cdot d\mathbf{S}
\lim_{x\to 0}\frac{\sin x}{x}=1
\begin{pmatrix} a & b \\ c & d \end{pmatrix} \begin{bmatrix} 1 \\ 0 \end{bmatrix}
\begin{cases} x & x > 0 \\ -x & \text{otherwise} \end{cases}
\begin{aligned} a &= b + c \\ &= d \end{aligned}
\begin{array}{c|c} 1 & 2 \\ \hline 3 & 4 \end{array}
\mathrm{softmax}(q_t K^\top / \sqrt{d})
\operatorname{argmin}_{\theta} \mathcal{L}(\theta)
\hat{y}, \tilde{x}, \bar{z}, \vec{v}, \dot{q}, \ddot{q}, \widehat{ABC}, \overline{AB}, \underline{x}
\overbrace{a+b}^{n} \underbrace{c+d}_{m}
\mathbb{R} \mathcal{F} \mathfrak{g} \mathsf{x} \mathtt{y} \boldsymbol{\beta}
\alpha \beta \gamma \Gamma \delta \epsilon \varepsilon \theta \lambda \mu \xi \rho \sigma \phi \varphi \omega \Omega
\le \ge \ne \approx \equiv \sim \propto \in \notin \subset \subseteq \cup \cap \setminus \emptyset
\to \mapsto \Rightarrow \iff \implies \leftarrow \leftrightarrow \uparrow \xrightarrow{f} \xleftarrow[a]{b}
\forall \exists \neg \land \lor \top \bot \vdash \models \therefore \because
\binom{n}{k} \dbinom{n}{k} {n \choose k} \genfrac{(}{)}{0pt}{}{n}{k}
\left\langle \psi \middle| \phi \right\rangle \bra{a} \ket{b} \braket{a|b}
\bigl( \Bigl[ \biggl\{ \Biggl| x \Biggr| \biggr\} \Bigr] \bigr)
\lfloor x \rfloor \lceil y \rceil \lVert v \rVert \|w\|
\text{speed} = 3.06\,\text{m/s} \quad \text{größer, naïve, Ångström}
é + ö + ñ
\cancel{x} \boxed{E = mc^2} \phantom{x} \tag{1}
\sin^2\theta + \cos^2\theta = 1, \quad \log_2 n, \ \ln x, \ \exp(x), \ \det A, \ \gcd(a,b), \ \max_i, \ \inf
\nabla \times \mathbf{B} = \mu_0 \left(\mathbf{J} + \varepsilon_0 \frac{\partial \mathbf{E}}{\partial t}\right)
\prod_{i=1}^n x_i \bigcup_{i} A_i \bigoplus V \coprod
x_{1}^{2}{}_{3}^{4} \prescript{14}{6}{C} \sideset{_a^b}{_c^d}\sum
\ldots \cdots \vdots \ddots \dots
a \bmod b \pmod{n} \not= \ncong \nmid
\stackrel{!}{=} \overset{a}{b} \underset{c}{d} \substack{i<n \\ j<m}
\newcommand{\mine}{\mathbb{R}} f: \mine^n \to \mine
\mathrm{d}x \, \mathit{ab} \, \textbf{bold} \, \textit{it} \, \mathop{Res}_{z=0}
`.trim().split("\n");

test("formulas that models write are drawn the same", () => {
  for (const text of formulas)
    for (const displayMode of text.includes("\\tag") ? [true] : [false, true]) {
      const options = { displayMode, throwOnError: true, trust: false };
      expect(less.renderToString(text, options), text).toBe(whole.renderToString(text, options));
    }
});

test("colours do no harm; what was cut out says so", () => {
  expect(less.renderToString("\\color{red} x + \\textcolor{blue}{y}", { throwOnError: true })).toContain("<mi");
  for (const gone of ["\\ce{H2O}", "\\href{https://example.org}{x}", "\\includegraphics{x.png}"])
    expect(() => less.renderToString(gone, { throwOnError: true }), gone).toThrow();
});
