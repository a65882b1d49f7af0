// What the pages of runs over history share.
import type { HistoryRun } from "./api";
import { shownTime } from "./format";
import { t } from "./texts";

export const isOver = (run: HistoryRun): boolean => !["waiting", "running"].includes(run.state ?? "");

const plain = (policy: string): string => policy.replace(/@(.{8}).*$/, "@$1");

/** What a run is about, in a line. */
export function titleOf(run: HistoryRun): string {
  const { kind, policy, compare } = run.request;
  if (kind === "report") return t("history.report");
  return compare ? t("history.against", { policy: plain(policy), other: plain(compare) }) : plain(policy);
}

export function periodOf(run: HistoryRun): string {
  const { since, until } = run.request;
  if (since === null && until === null) return t("history.all");
  return [since, until].map((end) => (end === null ? "…" : shownTime(end))).join(" – ");
}

export function sourceOf(run: HistoryRun): string {
  const { history, source } = run.request;
  return history === "files" ? t("history.files", { source }) : t(`history.${history}`);
}
