// Texts of the console: one file per language, chosen by the browser's languages.
import de from "./de.json";
import en from "./en.json";

export type Key = keyof typeof en;

const KNOWN = { en, de } as const;
type Language = keyof typeof KNOWN;

export const language: Language =
  navigator.languages.map((one) => one.slice(0, 2)).find((one): one is Language => one in KNOWN) ?? "en";
const texts: Record<Key, string> = KNOWN[language];
const plural = new Intl.PluralRules(language);

/** A text with its gaps filled. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  return texts[key].replace(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ""));
}

/** A text for a number of things; its forms are divided by "|": one and many. */
export function counted(key: Key, count: number, values: Record<string, string | number> = {}): string {
  const [one = "", many = one] = texts[key].split("|");
  const text = plural.select(count) === "one" ? one : many;
  const shown = { n: new Intl.NumberFormat(language).format(count), ...values };
  return text.replace(/\{(\w+)\}/g, (_, name: string) => String(shown[name as "n"] ?? ""));
}

/** A text that may not exist, such as of a state that a newer node reports. */
export function known(key: string, otherwise: string): string {
  return key in texts ? texts[key as Key] : otherwise;
}
