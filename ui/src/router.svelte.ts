// Pages have addresses below /console, so that each can be linked and the browser's buttons work.
const BASE = "/console";

function read(): string[] {
  return location.pathname.slice(BASE.length).split("/").filter(Boolean).map(decodeURIComponent);
}

class Router {
  parts = $state(read());
  query = $state(new URLSearchParams(location.search));

  constructor() {
    addEventListener("popstate", () => this.update());
  }

  /** Shows another page; `replace` changes the address of this one. */
  go(address: string, replace = false): void {
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    this.update();
    if (!replace) {
      scrollTo(0, 0);
      document.getElementById("main")?.focus({ preventScroll: true });
    }
  }

  private update(): void {
    this.parts = read();
    this.query = new URLSearchParams(location.search);
  }
}

export const router = new Router();

export function link(...parts: string[]): string {
  return `${BASE}/${parts.map(encodeURIComponent).join("/")}`;
}

/** Links of the console change the page without loading it anew. */
export function follow(event: MouseEvent): void {
  const anchor = (event.target as Element).closest("a");
  if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  if (anchor.target || anchor.origin !== location.origin || !anchor.pathname.startsWith(BASE)) return;
  event.preventDefault();
  router.go(anchor.pathname + anchor.search);
}
