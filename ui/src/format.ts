import { language, t } from "./texts";
import type { PresentValue } from "./api";

const number = new Intl.NumberFormat(language, { maximumSignificantDigits: 6 });
const whole = new Intl.NumberFormat(language);
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const dayAndClock = new Intl.DateTimeFormat(language, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayOfYear = new Intl.DateTimeFormat(language, { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const full = new Intl.DateTimeFormat(language, { dateStyle: "full", timeStyle: "long" });
const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });

export const shownNumber = (value: number): string => number.format(value);
export const shownCount = (value: number): string => whole.format(value);

/** A moment in the viewer's zone: with the day, and the year where it is another one. */
export function shownTime(ms: number, now = Date.now()): string {
  const [then, today] = [new Date(ms), new Date(now)];
  if (then.toDateString() === today.toDateString()) return `${t("time.today")} ${clock.format(then)}`;
  return then.getFullYear() === today.getFullYear() ? dayAndClock.format(then) : dayOfYear.format(then);
}

export const fullTime = (ms: number): string => full.format(new Date(ms));

const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [["day", 86_400_000], ["hour", 3_600_000], ["minute", 60_000], ["second", 1_000]];

/** How long ago, in the largest fitting unit. */
export function shownAge(ms: number, now: number): string {
  const ago = now - ms;
  for (const [unit, size] of STEPS) {
    if (Math.abs(ago) >= size) return relative.format(-Math.round(ago / size), unit);
  }
  return relative.format(0, "second");
}

export function shownDuration(ms: number): string {
  for (const [unit, size] of STEPS) {
    if (ms >= size) return new Intl.NumberFormat(language, { style: "unit", unit, maximumFractionDigits: 1, unitDisplay: "short" }).format(ms / size);
  }
  return `${ms} ms`;
}

const BYTES = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"] as const;

/** A size in the largest fitting unit; 1 kB is 1,000 bytes. */
export function shownBytes(bytes: number): string {
  const step = Math.min(BYTES.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(bytes, 1)) / 3)));
  return new Intl.NumberFormat(language, { style: "unit", unit: BYTES[step], unitDisplay: "short", maximumSignificantDigits: 3 }).format(bytes / 1_000 ** step);
}

const UTC_CLOCK = /(?<![\d-])(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?![\d:])/g;

/** A sentence of the node, whose times of day are UTC, with the times of the viewer's zone. */
export function inZone(text: string, near: number): string {
  return text.replace(UTC_CLOCK, (_, hour: string, minute: string, second: string) => {
    const day = new Date(near);
    const at = Date.UTC(day.getUTCFullYear(), day.getUTCMonth(), day.getUTCDate(), Number(hour), Number(minute), Number(second));
    const nearest = at + 86_400_000 * Math.round((near - at) / 86_400_000);
    return clock.format(nearest);
  });
}

const UNITS: Record<string, string> = { degC: "°C", degF: "°F", deg: "°", percent: "%", m3: "m³", m2: "m²", "ug/m3": "µg/m³", "m/s": "m/s", ohm: "Ω" };
export const shownUnit = (unit: string): string => UNITS[unit] ?? unit;

export function shownParts(parts: readonly unknown[], unit = ""): string {
  const [first] = parts;
  if (parts.length === 0) return "–";
  if (parts.length === 4) {
    const [x1, y1, x2, y2] = parts.map((part) => shownNumber(Number(part)));
    return `(${x1}, ${y1}) – (${x2}, ${y2})`;
  }
  if (parts.length > 1) return `(${parts.map((part) => shownNumber(Number(part))).join(", ")})${unit ? ` ${shownUnit(unit)}` : ""}`;
  if (typeof first === "number") return `${shownNumber(first)}${unit ? ` ${shownUnit(unit)}` : ""}`;
  if (typeof first === "boolean") return t(first ? "value.yes" : "value.no");
  return String(first ?? "–");
}

export const shownValue = (value: PresentValue): string => shownParts(value.value as unknown[], value.unit);

/** Offers a change of the site's files as a file, for where they are kept. */
export function savePatch(patch: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([patch], { type: "text/x-patch" }));
  link.download = "site.patch";
  link.click();
  URL.revokeObjectURL(link.href);
}
