// The client of the HTTP API; its types are generated from the OpenAPI document (api.d.ts).
import type { components } from "./api.d";

type Schemas = components["schemas"];
export type Overview = Schemas["Overview"];
export type Trouble = Schemas["Trouble"];
export type NotifiedLine = Schemas["NotifiedLine"];
export type OpenLine = Schemas["OpenLine"];
export type FoundSituation = Schemas["FoundSituation"];
export type FoundPage = Schemas["FoundPage"];
export type BoundThing = Schemas["BoundThing"];
export type RateList = Schemas["RateList"];
export type Rate = Schemas["Rate"];
export type ThingList = Schemas["ThingList"];
export type Thing = Schemas["Thing"];
export type ThingPage = Schemas["ThingPage"];
export type PresentValue = Schemas["PresentValue"];
export type ConceptView = Schemas["ConceptView"];
export type Curve = Schemas["CurveWithLimits"];
export type PolicyLimit = Schemas["PolicyLimit"];
export type SitePlan = Schemas["SitePlan"];
export type PlacedThing = Schemas["PlacedThing"];
export type Causes = Schemas["CausesView"];
export type CauseNode = Schemas["CauseNode"];
export type Explanation = Schemas["Explanation"];
export type ConditionNode = Schemas["ConditionNode"];
export type SituationEvidence = Schemas["SituationEvidence"];
export type WhyNot = Schemas["WhyNotAnswer"];
export type PolicyView = Schemas["PolicyView"];
export type MessageRow = Schemas["MessageRow"];
export type MessageView = Schemas["MessageView"];
export type DirectoryEntry = Schemas["DirectoryEntry"];
export type DutyPlan = Schemas["DutyPlan"];
export type ChangedEntry = Schemas["ChangedEntry"];
export type PeopleImport = Schemas["PeopleImport"];
export type LedgerRow = Schemas["LedgerRow"];
export type SourceDraft = Schemas["SourceDraft"];
export type HeardSource = Schemas["HeardSource"];
export type HeardSources = Schemas["HeardSources"];
export type SourceWritten = Schemas["SourceWritten"];
export type NewColumn = Schemas["NewColumn"];
export type SourceList = Schemas["SourceList"];
export type ChannelList = Schemas["ChannelList"];
export type EventSearch = Schemas["EventSearch"];
export type StoredEvent = Schemas["StoredCloudEvent"];
export type DeadLetter = Schemas["DeadLetter"];
export type LedgerRecord = Schemas["LedgerRecord"];
export type LedgerRecords = Schemas["LedgerRecords"];
export type Network = Schemas["Network"];
export type NetworkNeighbour = Schemas["NetworkNeighbour"];
export type NetworkFlow = Schemas["NetworkFlow"];
export type SiteStatus = Schemas["SiteStatus"];
export type SiteCheck = Schemas["SiteCheck"];
export type SiteAccess = Schemas["SiteAccess"];
export type SiteFileList = Schemas["SiteFileList"];
export type SiteFileText = Schemas["SiteFileText"];
export type ProposedChange = Schemas["ProposedChange"];
export type WrittenChange = Schemas["WrittenChange"];
export type SiteChangeList = Schemas["SiteChangeList"];
export type SiteLog = Schemas["SiteLog"];
export type HistoryRunList = Schemas["HistoryRunList"];
export type HistoryRun = Schemas["HistoryRun"];
export type HistoryRunView = Schemas["HistoryRunView"];
export type HistoryResult = Schemas["HistoryResult"];
export type VersionResult = Schemas["VersionResult"];
export type DoctorReport = Schemas["DoctorReport"];
export type Session = Schemas["SessionView"];
export type Problem = Schemas["Problem"];
export type SiteVocabulary = Schemas["SiteVocabulary"];
export type PolicyDifference = Schemas["PolicyDifference"];
export type TrialResult = Schemas["TrialResult"];
export type Episode = Schemas["Episode"];
export type CheckResult = Schemas["CheckResult"];

/** What the node answered instead: problem details (RFC 9457). */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string,
    readonly problems: Problem[] = [],
  ) {
    super(message);
  }
}

type Query = Record<string, string | number | undefined>;

export function path(...parts: string[]): string {
  return `/${parts.map(encodeURIComponent).join("/")}`;
}

async function send(method: string, address: string, body?: unknown, kind = "application/json"): Promise<Response> {
  const init: RequestInit = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    init.headers = { ...init.headers, "Content-Type": kind };
    init.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  const answer = await fetch(address, init);
  if (answer.ok) return answer;
  const told = (await answer.json().catch(() => ({}))) as Partial<Schemas["ProblemDetails"]>;
  throw new Refused(answer.status, told.title ?? "", told.detail ?? answer.statusText, told.hint ?? "", told.problems ?? []);
}

export async function get<T>(address: string, query: Query = {}): Promise<T> {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return (await send("GET", text ? `${address}?${text}` : address)).json() as Promise<T>;
}

export async function post<T>(address: string, body?: unknown, kind?: string): Promise<T> {
  return (await send("POST", address, body, kind)).json() as Promise<T>;
}

export async function put<T>(address: string, body: unknown): Promise<T> {
  return (await send("PUT", address, body)).json() as Promise<T>;
}

/** A change of the site's files: done, or the patch that a read-only site answers with. */
export async function changeSite(method: "PUT" | "POST", address: string, text: string): Promise<WrittenChange | string> {
  const answer = await send(method, address, text, "text/plain; charset=utf-8");
  return answer.status === 202 ? answer.text() : (answer.json() as Promise<WrittenChange>);
}

export async function patch<T>(address: string, body: unknown): Promise<T> {
  return (await send("PATCH", address, body)).json() as Promise<T>;
}

export async function remove<T>(address: string): Promise<T> {
  return (await send("DELETE", address)).json() as Promise<T>;
}
