import { render } from "preact";
import "./style.css";
import { App } from "./app.jsx";
import { connect } from "./api.js";
import { newConversation, openConversation, state } from "./store.js";

const wanted = location.hash.slice(1);
if (wanted && state.index.some((c) => c.id === wanted)) openConversation(wanted);
else newConversation();
render(<App />, document.getElementById("app"));
connect();
