// What is said in the pictures, in the languages that are looked at.
const table = (head, rows) => `\n\n| ${head.join(" | ")} |\n|:--|--:|--:|\n${rows.map((r) => `| ${r.join(" | ")} |`).join("\n")}\n\n`;
const code = "```python\ndef ring(k, v, pos, window):\n    \"\"\"Writes one row.\"\"\"\n    row = pos % window  # wraps\n    k[row], v[row] = new_k, new_v\n    return row\n```\n";
const formula = "\n\n$$\nB = 2 \\cdot W \\cdot H \\cdot d \\cdot \\frac{b}{8}\n$$\n\n";
const rows = [["f16", "16", "4,096"], ["q8_0", "8.5", "2,176"], ["tq3", "3.06", "784"]];

export const words = {
  "en": {
    question: "How large is the cache of a sliding layer?", next: "And in French?", look: "What is on this picture?", folder: "Caches",
    thought: "The reader asks for the *size* of a ring.",
    answer: `A sliding layer keeps the last $W$ tokens in a **ring**, so its size does not grow with the text:${formula}${table(["cache", "bits", "bytes per token"], rows)}${code}\n1. Rows are written in turn.\n2. Nothing is copied.`,
    other: "A sliding layer keeps the last $W$ tokens in a **buffer** that wraps around, so it never grows.",
    seen: "A red circle on a light ground.", titles: ["Ring buffers, explained", "A letter to the landlord about the heating", "Regular expressions for dates"],
  },
  "zh-TW": {
    question: "滑動視窗層的快取有多大？", next: "那法文怎麼說？", look: "這張圖片上有什麼？", folder: "快取",
    thought: "使用者想知道環狀緩衝區的*大小*。",
    answer: `滑動視窗層只在**環狀緩衝區：**中保留最後 $W$ 個 token，因此大小不會隨文字增加：${formula}${table(["快取", "位元", "每個 token 的位元組"], rows)}${code}\n1. 依序寫入各列。\n2. 不需要複製。`,
    other: "滑動視窗層把最後 $W$ 個 token 放在會繞回的**緩衝區**裡，因此大小固定。",
    seen: "淺色背景上的紅色圓形。", titles: ["環狀緩衝區說明", "寫給房東的信，關於暖氣", "日期的正規表示式"],
  },
  "de": {
    question: "Wie groß ist der Cache einer gleitenden Schicht?", next: "Und auf Französisch?", look: "Was ist auf diesem Bild?", folder: "Zwischenspeicher",
    thought: "Gefragt ist nach der *Größe* eines Rings.",
    answer: `Eine gleitende Schicht behält die letzten $W$ Token in einem **Ring**; seine Größe wächst deshalb nicht mit dem Text:${formula}${table(["Cache", "Bit", "Byte je Token"], rows)}${code}\n1. Zeilen werden der Reihe nach geschrieben.\n2. Nichts wird kopiert.`,
    other: "Eine gleitende Schicht behält die letzten $W$ Token in einem **Puffer**, der umläuft und nie wächst.",
    seen: "Ein roter Kreis auf hellem Grund.", titles: ["Ringpuffer erklärt", "Ein Brief an die Hausverwaltung wegen der Heizung", "Reguläre Ausdrücke für Datumsangaben"],
  },
};
