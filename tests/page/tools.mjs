// What surrounds an answer: other ways to make it, previews, tools of MCP servers, folders, prompts, files, the installed page.
import assert from "node:assert/strict";
import http from "node:http";
import { accessible, answered, becomes, browser, drawn, key, mcpPort, open, panel, say, send, shot, url } from "./harness.mjs";

const texts = (page) => page.locator("article").evaluateAll((all) => all.map((a) => (a.querySelector(".bubble, .markdown")?.textContent ?? "").trim()));
const greedy = async (page) => {
  await panel(page, "Settings");
  await page.fill('.panel label:has-text("Temperature") input', "0");
  await page.keyboard.press("Escape");
};

// An MCP server over HTTP, with one tool; every other answer is an event stream.
async function mcpServer() {
  const seen = [];
  const server = http.createServer(async (request, reply) => {
    const allowed = { "Access-Control-Allow-Origin": url, "Access-Control-Allow-Headers": "*, authorization", "Access-Control-Expose-Headers": "Mcp-Session-Id" };
    if (request.method === "OPTIONS") return reply.writeHead(204, allowed).end();
    let text = "";
    for await (const part of request) text += part;
    const { id, method, params } = JSON.parse(text);
    seen.push({ method, params, session: request.headers["mcp-session-id"], key: request.headers.authorization });
    const results = {
      initialize: { protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "test", version: "1" } },
      "tools/list": { tools: [{ name: "add", description: "Adds two numbers", inputSchema: { type: "object", properties: { a: { type: "number" }, b: { type: "number" } } } }] },
      "tools/call": { content: [{ type: "text", text: String(params?.arguments?.a + params?.arguments?.b) }] },
    };
    if (id === undefined) return reply.writeHead(202, allowed).end();
    const data = JSON.stringify({ jsonrpc: "2.0", id, result: results[method] });
    const stream = method === "tools/call";
    reply.writeHead(200, { ...allowed, "Content-Type": stream ? "text/event-stream" : "application/json", ...(method === "initialize" ? { "Mcp-Session-Id": "s1" } : {}) });
    reply.end(stream ? `event: message\ndata: ${data}\n\n` : data);
  });
  await new Promise((r) => server.listen(mcpPort, "127.0.0.1", r));
  return { seen, address: `http://127.0.0.1:${mcpPort}/mcp`, close: () => server.close() };
}

