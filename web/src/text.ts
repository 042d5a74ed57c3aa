// The page's words. English is the key; a language is a table from it.
import { tables } from "./languages.ts";
import { state } from "./store.ts";

export const languages: [string, string][] = [
  ["en", "English"], ["zh-Hant", "繁體中文"], ["zh-Hans", "简体中文"], ["ja", "日本語"], ["de", "Deutsch"],
];

export function language(): string {
  if (state.language) return state.language;
  for (const wanted of navigator.languages) {
    if (/^zh-(hant|tw|hk|mo)/i.test(wanted)) return "zh-Hant";
    if (/^zh/i.test(wanted)) return "zh-Hans";
    const short = wanted.slice(0, 2).toLowerCase();
    if (short === "en" || short in tables) return short;
  }
  return "en";
}

export const gigabytes = (n: number): string => (n < 1e8 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(n < 1e10 ? 2 : 1)} GB`);

export function t(text: string, ...values: (string | number)[]): string {
  const said = tables[language()]?.[text] ?? text;
  return values.length ? said.replace(/\{(\d)\}/g, (_, i) => String(values[Number(i)])) : said;
}
