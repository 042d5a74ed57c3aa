// Tools of MCP servers over HTTP (streamable): the browser asks them itself, and only those that the server's
// --page-origin names. No tool runs without the reader's permission.
import { events } from "./answers.ts";
import { changed, set, state, type McpServer, type Permission } from "./store.ts";
import { t } from "./text.ts";

export interface McpTool { name: string; description?: string; inputSchema?: unknown }
interface Link { tools: McpTool[]; session: string; fault: string; busy: boolean }
interface Reply { id?: number; result?: any; error?: { message: string } }

const links = new Map<string, Link>();
export const linkOf = (url: string): Link | undefined => links.get(url);
const kVersion = "2025-06-18";
let last = 0;

async function ask(server: McpServer, method: string, params: unknown, notify = false): Promise<any> {
  const link = links.get(server.url)!, id = ++last;
  const h: Record<string, string> = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
  if (server.header) h.Authorization = server.header;
  if (link.session) h["Mcp-Session-Id"] = link.session;
  if (method !== "initialize") h["MCP-Protocol-Version"] = kVersion;
  const r = await fetch(server.url, { method: "POST", headers: h, body: JSON.stringify({ jsonrpc: "2.0", ...(notify ? {} : { id }), method, params }) });
  link.session = r.headers.get("Mcp-Session-Id") ?? link.session;
  if (!r.ok) throw new Error(`HTTP ${r.status}: ${(await r.text()).slice(0, 200)}`);
  if (notify) return;
  if (!r.headers.get("Content-Type")?.includes("event-stream")) return answerOf(await r.json());
  for await (const data of events(r.body!)) {
    const reply = JSON.parse(data) as Reply;
    if (reply.id === id) return answerOf(reply);
  }
  throw new Error(t("the stream ended without an answer"));
}

function answerOf(reply: Reply): any {
  if (reply.error) throw new Error(reply.error.message);
  return reply.result;
}

export async function connectMcp(server: McpServer): Promise<void> {
  const link: Link = { tools: [], session: "", fault: "", busy: true };
  links.set(server.url, link);
  changed();
  try {
    await ask(server, "initialize", { protocolVersion: kVersion, capabilities: {}, clientInfo: { name: "carat", version: "1" } });
    await ask(server, "notifications/initialized", {}, true);
    for (let cursor: string | undefined; ;) {
      const page = await ask(server, "tools/list", cursor ? { cursor } : {});
      link.tools.push(...page.tools);
      cursor = page.nextCursor;
      if (!cursor) break;
    }
  } catch (e) {
    link.fault = e instanceof TypeError
      ? t("Can't reach it. It must be running and let pages of {0} in (CORS), and this server must have been started with --page-origin {1}.", location.origin, originOf(server.url))
      : (e as Error).message;
  }
  link.busy = false;
  changed();
}

const originOf = (url: string): string => URL.parse(url)?.origin ?? url;
export const connectAllMcp = (): void => state.mcp.forEach((s) => void connectMcp(s));

function find(name: string): { server: McpServer; tool: McpTool } | null {
  for (const server of state.mcp) {
    const tool = links.get(server.url)?.tools.find((one) => one.name === name);
    if (tool) return { server, tool };
  }
  return null;
}

// null: no MCP server has this tool.
export function permission(name: string): Permission | null {
  const found = find(name);
  return found && (found.server.allow[name] ?? "ask");
}

export function allow(url: string, name: string, how: Permission): void {
  set({ mcp: state.mcp.map((s) => (s.url === url ? { ...s, allow: { ...s.allow, [name]: how } } : s)) });
}
export const allowAlways = (name: string): void => allow(find(name)!.server.url, name, "always");

// What the model is told of.
export function offered(): unknown[] {
  const names = new Set<string>();
  return state.mcp.flatMap((s) => links.get(s.url)?.tools ?? []).filter((tool) =>
    permission(tool.name) !== "never" && !names.has(tool.name) && names.add(tool.name)).map((tool) => ({
    type: "function", function: { name: tool.name, description: tool.description, parameters: tool.inputSchema ?? { type: "object" } },
  }));
}

export async function callTool(name: string, args: string): Promise<string> {
  const found = find(name);
  try {
    const result = await ask(found!.server, "tools/call", { name, arguments: JSON.parse(args || "{}") });
    const parts = (result.content ?? []).map((p: { type: string; text?: string }) => p.text ?? `[${p.type}]`);
    return (result.isError ? "Error: " : "") + parts.join("\n");
  } catch (e) {
    return `Error: ${(e as Error).message}`;
  }
}
