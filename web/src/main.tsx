import { render } from "preact";
import "./style.css";
import { App } from "./app.tsx";
import { connect } from "./api.ts";
import { begin, blank, followAddress } from "./conversations.ts";
import { connectAllMcp } from "./mcp.ts";
import { set } from "./store.ts";

set({ current: blank() });
render(<App />, document.getElementById("app")!);
addEventListener("popstate", followAddress);
void begin();
void connect();
connectAllMcp();
