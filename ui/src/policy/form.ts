// The form of a simple situation: one value of one thing, its limit, how long, what clears it, and
// whom to notify. It reads and writes the text of the policy; the text stays what counts.

export interface Limit { attribute: string; operator: string; value: string; unit: string; lasting: string }

export interface SimpleSituation {
  concept: string;
  alias: string;
  limit: Limit;
  cleared: Limit | undefined;
  /** The first line of each section is the action; the others say how. */
  actions: string[];
  clearedActions: string[];
}

export const OPERATORS = ["above", "below", "at least", "at most", "is", "is not"] as const;

const LIMIT = /^([^\W\d][\w-]*) of (\w+) (above|below|at least|at most|is not|is) ('[^']*'|-?\d+(?:\.\d+)?)(?: ((?!for\b)[^\s\d()]\S*))?(?: for (\d+(?:\.\d+)? ?(?:ms|s|min|h|d)))?$/u;
const SECTIONS = ["concepts", "situation", "cleared by", "actions", "actions when cleared"];

/** The form of a text; undefined for one that says more than the form can show. */
export function readForm(text: string): SimpleSituation | undefined {
  const sections = new Map<string, string[]>();
  let section: string[] | undefined;
  for (const line of text.split("\n")) {
    const words = line.trim();
    if (!words) continue;
    const isAction = section !== undefined && [...sections.keys()].at(-1)?.startsWith("actions");
    if (SECTIONS.includes(words.toLowerCase())) {
      if (sections.has(words.toLowerCase())) return undefined;
      sections.set(words.toLowerCase(), (section = []));
    } else if (!section || /(?:^|\s)(?:#|\/\/)/u.test(line)) return undefined;
    else section.push(isAction ? line.trimEnd() : words.replace(/\s+/gu, " "));
  }
  const order = [...sections.keys()];
  if (order.join() !== SECTIONS.filter((one) => sections.has(one)).join()) return undefined;
  const [concepts, situation, clearing] = [sections.get("concepts"), sections.get("situation"), sections.get("cleared by")];
  const defined = concepts?.length === 1 ? /^([^\W\d][\w-]*) ([^\W\d]\w*)$/u.exec(concepts[0] ?? "") : null;
  if (!defined || situation?.length !== 1 || (clearing && clearing.length !== 1)) return undefined;
  const [concept, alias] = [defined[1] ?? "", defined[2] ?? ""];
  const limit = readLimit(situation[0] ?? "", alias);
  const cleared = clearing && readLimit(clearing[0] ?? "", alias);
  const actions = readActions(sections.get("actions"));
  const clearedActions = readActions(sections.get("actions when cleared") ?? []);
  if (!limit || (clearing && !cleared) || !actions?.length || !clearedActions) return undefined;
  return { concept, alias, limit, cleared, actions, clearedActions };
}

function readLimit(line: string, alias: string): Limit | undefined {
  const found = LIMIT.exec(line);
  if (!found || found[2] !== alias) return undefined;
  return { attribute: found[1] ?? "", operator: found[3] ?? "", value: found[4] ?? "", unit: found[5] ?? "", lasting: found[6] ?? "" };
}

/** Lines without their common indentation; undefined when there is more than one action. */
function readActions(lines: string[] | undefined): string[] | undefined {
  if (!lines?.length) return lines && [];
  const indent = /^\s*/u.exec(lines[0] ?? "")?.[0].length ?? 0;
  const isOne = lines.slice(1).every((line) => (/^\s*/u.exec(line)?.[0].length ?? 0) > indent);
  return isOne ? lines.map((line) => line.trim()) : undefined;
}

export function writeForm(form: SimpleSituation): string {
  const lines = ["concepts", `  ${form.concept} ${form.alias}`, "situation", `  ${writeLimit(form.limit, form.alias)}`];
  if (form.cleared) lines.push("cleared by", `  ${writeLimit(form.cleared, form.alias)}`);
  lines.push("actions", ...writeActions(form.actions));
  if (form.clearedActions.length) lines.push("actions when cleared", ...writeActions(form.clearedActions));
  return `${lines.join("\n")}\n`;
}

const writeLimit = (one: Limit, alias: string): string =>
  `${one.attribute} of ${alias} ${one.operator} ${one.value}${one.unit ? ` ${one.unit}` : ""}${one.lasting ? ` for ${one.lasting}` : ""}`;
const writeActions = (lines: string[]): string[] => lines.map((line, number) => `${number ? "    " : "  "}${line}`);