export const tools = {
  async "the same answer without drafts is the same, and how much faster is said; two answers side by side"() {
    const page = await open();
    await send(page, "Count from 1 to 20.");  // at the server's own temperature: the page's seed makes it again
    await answered(page);
    await page.click('[aria-label="X-ray"]');
    await page.click('button:has-text("Same without drafts?")');
    await page.waitForSelector('.same-row .verdict:has-text("Identical")');
    assert.match(await page.textContent(".same-row .verdict"), /^Identical, (\d+) of \1 tokens, (\d+\.\d times (faster|slower)|equally fast)$/);
    await page.click('summary:has-text("Raw prompt")');
    await becomes(async () => /Count from 1 to 20\./.test(await page.textContent(".raw pre")), true);
    await page.click(".receipt summary");
    assert.match(await page.textContent(".receipt dl"), /Seed\d+.*Context4,096.*KV cachef16/);
    // A request whose own drafts are off has none.
    await page.click('button:has-text("Compare")');
    await page.waitForSelector(".compare");
    await page.click('.compare button:has-text("Run")');
    await page.waitForSelector('.compare .verdict:has-text("Identical")');
    assert.equal(await page.locator(".compare .parts").count(), 0);
    assert.match(await page.textContent(".compare .side:nth-of-type(1) .hint"), /tokens\/step/);
    assert.doesNotMatch(await page.locator(".compare .side").nth(1).locator(".hint").textContent(), /tokens\/step/);
    assert.match(await page.locator(".compare .side").nth(1).locator("pre span").first().getAttribute("title"), /\d+\.\d %/);
    // This answer was made without probabilities; they come a little later.
    await becomes(async () => /\d+\.\d %/.test(await page.locator(".compare .side").first().locator("pre span").first().getAttribute("title")), true);
    await accessible(page, "compare");
    await shot(page, "compare");
    await page.keyboard.press("Escape");
    await becomes(() => page.locator(".compare").count(), 0);
    await page.context().close();
  },

  async "two answers that part are aligned up to there"() {
    const page = await open();
    const steps = (list) => `data: ${JSON.stringify({ choices: [], steps: [{ tokens: list }] })}\n\n`;
    const body = (list) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: list.join("") }, finish_reason: "stop" }] })}\n\n${steps(list)}data: [DONE]\n\n`;
    const asked = [];
    await page.route("**/v1/chat/completions", (route) => {
      asked.push(JSON.parse(route.request().postData()));
      return route.fulfill({ contentType: "text/event-stream", body: body(asked.length === 1 ? ["One", " two", " three"] : ["One", " two", " four", " five"]) });
    });
    await send(page, "Go");
    await answered(page);
    await page.click('[aria-label="Compare"]');
    await page.click('.compare button:has-text("Run")');
    await page.waitForSelector('.compare .verdict:has-text("Same for 2 tokens")');
    assert.deepEqual(await page.locator(".compare .parts").allTextContents(), [" three", " four"]);
    assert.deepEqual(await page.locator(".compare .same").allTextContents(), ["One", " two", "One", " two"]);
    assert.equal(asked[1].speculation, false);
    assert.equal(asked[1].seed, asked[0].seed);
    await accessible(page, "parted answers");
    await page.context().close();
  },

  async "X-ray tells which tokens of a draft were rejected"() {
    const page = await open();
    await greedy(page);
    // What pays decides what is drafted: some answers until a draft errs.
    for (const what of ["largest", "smallest", "second", "last", "first", "longest", "shortest", "middle"]) {
      await send(page, `Write a Python function that returns the ${what} number in a list.`);
      await answered(page);
      await page.locator('[aria-label="X-ray"]').last().click();
      await page.waitForFunction(() => document.querySelector("article:last-of-type .xray pre span"));
      if (await page.locator(".xray pre span[data-rejected]").count()) break;
    }
    assert.ok(await page.locator(".xray pre span[data-rejected]").count() > 0, "no draft was rejected");
    assert.match(await page.locator(".xray pre span[data-rejected]").first().getAttribute("title"), /Chosen by the model after .*\nRejected: /);
    await page.context().close();
  },

  async "HTML and SVG are shown in a frame that reaches nothing"() {
    const page = await open({ quiet: /Content Security Policy|Refused|sandboxed|violates/ });
    say(page, { content: `\`\`\`html
<body><h1>Hello</h1><script>
const say = (t) => document.body.append(Object.assign(document.createElement("p"), { textContent: t }));
say("ran");
try { parent.document.title; say("parent seen"); } catch { say("parent hidden"); }
try { localStorage.x; say("storage seen"); } catch { say("storage hidden"); }
fetch("/v1/models").then(() => say("server seen"), () => say("server hidden"));
</script></body>
\`\`\`

\`\`\`svg
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle r="4" cx="4" cy="4"/></svg>
\`\`\`
` });
    await send(page, "Show");
    await answered(page);
    await page.locator("button.preview").first().click();
    const frame = page.frameLocator(".code iframe").first();
    await frame.locator('p:has-text("server hidden")').waitFor();
    assert.deepEqual(await frame.locator("p").allTextContents(), ["ran", "parent hidden", "storage hidden", "server hidden"]);
    await accessible(page, "preview");
    await shot(page, "preview");
    await page.locator("button.preview").first().click();
    await becomes(() => page.locator(".code iframe").count(), 0);
    await page.locator("button.preview").last().click();
    await page.frameLocator(".code iframe").first().locator("circle").waitFor();
    await page.context().close();
  },

  async "tools of an MCP server run with permission alone"() {
    const mcp = await mcpServer();
    const page = await open();
    await panel(page, "Settings");
    await page.fill('.panel label:has-text("Address") input', mcp.address);
    await page.fill('.panel label:has-text("Authorization") input', "Bearer tools");
    await page.click('.panel button:has-text("Add")');
    await page.waitForSelector('.mcp summary:has-text("1 tools")');
    await page.click(".mcp summary");
    await page.waitForSelector('.mcp label:has-text("add") select');
    await accessible(page, "MCP servers");
    await shot(page, "mcp");
    await page.keyboard.press("Escape");
    const call = (n) => ({ tool: { id: `call_${n}`, name: "add", parts: [`{"a": 17, "b": ${n}}`] }, finish: "tool_calls" });
    const first = say(page, call(1));
    await send(page, "Add");
    assert.equal((await first).tools[0].function.name, "add");
    await page.waitForSelector('.tool button:has-text("Run tool")');
    await drawn(page);
    assert.equal(mcp.seen.filter((s) => s.method === "tools/call").length, 0);
    await accessible(page, "permission");
    const second = say(page, { content: "18" });
    await page.click('.tool button:has-text("Run tool")');
    assert.deepEqual((await second).messages.at(-1), { role: "tool", tool_call_id: "call_1", content: "18" });
    await answered(page);
    // From now on it need not ask.
    say(page, call(2));
    await send(page, "Again");
    await page.waitForSelector('.tool button:has-text("Always run")');
    say(page, { content: "19" });
    await page.click('.tool button:has-text("Always run")');
    await page.waitForSelector('article:has-text("19")');
    let third;
    say(page, call(3)).then(() => (third = say(page, { content: "20" })));
    await send(page, "And again");
    await page.waitForSelector('article:has-text("20")');
    assert.equal((await third).messages.at(-1).content, "20");
    const calls = mcp.seen.filter((s) => s.method === "tools/call");
    assert.equal(calls.length, 3);
    assert.deepEqual([calls[0].session, calls[0].key, calls[0].params], ["s1", "Bearer tools", { name: "add", arguments: { a: 17, b: 1 } }]);
    // It stays after a reload, and may be forbidden.
    await page.reload();
    await panel(page, "Settings");
    await page.waitForSelector('.mcp summary:has-text("1 tools")');
    await page.click(".mcp summary");
    await page.selectOption('.mcp label:has-text("add") select', "never");
    await page.keyboard.press("Escape");
    const last = say(page, { content: "No." });
    await send(page, "Without");
    assert.equal((await last).tools, undefined);
    await answered(page);
    mcp.close();
    await page.context().close();
  },

  async "an MCP server that cannot be asked is said, with what to do"() {
    const page = await open({ quiet: /Content Security Policy|violates|Refused/ });
    await panel(page, "Settings");
    await page.fill('.panel label:has-text("Address") input', "http://127.0.0.1:9/mcp");
    await page.click('.panel button:has-text("Add")');
    await page.waitForSelector('.mcp .error:has-text("--page-origin http://127.0.0.1:9")');
    await page.context().close();
  },

  async "chats go into folders, and are found by what they say"() {
    const page = await open();
    for (const [question, answer] of [["First", "A blue heron"], ["Second", "A red fox"]]) {
      say(page, { content: answer });
      await page.click(".new");
      await send(page, question);
      await answered(page);
    }
    await page.hover('.entry:has-text("First")');
    await page.click('.entry:has-text("First") [aria-label="Move to folder"]');
    await page.keyboard.type("Birds");
    await page.keyboard.press("Enter");
    await becomes(() => page.locator(".folder .entry").allTextContents(), ["First"]);
    await becomes(() => page.locator(".entries section .entry").allTextContents(), ["Second"]);
    await accessible(page, "folders");
    await shot(page, "folders");
    await page.fill(".search", "heron");
    await becomes(() => page.locator(".entry").allTextContents(), ["First"]);
    await page.fill(".search", "");
    await page.click(".folder summary");
    await page.reload();
    await becomes(() => page.locator(".folder:not([open]) .entry").count(), 1);
    await page.click(".folder summary");
    await page.hover(".folder .entry");
    await page.click('.folder [aria-label="Move to folder"]');
    await page.fill(".rename", "");
    await page.keyboard.press("Enter");
    await becomes(() => page.locator(".folder").count(), 0);
    await page.context().close();
  },

  async "prompts of the library come with /; what is typed is never lost"() {
    const page = await open();
    await panel(page, "Settings");
    await page.fill('.panel label:has-text("Text") textarea', "Explain as to a child: ");
    await page.fill('.panel .presets:has-text("Prompt library") label:has-text("Name") input', "Explain simply");
    await page.click('.panel button:has-text("Save prompt")');
    await page.keyboard.press("Escape");
    await page.focus("#message");
    await page.keyboard.type("/simp");
    await page.keyboard.press("Enter");
    await page.keyboard.type("tides");
    await becomes(() => page.inputValue("#message"), "Explain as to a child: tides");
    await page.fill("#message", "");
    await page.keyboard.type("/etc/hosts");
    await page.keyboard.press("Escape");
    await page.keyboard.type(" is a file");
    await becomes(() => page.inputValue("#message"), "/etc/hosts is a file");
    await page.context().close();
  },

  async "keys open what the next keys go to"() {
    const page = await open();
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("/");
    await page.keyboard.type("one");
    await becomes(() => page.inputValue("#message"), "one");
    await page.keyboard.press("Control+Shift+O");
    await page.keyboard.type("two");
    await becomes(() => page.inputValue("#message"), "onetwo");  // a new chat's draft stays
    await page.keyboard.press("Control+,");
    await page.keyboard.press("Escape");
    await page.keyboard.type("!");
    await becomes(() => page.inputValue("#message"), "onetwo!");
    await page.context().close();
  },

  async "a chat has settings of its own"() {
    const page = await open();
    const ask = async (text) => {
      const asked = say(page, { content: "Yes." });
      await send(page, text);
      await answered(page);
      return asked;
    };
    await ask("One");
    await panel(page, "Settings");
    await page.check('.panel label:has-text("Only for this chat") input');
    await page.fill('.panel label:has-text("System prompt") textarea', "Be a pirate.");
    await page.keyboard.press("Escape");
    assert.equal((await ask("Two")).messages[0].content, "Be a pirate.");
    await page.click(".new");
    assert.equal((await ask("Three")).messages[0].role, "user");
    await page.reload();
    await page.click('.entry:has-text("One") .title');
    await becomes(() => page.locator("article").count(), 4);
    assert.equal((await ask("Four")).messages[0].content, "Be a pirate.");
    await page.context().close();
  },

  async "the text of a PDF is attached"() {
    const maker = await (await browser.newContext()).newPage();
    await maker.setContent(`<h1>Ring buffers</h1><p>They hold the <b>last</b> rows, offices and flowers.</p><p>Кольцевой буфер: Ωμέγα, Žluťoučký kůň.</p>
      <table><tr><td>Rows</td><td>128</td></tr></table><p style="break-before: page">The second page.</p>`);
    const printed = await maker.pdf();
    await maker.context().close();
    const text = "BT /F1 12 Tf 72 720 Td (Plain \\(old\\) PDF) Tj 0 -14 Td [(Sec) -20 (ond) -300 (line)] TJ ET";
    const old = `%PDF-1.4
1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj
2 0 obj <</Type /Pages /Kids [3 0 R] /Count 1>> endobj
3 0 obj <</Type /Page /Parent 2 0 R /Contents 4 0 R /Resources <</Font <</F1 5 0 R>>>>>> endobj
4 0 obj <</Length ${text.length}>> stream
${text}
endstream endobj
5 0 obj <</Type /Font /Subtype /Type1 /BaseFont /Helvetica>> endobj
trailer <</Root 1 0 R>>`;
    const page = await open();
    const file = (name, buffer) => ({ name, mimeType: "application/pdf", buffer });
    await page.setInputFiles('input[type="file"][multiple]', [file("printed.pdf", printed), file("old.pdf", Buffer.from(old))]);
    await becomes(() => page.locator(".files li").count(), 2);
    await page.setInputFiles('input[type="file"][multiple]', file("locked.pdf", Buffer.from(old.replace("/Root", "/Encrypt 9 0 R /Root"))));
    await page.waitForSelector('.error:has-text("locked.pdf has no readable text")');
    const asked = say(page, { content: "Read." });
    await send(page, "Sum it up");
    const sent = (await asked).messages[0].content;
    assert.match(sent, /printed\.pdf\n```\nRing buffers\n+They hold the last rows, offices and flowers\.\n+Кольцевой буфер: Ωμέγα, Žluťoučký kůň\.\n+Rows 128\n+The second page\.\n```/);
    assert.match(sent, /old\.pdf\n```\nPlain \(old\) PDF\nSecond line\n```/);
    await answered(page);
    await page.context().close();
  },

  async "gates and the regime map come from records, and nothing is green without one"() {
    const page = await open();
    const record = (kind, settings, figures) => ({ schema: "carat.record", version: 1, kind, time: "2026-01-01T00:00:00Z", carat: "0.2 (abc)", model: { name: "demo" }, settings, figures });
    const list = [record("gate", { suite: "s", case: "json" }, { passed: true, faults: [], decode_tps: 41.25 }),
      record("gate", { suite: "s", case: "loops" }, { passed: false, faults: ["it repeats itself"] }),
      { ...record("gate", { suite: "s", case: "forged" }, { passed: true }), schema: "other" },
      record("regime", { ctx: 4096, prompts: "code", config: "q8_0 caches, mtp 4" }, { decode_tps: 99, plain_tps: 40 })];
    await page.keyboard.press("Control+k");
    await page.keyboard.type("records");
    await page.keyboard.press("Enter");
    await page.waitForSelector('.panel[aria-label="Records"]');
    assert.equal(await page.locator(".good").count(), 0);
    await page.setInputFiles('.panel input[type="file"]', { name: "r.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(list)) });
    await becomes(() => page.locator(".record b").allTextContents(), ["passed", "failed"]);
    assert.match(await page.textContent('.record:has-text("loops")'), /it repeats itself.*r\.json/);
    assert.match(await page.textContent('.record:has-text("4096 · code: q8_0 caches, mtp 4")'), /99\.0 tokens\/s, 40\.0 without drafts/);
    await page.click('.regimes button:has-text("99.0 ×2.5")');  // a cell of the map opens its record
    await becomes(() => page.locator(".record[open]").allTextContents().then((all) => all.map((s) => s.includes('"plain_tps": 40'))), [true]);
    await page.locator(".record summary").first().click();
    assert.match(await page.locator(".record pre").first().textContent(), /"decode_tps": 41\.25/);
    await accessible(page, "records");
    await shot(page, "records");
    await page.context().close();
  },

  async "the page can be installed, is packed, prints, and keeps its marks in forced colours"() {
    const page = await open();
    const got = (path, accept) => new Promise((resolve) => http.get(url + path, { headers: { "Accept-Encoding": accept } }, (r) => {
      r.resume();
      r.on("end", () => resolve(r));
    }));
    const manifest = await page.evaluate(async () => (await fetch(document.querySelector("link[rel=manifest]").href)).json());
    assert.equal(manifest.display, "standalone");
    for (const icon of manifest.icons) assert.match((await got(icon.src, "")).headers["content-type"], /^image\//);
    const client = await page.context().newCDPSession(page);
    assert.deepEqual((await client.send("Page.getAppManifest")).errors, []);
    assert.equal((await got("/app.js", "gzip")).headers["content-encoding"], "gzip");
    say(page, { content: "Printed **words**\n\n```c\nint x;\n```" });
    await send(page, "Print me");
    await answered(page);
    await page.emulateMedia({ media: "print" });
    for (const gone of [".sidebar", "header", ".composer", ".actions", ".copy"]) assert.equal(await page.locator(gone).first().isVisible(), false, gone);
    assert.equal(await page.locator('.markdown:has-text("Printed words")').isVisible(), true);
    assert.ok((await page.pdf()).length > 1000);
    await page.emulateMedia({ media: "screen", forcedColors: "active" });
    for (const marked of [".bubble", ".entry.active", ".field-box"])
      assert.notEqual(await page.locator(marked).first().evaluate((e) => getComputedStyle(e).borderTopWidth), "0px", marked);
    await shot(page, "forced-colours");
    await page.context().close();
  },
};
