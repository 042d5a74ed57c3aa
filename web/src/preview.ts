// HTML and SVG of a model in a frame of nobody's origin, whose policy (src/serve/page.cc) lets it reach nothing.
import { t } from "./text.ts";

export function togglePreview(button: HTMLButtonElement): void {
  const box = button.closest(".code")!, code = box.querySelector("pre")!, old = box.querySelector("iframe");
  code.hidden = !old;
  button.textContent = old ? t("Preview") : t("Code");
  if (old) return old.remove();
  const frame = document.createElement("iframe");
  frame.sandbox.add("allow-scripts");
  frame.title = t("Preview");
  frame.src = "/preview.html";
  const ready = (e: MessageEvent) => {
    if (e.source !== frame.contentWindow || e.data !== "preview") return;
    removeEventListener("message", ready);
    frame.contentWindow!.postMessage(code.textContent, "*");
  };
  addEventListener("message", ready);
  box.append(frame);
}
