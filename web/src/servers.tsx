// Settings of MCP servers: where they are, and what each tool may do.
import { useState } from "preact/hooks";
import { IconButton } from "./icons.tsx";
import { allow, connectMcp, linkOf } from "./mcp.ts";
import { set, state, type McpServer, type Permission } from "./store.ts";
import { t } from "./text.ts";

function Server({ server }: { server: McpServer }) {
  const link = linkOf(server.url);
  const hows: [Permission, string][] = [["ask", t("Ask first")], ["always", t("Always run")], ["never", t("Never")]];
  return (
    <details class="mcp" open={!!link?.fault}>
      <summary>{server.url} <small>{link?.busy ? "…" : link?.fault ? t("not connected") : t("{0} tools", link?.tools.length ?? 0)}</small></summary>
      {link?.fault && <p class="error" role="alert">{link.fault}</p>}
      {link?.tools.map((tool) => (
        <label class="field" key={tool.name} title={tool.description}>{tool.name}
          <select value={server.allow[tool.name] ?? "ask"} onChange={(e) => allow(server.url, tool.name, e.currentTarget.value as Permission)}>
            {hows.map(([how, name]) => <option key={how} value={how}>{name}</option>)}
          </select>
        </label>
      ))}
      <div class="row">
        <button type="button" onClick={() => connectMcp(server)}>{t("Connect again")}</button>
        <IconButton icon="trash" label={t("Remove {0}", server.url)} onClick={() => set({ mcp: state.mcp.filter((s) => s.url !== server.url) })} />
      </div>
    </details>
  );
}

export function McpServers() {
  const [url, setUrl] = useState(""), [header, setHeader] = useState("");
  const add = (e: Event) => {
    e.preventDefault();
    const server = { url: url.trim(), header: header.trim(), allow: {} };
    set({ mcp: [...state.mcp.filter((s) => s.url !== server.url), server] });
    setUrl("");
    setHeader("");
    void connectMcp(server);
  };
  return (
    <form class="presets" onSubmit={add}>
      <h3>{t("MCP servers")}</h3>
      {state.mcp.map((s) => <Server key={s.url} server={s} />)}
      <label class="field">{t("Address")} <input type="url" required value={url} placeholder="http://127.0.0.1:3000/mcp" onInput={(e) => setUrl(e.currentTarget.value)} /></label>
      <div class="row-fill">
        <label class="field">Authorization <input value={header} placeholder="Bearer …" autocomplete="off" onInput={(e) => setHeader(e.currentTarget.value)} /></label>
        <button>{t("Add")}</button>
      </div>
    </form>
  );
}
