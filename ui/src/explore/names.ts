// Channels and readers in plain words; their technical names stand beside them.
import { known, t } from "../texts";

export function channelName(name: string): string {
  const [first = "", ...rest] = name.split(".");
  const own = known(`channel.${name}`, "");
  if (own) return own;
  if (rest.length && ["raw", "output", "request"].includes(first)) return known(`channel.${first}.*`, name).replace("{name}", rest.join("."));
  return t("channel.other", { name });
}

export function readerName(reader: string): string {
  const [kind = "", ...rest] = reader.split(/[.:]/);
  const named = known(`reader.${kind}`, "");
  return named ? named.replace("{name}", rest.join(".")) : reader;
}

/** A condition that is true when both are. */
export function both(condition: string, more: string): string {
  const first = condition.trim();
  if (!first) return more;
  return / or /i.test(first) && !/^\(.*\)$/.test(first) ? `(${first}) AND ${more}` : `${first} AND ${more}`;
}

const TEXT_FIELDS = ["id", "source", "type", "subject"];

/** A comparison as conditions write it: numbers and truth values of the payload as they are, all else as a text. */
export function comparison(field: string, operator: string, value: string): string {
  const isBare = !TEXT_FIELDS.includes(field) && !field.startsWith("headers.") && /^(-?\d+(\.\d+)?|true|false)$/i.test(value.trim());
  const wanted = operator === "LIKE" ? `%${value}%` : value;
  return `${field} ${operator} ${isBare && operator !== "LIKE" ? value.trim() : `'${wanted.replaceAll("'", "''")}'`}`;
}
