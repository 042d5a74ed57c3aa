// Tables from the English text to a language's.
export const tables: Record<string, Record<string, string>> = {};
