// Loaded with the first policy that is edited. The editor lives in a shadow root: there its styles
// are constructed style sheets, which the Content-Security-Policy allows.
import { autocompletion, closeBrackets, completionKeymap, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentLess, insertTab } from "@codemirror/commands";
import { linter, lintGutter, lintKeymap, type Diagnostic } from "@codemirror/lint";
import { EditorState, RangeSetBuilder } from "@codemirror/state";
import { Decoration, EditorView, highlightActiveLine, keymap, lineNumbers, ViewPlugin, type DecorationSet, type ViewUpdate } from "@codemirror/view";
import type { Problem, SiteVocabulary } from "../api";
import { colours, offers } from "./language";

export interface Editor {
  setText(text: string): void;
  insert(text: string): void;
  goTo(line: number, column: number): void;
  focus(): void;
  destroy(): void;
}

interface Options {
  text: string;
  label: string;
  fix: (name: string) => string;
  words: () => SiteVocabulary | undefined;
  check: (text: string) => Promise<Problem[]>;
  changed: (text: string) => void;
}

const MARKS = Object.fromEntries(["header", "keyword", "number", "text", "comment"].map((kind) => [kind, Decoration.mark({ class: `dpl-${kind}` })]));

function decorate(view: EditorView): DecorationSet {
  const builder = new RangeSetBuilder<Decoration>();
  for (const { from, to } of view.visibleRanges) {
    for (let at = from; at <= to; ) {
      const line = view.state.doc.lineAt(at);
      for (const one of colours(line.text)) {
        const mark = MARKS[one.kind];
        if (mark && one.to > one.from) builder.add(line.from + one.from, line.from + one.to, mark);
      }
      at = line.to + 1;
    }
  }
  return builder.finish();
}

const highlighting = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;
    constructor(view: EditorView) {
      this.decorations = decorate(view);
    }
    update(update: ViewUpdate) {
      if (update.docChanged || update.viewportChanged) this.decorations = decorate(update.view);
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

const theme = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--card)", fontSize: "14px", border: "1px solid var(--line)", borderRadius: ".4rem" },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
  ".cm-content": { fontFamily: "var(--mono)", caretColor: "var(--ink)", padding: ".6rem 0", minHeight: "15rem" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "var(--card)", color: "var(--soft)", border: "0" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--accent) 7%, transparent)" },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { backgroundColor: "var(--tint)" },
  ".cm-tooltip": { backgroundColor: "var(--card)", color: "var(--ink)", border: "1px solid var(--line)", borderRadius: ".4rem", maxWidth: "min(30rem, 90vw)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--tint)", color: "var(--ink)" },
  ".cm-completionDetail": { color: "var(--soft)", fontStyle: "normal" },
  // Instead of the library's images, which the Content-Security-Policy refuses.
  ".cm-lintRange": { backgroundImage: "none !important", textDecoration: "underline wavy 1px", textUnderlineOffset: "3px", paddingBottom: "0" },
  ".cm-lintRange-error": { textDecorationColor: "var(--alarm)" },
  ".cm-lintRange-warning, .cm-lintRange-info": { textDecorationColor: "var(--warn)" },
  ".cm-lint-marker": { content: "none !important", width: ".6em", height: ".6em", margin: ".45em .2em", borderRadius: "50%", backgroundColor: "var(--warn)" },
  ".cm-lint-marker-error": { backgroundColor: "var(--alarm)" },
  ".cm-lintPoint::after": { borderBottomColor: "var(--alarm) !important" },
  ".cm-diagnostic": { padding: ".35rem .7rem", whiteSpace: "pre-wrap" },
  ".cm-diagnosticAction": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".dpl-header": { color: "var(--accent)", fontWeight: "700" },
  ".dpl-keyword": { color: "var(--accent)" },
  ".dpl-number": { color: "var(--warn)" },
  ".dpl-text": { color: "var(--good)" },
  ".dpl-comment": { color: "var(--soft)", fontStyle: "italic" },
});

/** A problem of the node as the editor shows it: at the word where it stands. */
function diagnostic(state: EditorState, problem: Problem, fix: (name: string) => string): Diagnostic {
  const line = state.doc.line(Math.min(Math.max(problem.line || 1, 1), state.doc.lines));
  const from = Math.min(line.from + Math.max((problem.column || 1) - 1, 0), line.to);
  const length = /^[\w-]+/u.exec(state.sliceDoc(from, line.to))?.[0].length ?? 1;
  const to = Math.min(from + length, Math.max(line.to, from));
  const meant = /^did you mean '([^']+)'\?$/u.exec(problem.hint ?? "")?.[1];
  return {
    from,
    to,
    severity: problem.severity === "error" ? "error" : problem.severity === "warning" ? "warning" : "info",
    message: [problem.message, problem.hint].filter(Boolean).join("\n"),
    actions: meant ? [{ name: fix(meant), apply: (view, start, end) => view.dispatch({ changes: { from: start, to: end, insert: meant } }) }] : [],
  };
}

export function openEditor(box: HTMLElement, options: Options): Editor {
  const root = box.shadowRoot ?? box.attachShadow({ mode: "open" });
  root.replaceChildren();
  const complete = (context: CompletionContext): CompletionResult | null => {
    const words = options.words();
    if (!words) return null;
    const line = context.state.doc.lineAt(context.pos);
    const before = line.text.slice(0, context.pos - line.from);
    const found = offers(words, context.state.doc.toString().split("\n"), line.number - 1, before);
    if (!found.offers.length || (!found.typed && !context.explicit && !/\s(?:of|is|on)\s$|\d\s$/u.test(before))) return null;
    return { from: context.pos - found.typed.length, options: found.offers.map((one) => ({ type: "text", ...one })), validFor: /^[\w -]*$/u };
  };
  const view = new EditorView({
    parent: root,
    root,
    state: EditorState.create({
      doc: options.text,
      extensions: [
        lineNumbers(),
        history(),
        closeBrackets(),
        highlighting,
        highlightActiveLine(),
        EditorState.tabSize.of(2),
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": options.label, spellcheck: "false", autocapitalize: "off" }),
        autocompletion({ override: [complete], icons: false }),
        linter(async (one) => (await options.check(one.state.doc.toString())).map((problem) => diagnostic(one.state, problem, options.fix)), { delay: 400 }),
        lintGutter(),
        // Tab moves the focus, as everywhere on the page; these two indent.
        keymap.of([{ key: "Ctrl-]", run: insertTab }, { key: "Ctrl-[", run: indentLess }, ...completionKeymap, ...lintKeymap, ...historyKeymap, ...defaultKeymap]),
        EditorView.updateListener.of((update) => update.docChanged && options.changed(update.state.doc.toString())),
        theme,
      ],
    }),
  });
  return {
    setText: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    insert: (text) => {
      view.dispatch(view.state.replaceSelection(text));
      view.focus();
    },
    goTo: (line, column) => {
      const found = view.state.doc.line(Math.min(Math.max(line, 1), view.state.doc.lines));
      view.dispatch({ selection: { anchor: Math.min(found.from + Math.max(column - 1, 0), found.to) }, scrollIntoView: true });
      view.focus();
    },
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}
