// 5,000 tokens of prose and of code as models write them: emphasis, lists, formulas, links; keywords, strings, numbers, comments.
const tokens = (text) => text.match(/\s*[A-Za-z_]{1,6}|\s*\d{1,3}|\s*[^A-Za-z_\d\s]|\s+/g);
function repeated(first, piece) {
  const out = first ? [first] : [];
  for (let i = 0; out.length < 5000; i++) out.push(...tokens(piece(i)));
  return out.slice(0, 5000);
}

export const prose = repeated("", (i) => `## Part ${i + 1}\n\nThe **ring** holds the last \`rows\` of a layer, see [the design](https://example.org/${i}), and is never copied ` +
  `as a whole when it turns: *one* row is written at $p \\bmod W$, and the oldest of ${i + 7} goes.\n\n- A row is read ${i} times.\n- It costs 2,176 bytes.\n\n`);
export const code = repeated("```python\n", (i) => `def ring_${i}(k, v, pos: int, window=${i + 128}):\n    """Writes one row of ${i}."""\n    row = pos % window  # wraps\n` +
  `    if row == 0 and pos is not None:\n        return [f"{x:.2f}" for x in k if x > ${i}.5]\n    k[row], v[row] = new_k, "row"\n\n`);
