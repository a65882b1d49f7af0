// What the editor knows of the language of policies: colours of words, and what may stand where.
import type { SiteVocabulary } from "../api";

export type Section = "" | "concepts" | "conditions" | "situation" | "cleared by" | "while" | "actions" | "actions when cleared";

const HEADERS = /^\s*(concepts|conditions|situation|cleared by|while|actions when cleared|actions)\s*(?:#.*|\/\/.*)?$/i;
const KEYWORDS = "and|or|not|is|of|followed-by|for|within|at least|at most|above|below|between|one of|no|some|event|events|once per|in the last|time|on|with|distinct|may be the same|mean|min|max|sum|median|count|change|rate|percentile|urgent|say|ask|repeat|escalate";
const WORDS = new RegExp(
  String.raw`(?<comment>(?:^|\s)(?:#|//).*$)|(?<text>'[^']*'|"[^"]*")|(?<number>-?\b\d+(?:[.:]\d+)?(?:\s*(?:°C|%|[a-zA-Zµ°]+(?:\/[a-z0-9]+)?\b))?)|(?<keyword>\b(?:${KEYWORDS})\b)`,
  "gi",
);

export interface Coloured { from: number; to: number; kind: "header" | "keyword" | "number" | "text" | "comment" }

/** The words of a line that have a colour. */
export function colours(line: string): Coloured[] {
  if (HEADERS.test(line)) {
    const from = line.search(/\S/);
    const comment = line.search(/#|\/\//);
    return [{ from, to: comment < 0 ? line.trimEnd().length : comment, kind: "header" }];
  }
  return [...line.matchAll(WORDS)].map((found) => {
    const kind = Object.entries(found.groups ?? {}).find(([, text]) => text !== undefined)?.[0] ?? "keyword";
    return { from: found.index, to: found.index + found[0].length, kind: kind as Coloured["kind"] };
  });
}

export function sectionAt(lines: readonly string[], line: number): Section {
  for (let number = line; number >= 0; number -= 1) {
    const found = HEADERS.exec(lines[number] ?? "");
    if (found?.[1]) return found[1].toLowerCase() as Section;
  }
  return "";
}

/** The concept of each alias. */
export function aliases(lines: readonly string[]): Map<string, string> {
  const found = new Map<string, string>();
  lines.forEach((text, number) => {
    const words = /^\s*([^\W\d][\w-]*)\s+([^\W\d]\w*)/u.exec(text);
    if (words?.[1] && words[2] && sectionAt(lines, number) === "concepts" && !HEADERS.test(text)) found.set(words[2], words[1]);
  });
  return found;
}

export interface Offer { label: string; detail?: string; apply?: string }

const SECTIONS: Offer[] = ["concepts", "situation", "conditions", "cleared by", "actions", "actions when cleared"].map((label) => ({ label }));
const COMPARISONS: Offer[] = ["above", "below", "at least", "at most", "is", "is not", "between"].map((label) => ({ label }));
const plain = (labels: readonly string[], detail = ""): Offer[] => labels.map((label) => ({ label, detail }));

/** What may follow `before`, the text of the line up to the cursor; and how much of it is replaced. */
export function offers(words: SiteVocabulary, lines: readonly string[], line: number, before: string): { typed: string; offers: Offer[] } {
  const typed = /[\w-]*$/u.exec(before)?.[0] ?? "";
  const start = before.slice(0, before.length - typed.length);
  const section = sectionAt(lines, line - 1);
  const known = aliases(lines);
  const attributesOf = (concept: string) => words.concepts.find((one) => one.name === concept)?.attributes ?? [];
  if (!start.trim() && (/^\S/.test(before) || !section)) return { typed: before.trim(), offers: SECTIONS };
  if (section === "concepts") {
    if (!start.trim()) return { typed, offers: words.concepts.map((one) => ({ label: one.name, detail: one.attributes.map((each) => each.name).join(", ") })) };
    const inside = /^\s*([\w-]+)\s+\w+\s*\([^)]*$/u.exec(start);
    return { typed, offers: inside ? attributesOf(inside[1] ?? "").map((one) => ({ label: one.name, detail: one.type })) : [] };
  }
  if (section === "actions" || section === "actions when cleared") {
    return { typed: before.trim(), offers: /^\s{4,}/.test(before) ? plain(["urgent", "say "]) : plain(words.actions) };
  }
  const of = /([\w-]+)\s+of\s+$/u.exec(start);
  if (of) {
    const fit = [...known].filter(([, concept]) => attributesOf(concept).some((one) => one.name === of[1]));
    return { typed, offers: (fit.length ? fit : [...known]).map(([label, detail]) => ({ label, detail })) };
  }
  if (/time is (?:not )?on\s+$/u.test(start)) return { typed, offers: plain([...words.day_tables, "Mon-Fri", "Sat, Sun"]) };
  const number = /([\w-]+)\s+of\s+(\w+)\b.*\s-?\d+(?:\.\d+)?\s+$/u.exec(start);
  if (number && !/\b(?:for|last|per)\s+\d+\s+$/u.test(start)) {
    const unit = attributesOf(known.get(number[2] ?? "") ?? "").find((one) => one.name === number[1])?.unit;
    return { typed, offers: [...plain(unit ? [unit] : []), ...plain(["for 10 min"])] };
  }
  if (/\b(?:for|last|per)\s+\d+\s+$/u.test(start)) return { typed, offers: plain(["s", "min", "h", "d"]) };
  if (/[\w-]+\s+of\s+\w+\s+$/u.test(start)) return { typed, offers: COMPARISONS };
  const related = /(?:^|\s)(\w+)\s+is\s+(?:not\s+)?$/u.exec(start);
  if (related && known.has(related[1] ?? "")) {
    const concept = known.get(related[1] ?? "");
    const names = words.relationships.filter((one) => one.first === concept);
    return { typed, offers: (names.length ? names : words.relationships).map((one) => ({ label: one.name, detail: `${one.first} – ${one.second}` })) };
  }
  const values = [...known].flatMap(([alias, concept]) => attributesOf(concept).map((one) => ({ label: `${one.name} of ${alias}`, detail: one.unit || one.type })));
  const terms = [...known.keys()].map((alias) => ({ label: alias, detail: known.get(alias) ?? "" }));
  const functions = words.functions.map((one) => ({ label: `${one.name}()`, detail: one.unit ?? "" }));
  return { typed, offers: [...values, ...terms, ...functions, ...plain(["AND", "OR", "NOT", "for", "time is between"])] };
}

/** A first text for a policy, of the first value that readings give. */
export function template(words: SiteVocabulary): string {
  for (const concept of words.concepts) {
    const value = concept.attributes.find((one) => one.type === "number" && one.sources?.length);
    if (!value || concept.concept !== concept.name) continue;
    const alias = concept.name[0]?.toUpperCase() ?? "X";
    const limit = `100${value.unit ? ` ${value.unit}` : ""}`;
    return `concepts\n  ${concept.name} ${alias}\nsituation\n  ${value.name} of ${alias} above ${limit} for 10 min\nactions\n  ${words.actions[0] ?? "raise alarm"}\n`;
  }
  return `concepts\n  \nsituation\n  \nactions\n  ${words.actions[0] ?? "raise alarm"}\n`;
}
