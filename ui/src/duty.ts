// Duty rosters as the pages show and change them.
import type { DirectoryEntry, DutyPlan } from "./api";
import { language } from "./texts";

export interface Shift {
  person: string;
  instead_of?: string;
  days?: string | string[];
  hours?: string | string[];
  dates?: string | string[];
}

export const rosterOf = (group: DirectoryEntry): Shift[] => (group.settings.roster as Shift[] | undefined) ?? [];
export const zoneOf = (group: DirectoryEntry): string => (group.settings.zone as string | undefined) ?? "";

/** A shift as the form has it: every list as one text. */
export interface ShiftForm { person: string; instead_of: string; days: string; hours: string; dates: string }

const joined = (value: string | string[] | undefined): string => (typeof value === "string" ? value : (value ?? []).join(", "));

export const asForm = (shift: Shift): ShiftForm => ({
  person: shift.person, instead_of: shift.instead_of ?? "", days: joined(shift.days), hours: joined(shift.hours), dates: joined(shift.dates),
});

/** The shift that a form describes; what is empty is left out. */
export function asShift(form: ShiftForm): Shift {
  const listed = (text: string) => text.split(/[,;]/).map((one) => one.trim()).filter(Boolean);
  const shift: Shift = { person: form.person };
  if (form.instead_of) shift.instead_of = form.instead_of;
  for (const key of ["days", "hours", "dates"] as const) {
    const found = listed(form[key]);
    if (found.length) shift[key] = found;
  }
  return shift;
}

export interface DutyDay { day: string; weekend: boolean; spans: { from: string; to: string; people: string[] }[] }

/** The spans of a plan by day, in the zone of the roster. */
export function daysOf(plan: DutyPlan): DutyDay[] {
  const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: plan.zone });
  const named = new Intl.DateTimeFormat(language, { weekday: "short", day: "numeric", month: "short", timeZone: plan.zone });
  const weekday = new Intl.DateTimeFormat("en", { weekday: "short", timeZone: plan.zone });
  const days: DutyDay[] = [];
  for (const span of plan.spans) {
    for (let start = span.start; start < span.end;) {
      const end = Math.min(span.end, nextDay(start, named));
      const day = named.format(start);
      if (days.at(-1)?.day !== day) days.push({ day, weekend: weekday.format(start).startsWith("S"), spans: [] });
      days.at(-1)?.spans.push({ from: clock.format(start), to: named.format(end) === day ? clock.format(end) : "24:00", people: span.people });
      start = end;
    }
  }
  return days;
}

/** The first moment of the next day of a zone, to the minute. */
function nextDay(after: number, named: Intl.DateTimeFormat): number {
  const day = named.format(after);
  let [low, high] = [after, after + 26 * 3_600_000];
  while (high - low > 60_000) {
    const middle = Math.floor((low + high) / 120_000) * 60_000;
    if (middle <= low) break;
    if (named.format(middle) === day) low = middle;
    else high = middle;
  }
  return high;
}
