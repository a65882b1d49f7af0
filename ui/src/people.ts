// People as the pages show them.
import { get, path, Refused, type DirectoryEntry, type LedgerRow } from "./api";
import { known as text, t } from "./texts";

export interface PersonSettings {
  addresses?: string[] | string;
  language?: string;
  zone?: string;
  quiet?: string[] | string;
  delivery?: string;
}

export const settingsOf = (entry: DirectoryEntry): PersonSettings => entry.settings as PersonSettings;

/** How many of a group have to be reached, in words. */
export function deliveryOf(group: DirectoryEntry): string {
  const [rule = "", least] = (settingsOf(group).delivery ?? "to-any").split(" ");
  return least ? t("group.atLeast", { n: least }) : text(`group.${rule}`, rule);
}

/** A setting of one or several texts as a list. */
export function listed(value: string[] | string | undefined): string[] {
  return value === undefined || value === "" ? [] : typeof value === "string" ? [value] : value;
}

export const lines = (text: string): string[] => text.split(/\n/).map((line) => line.trim()).filter(Boolean);

/** Why something was refused, with the hints of all problems. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Refused)) return error instanceof Error ? error.message : String(error);
  if (error.status === 403) return t("state.notAllowed");
  const found = error.problems.length ? error.problems : [error];
  return found.map((one) => [one.message, one.hint].filter(Boolean).join(" – ")).join("\n");
}

/** The newest state of each message of a person; an answer stays. */
export function wrote(rows: LedgerRow[]): LedgerRow[] {
  const newest = new Map<string, LedgerRow>();
  for (const row of rows) {
    const before = newest.get(row.message);
    if (!before || row.state === "answered" || (before.state !== "answered" && row.time > before.time)) newest.set(row.message, row);
  }
  return [...newest.values()];
}

/** Waits until the ledger knows a message that was just sent. */
export async function known(message: string): Promise<boolean> {
  for (let turn = 0; turn < 30; turn += 1) {
    try {
      await get(path("ledger", "messages", message), { timeline: "false" });
      return true;
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      await new Promise((done) => setTimeout(done, 150));
    }
  }
  return false;
}
